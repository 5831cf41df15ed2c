/* SPDX-License-Identifier: BSD-3-Clause */
/* Claims: which clusters have a request on its way to the plugin.
 *
 * A claim covers a range of clusters.  Shared claims go together; an
 * exclusive one goes with no other.  Claims are granted in the order in
 * which they came, as far as they overlap, so nobody starves.
 *
 * A thread that holds a claim never waits for another claim, nor for
 * memory: only for the plugin.  So claims cannot deadlock.
 */

#ifndef CLAIM_H
#define CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include <pthread.h>

#include "list.h"

struct claim {
  struct list link;
  uint64_t first, last;         /* cluster numbers, both included */
  bool exclusive;
};

struct claims {
  struct list list;             /* in the order in which they came */
  pthread_cond_t cond;
  unsigned waiters;
};

/* All of these are called with the lock of the overlay held. */

extern void claim_init (struct claims *cs);
extern void claim_destroy (struct claims *cs);

/* Claim the clusters FIRST..LAST, where C is the caller's and lives until
 * claim_end_locked.  Waits, with LOCK released, until it is granted.
 * Returns true if it had to wait: what the caller knew may be out of date.
 */
extern bool claim_begin_locked (struct claims *cs, pthread_mutex_t *lock,
                                struct claim *c, uint64_t first,
                                uint64_t last, bool exclusive);

/* Claim the cluster IDX exclusively if nobody claims it or waits for it. */
extern bool claim_try_locked (struct claims *cs, struct claim *c,
                              uint64_t idx)
  __attribute__ ((__warn_unused_result__));

extern void claim_end_locked (struct claims *cs, struct claim *c);

/* Wait, with LOCK released, until some claim ends or claim_wake_locked. */
extern void claim_wait_locked (struct claims *cs, pthread_mutex_t *lock);
extern void claim_wake_locked (struct claims *cs);

#endif /* CLAIM_H */
