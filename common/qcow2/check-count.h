/* SPDX-License-Identifier: BSD-3-Clause */
/* References to host clusters, counted.
 *
 * Costs one byte a cluster, in pieces that are allocated where something is
 * counted, so memory follows what is referenced and not how long a sparse
 * file claims to be.  Counts of 255 and more are kept apart.
 */

#ifndef CHECK_COUNT_H
#define CHECK_COUNT_H

#include <stdint.h>

struct check_count;

/* MAX_BYTES bounds the memory. -ENOMEM. */
extern int check_count_create (uint64_t max_bytes, struct check_count **cc)
  __attribute__ ((__warn_unused_result__));
extern void check_count_free (struct check_count *cc);

/* TIMES more references to CLUSTER_IDX, but not more than LIMIT in total:
 * *EXCESS is how many of them are not counted.  -ENOMEM: also when MAX_BYTES
 * is reached.
 */
extern int check_count_add (struct check_count *cc, uint64_t cluster_idx,
                            uint64_t times, uint64_t limit, uint64_t *excess)
  __attribute__ ((__warn_unused_result__));

extern uint64_t check_count_get (struct check_count *cc,
                                 uint64_t cluster_idx);

/* The first cluster at or after CLUSTER_IDX that has references; UINT64_MAX
 * = none.
 */
extern uint64_t check_count_next (struct check_count *cc,
                                  uint64_t cluster_idx);

/* One more than the last cluster that has references; 0 = none. */
extern uint64_t check_count_end (struct check_count *cc);

#endif /* CHECK_COUNT_H */
