/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranges that may overlap, as disjoint ones that know how often they are
 * covered.  So 65536 snapshots with one L1 table, or bitmaps with one
 * table, cost what one of them costs.
 */

#ifndef CHECK_RANGES_H
#define CHECK_RANGES_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed: empty. */
struct check_ranges {
  struct check_edge {
    uint64_t at;
    int64_t change;             /* of how often it is covered, from AT on */
  } *edges;
  size_t nr, room;
};

/* Cover [START, END) once more.  -ENOMEM with a message. */
extern int check_ranges_add (struct check_ranges *r,
                             uint64_t start, uint64_t end)
  __attribute__ ((__warn_unused_result__));

/* FN is called for what is covered, in order.  Returns 0, or what FN
 * returned if that was not 0.
 */
typedef int check_range_fn (void *opaque, uint64_t start, uint64_t end,
                            uint64_t times);
extern int check_ranges_each (struct check_ranges *r, check_range_fn *fn,
                              void *opaque)
  __attribute__ ((__warn_unused_result__));

extern void check_ranges_free (struct check_ranges *r);

#endif /* CHECK_RANGES_H */
