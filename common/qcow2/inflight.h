/* SPDX-License-Identifier: BSD-3-Clause */
/* Guest ranges whose mapping is being changed.
 *
 * An allocating write, a zero or a trim owns its range, rounded out to
 * whole clusters, from before it looks up the mapping until after it has
 * changed it.  Whoever wants an overlapping range waits; disjoint ranges
 * do not wait for each other.  In-place overwrites and reads do not come
 * here.
 *
 * Overlapping ranges get their turn in the order in which they came.
 *
 * A thread owns at most one range at a time, so there is no deadlock.
 * No lock is held while a range is owned.
 */

#ifndef INFLIGHT_H
#define INFLIGHT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "locks.h"

struct inflight_range {         /* on the owner's stack */
  uint64_t start, end;          /* bytes, end exclusive */
  struct inflight_range *next;  /* list, in order of arrival */
};

struct inflight {
  struct ranked_mutex lock;     /* LOCK_INFLIGHT: protects the list */
  pthread_cond_t changed;
  struct inflight_range *owned; /* those that own and those that wait */
};

extern void inflight_init (struct inflight *f);
extern void inflight_destroy (struct inflight *f);

/* Wait until no range that came earlier overlaps [START, END), then own
 * it.
 */
extern void inflight_begin (struct inflight *f, struct inflight_range *r,
                            uint64_t start, uint64_t end);

/* Give the end of an owned range back early: it becomes [start, END). */
extern void inflight_shrink (struct inflight *f, struct inflight_range *r,
                             uint64_t end);

extern void inflight_end (struct inflight *f, struct inflight_range *r);

#endif /* INFLIGHT_H */
