/* SPDX-License-Identifier: BSD-3-Clause */
/* Grace periods for host clusters that lost their last reference.
 *
 * Invariant: a request that entered in generation G is counted in the
 * counters of parity G & 1 until it leaves, and the generation reaches
 * G + 2 only after they were seen at zero.
 *
 * Why seeing each stripe at zero once is enough: while the generation is
 * G, a request that counts itself in the parity of G - 1 notices at its
 * second look at the generation, and takes itself out again before it
 * does anything.  All that such a straggler can do is to delay
 * epoch_advance.
 *
 * No locks: all operations are sequentially consistent atomics, since the
 * increment of a counter must be visible before the second look.
 */

#include <config.h>

#include <stdatomic.h>

#include "epoch.h"

/* Threads get their stripes in turn, at their first request. */
static unsigned
my_stripe (void)
{
  static _Atomic unsigned next;
  static _Thread_local unsigned mine; /* stripe + 1 */

  if (mine == 0)
    mine = atomic_fetch_add_explicit (&next, 1, memory_order_relaxed) %
      EPOCH_STRIPES + 1;
  return mine - 1;
}

void
epoch_init (struct epoch *e)
{
  unsigned i;

  atomic_init (&e->generation, 0);
  for (i = 0; i < EPOCH_STRIPES; ++i) {
    atomic_init (&e->stripes[i].count[0], 0);
    atomic_init (&e->stripes[i].count[1], 0);
  }
}

unsigned
epoch_enter (struct epoch *e)
{
  unsigned stripe = my_stripe ();
  uint64_t generation;

  for (;;) {
    generation = atomic_load (&e->generation);
    atomic_fetch_add (&e->stripes[stripe].count[generation & 1], 1);
    if (atomic_load (&e->generation) == generation)
      return stripe << 1 | (generation & 1);
    atomic_fetch_sub (&e->stripes[stripe].count[generation & 1], 1);
  }
}

void
epoch_leave (struct epoch *e, unsigned token)
{
  atomic_fetch_sub (&e->stripes[token >> 1].count[token & 1], 1);
}

uint64_t
epoch_generation (struct epoch *e)
{
  return atomic_load (&e->generation);
}

bool
epoch_advance (struct epoch *e)
{
  uint64_t generation = atomic_load (&e->generation);
  unsigned before = (generation & 1) ^ 1;
  unsigned i;

  for (i = 0; i < EPOCH_STRIPES; ++i) {
    if (atomic_load (&e->stripes[i].count[before]) != 0)
      return false;
  }
  atomic_store (&e->generation, generation + 1);
  return true;
}
