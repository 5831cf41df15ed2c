/* SPDX-License-Identifier: BSD-3-Clause */
/* Between check.c and repair*.c: a check under way. */

#ifndef CHECK_WALK_H
#define CHECK_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "check-count.h"
#include "check.h"
#include "core.h"
#include "mcache.h"
#include "refcount.h"

struct check {
  struct core *core;
  const struct check_options *opts;
  struct check_result *res;
  uint64_t file_len;

  /* What to do about entries that have only one right form: repair=all. */
  bool fix_entries;
  bool entries_changed;

  /* Expected refcounts, of nr_clusters host clusters: those of the file, and
   * the one that a reference to the end of the file may reach into.
   */
  struct check_count *counts;
  uint64_t nr_clusters;
  bool without_refcounts;       /* do not count table and blocks */
  uint64_t count_beyond;        /* count references beyond the end of the
                                   file as well, up to this offset */

  /* Actual refcounts.  VIEW is the file followed by zeroes for ever. */
  struct check_view {
    struct backend b;
    struct backend *file;
  } view;
  struct ranked_rwlock lock;
  struct mcache *mcache;
  struct refcount refcount;
  uint8_t *broken_blocks;       /* bit by table entry: cannot be read */
  bool needs_rebuild;           /* fixing single refcounts is not enough */

  uint8_t *l2;                  /* a table */
  uint64_t nr_misaligned;       /* L2 tables that were walked */
  uint64_t work_done, work_total, work_shown;
};

/* Prepare.  On failure K holds nothing; RES->check_errors counts it. */
extern int check_walk_open (struct check *k, struct core *core,
                            const struct check_options *opts,
                            struct check_result *res)
  __attribute__ ((__warn_unused_result__));
extern void check_walk_close (struct check *k);

/* Count all references; check entries on the way.  0, -EIO, -ENOMEM. */
extern int check_walk_references (struct check *k)
  __attribute__ ((__warn_unused_result__));

/* Compare expected and actual refcounts: fills leaks, corruptions,
 * check_errors and image_end_off.  FN (may be NULL) is called for each run
 * of clusters that differ in the same way, with ACTUAL != EXPECTED; it
 * returns 0, 1 (repaired: the run is not counted), or -errno.
 */
typedef int check_differ_fn (void *opaque, uint64_t idx, uint64_t nr,
                             uint64_t actual, uint64_t expected);
extern int check_compare (struct check *k, check_differ_fn *fn,
                          void *opaque)
  __attribute__ ((__warn_unused_result__));

/* Compare the COPIED flags of the active tables with the actual refcounts.
 * FIX: set them right, in the file (no barrier is issued).
 */
extern int check_copied (struct check *k, bool fix)
  __attribute__ ((__warn_unused_result__));

/* --- for the above --- */

/* What an L2 entry is to a check, which is more tolerant than entry.h. */
enum check_kind {
  CHECK_NOTHING, CHECK_ZERO, CHECK_ZERO_ALLOC, CHECK_DATA, CHECK_COMPRESSED,
};
extern enum check_kind check_walk_kind (const struct geometry *geo,
                                        uint64_t entry);

/* [OFF, OFF + LEN) is in use for WHAT, which says so TIMES times.  The last
 * cluster of a file may be incomplete, so a reference may end behind the end
 * of the file, but by less than a cluster.
 */
extern int check_walk_add (struct check *k, uint64_t off, uint64_t len,
                           uint64_t times, const char *what)
  __attribute__ ((__warn_unused_result__));

/* The two halves of it: can the range be counted (if not, or if it should
 * not be where it is, that is a corruption)?  Count clusters [FIRST, END).
 */
extern bool check_walk_can_count (struct check *k, uint64_t off, uint64_t len,
                                  uint64_t times, const char *what)
  __attribute__ ((__warn_unused_result__));
extern int check_walk_count (struct check *k, uint64_t first, uint64_t end,
                             uint64_t times)
  __attribute__ ((__warn_unused_result__));

/* What the L2 table at OFF, which is named TIMES times, refers to. */
extern int check_walk_l2 (struct check *k, uint64_t off, uint64_t times,
                          bool active)
  __attribute__ ((__warn_unused_result__));

/* The active L1 table and those of snapshots, with all that they lead to
 * (check-l1.c).
 */
extern int check_l1_walk (struct check *k)
  __attribute__ ((__warn_unused_result__));

/* A misaligned L2 table is about to be read.  There may be as many as would
 * fill the file; more are refused: -EIO with a message.
 */
extern int check_l1_misaligned (struct check *k)
  __attribute__ ((__warn_unused_result__));

/* The references of bitmaps (check-bitmaps.c). */
extern int check_bitmaps_walk (struct check *k)
  __attribute__ ((__warn_unused_result__));

/* Report a problem (a line as for printf). */
extern void check_walk_problem (const struct check *k, const char *fmt, ...)
  __attribute__ ((__format__ (__printf__, 2, 3)));

/* N units of work are done. */
extern void check_walk_progress (struct check *k, uint64_t n);

/* Read metadata; beyond the end of the file are zeroes.  Counts an error. */
extern int check_walk_read (struct check *k, void *buf, uint64_t len,
                            uint64_t off, const char *what)
  __attribute__ ((__warn_unused_result__));

#endif /* CHECK_WALK_H */
