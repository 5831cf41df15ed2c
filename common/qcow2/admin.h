/* SPDX-License-Identifier: BSD-3-Clause */
/* What the operations on an image that is not being served have in common:
 * a begin and an end, and space for tables.
 */

#ifndef ADMIN_H
#define ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "core.h"

/* State of the image that is put back at the end. */
struct admin {
  struct core *core;
  bool lazy;
};

/* The change is announced, and everything so far is stable, when this
 * returns 0; refcounts are written by each commit from now on.  REFCOUNTS:
 * refcounts and references will not agree meanwhile: sets the dirty bit
 * (version 3).
 */
extern int admin_begin (struct admin *a, struct core *core, bool refcounts)
  __attribute__ ((__warn_unused_result__));

/* End with R, the result of the operation: 0: stores the bitmaps, commits,
 * gives freed space back, clears the dirty bit: the image is as after a
 * clean close.  Else the dirty bit stays if DAMAGED, so that the next open
 * repairs.  Returns R, or the first error.
 */
extern int admin_end (struct admin *a, int r, bool damaged)
  __attribute__ ((__warn_unused_result__));

/* Commit, and give space back until nothing is left to free, so that the
 * refcounts are what the references are.
 */
extern int admin_settle (struct core *core)
  __attribute__ ((__warn_unused_result__));

/* NR contiguous clusters for a table of metadata, registered as KIND; the
 * refcount table grows if it must.  NR 0: *HOST_OFF is 0.
 */
extern int admin_alloc (struct core *core, uint64_t nr,
                        enum overlap_kind kind, uint64_t *host_off)
  __attribute__ ((__warn_unused_result__));

/* They hold no table any more.  STABLE: the file refers to them no longer
 * since the last barrier, they are freed by the next commits; else they
 * were never referred to, and are free at once.
 */
extern void admin_free (struct core *core, uint64_t host_off, uint64_t nr,
                        bool stable);

/* Put all L2 tables of the active disk into the overlap registry (again).
 * On failure the image takes no more changes.  -ENOMEM.
 */
extern int admin_register_tables (struct core *core)
  __attribute__ ((__warn_unused_result__));

/* Make the NR_L1 entries at L1_OFF, which are written, the active L1 table
 * of a disk of SIZE bytes: write the header (stable on return) and load the
 * table.  The old table and what it refers to stay allocated.  A failure
 * before the header is written changes nothing.
 */
extern int admin_switch_l1 (struct core *core, uint64_t size,
                            uint64_t l1_off, uint64_t nr_l1)
  __attribute__ ((__warn_unused_result__));

#endif /* ADMIN_H */
