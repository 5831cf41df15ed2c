/* SPDX-License-Identifier: BSD-3-Clause */
/* Tables of 64-bit entries that an image names, and that may overlap if it
 * lies: L1 tables, tables of bitmaps.
 */

#ifndef CHECK_TABLES_H
#define CHECK_TABLES_H

#include <stdint.h>

#include "check-ranges.h"
#include "check-walk.h"

/* Tables of one kind; empty if only K and WHAT are set. */
struct check_tables {
  struct check *k;
  const char *what;             /* for messages: "L1 table" */
  struct check_ranges clusters; /* that the tables are in */
  struct check_ranges bytes;    /* the tables, as far as the file has them */
};

/* One table more: NR entries at offset OFF.  What the file does not have is a
 * corruption.  -ENOMEM with a message, counted in check_errors.
 */
extern int check_tables_add (struct check_tables *t, uint64_t off,
                             uint64_t nr)
  __attribute__ ((__warn_unused_result__));

/* Count the clusters of all tables, then hand each entry to FN: V, at offset
 * OFF of the file, which is part of TIMES tables.  Returns 0, -errno of
 * reading (reported and counted) or of counting, or what FN returned if that
 * was not 0.  FN must not use k->l2.
 */
typedef int check_entry_fn (void *opaque, uint64_t off, uint64_t v,
                            uint64_t times);
extern int check_tables_each (struct check_tables *t, check_entry_fn *fn,
                              void *opaque)
  __attribute__ ((__warn_unused_result__));

extern void check_tables_free (struct check_tables *t);

#endif /* CHECK_TABLES_H */
