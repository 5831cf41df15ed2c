/* SPDX-License-Identifier: BSD-3-Clause */
/* When has every request ended that was under way at a given moment?
 *
 * A host cluster that was unmapped may be reused only after every request
 * that could have looked it up before has ended (I4).  Requests enter and
 * leave; the generation number advances only when no request of the
 * generation before the current one is left.  So what was retired in
 * generation N is out of reach when the generation is N + 2 or more.
 *
 * Enter and leave cost one atomic operation each, on a counter that few
 * threads share.
 */

#ifndef EPOCH_H
#define EPOCH_H

#include <stdbool.h>
#include <stdint.h>

#define EPOCH_STRIPES 16

struct epoch_stripe {
  _Alignas (64) _Atomic int64_t count[2];
};

struct epoch {
  _Atomic uint64_t generation;
  struct epoch_stripe stripes[EPOCH_STRIPES];
};

/* All zero is a valid initial state as well. */
extern void epoch_init (struct epoch *e);

/* A request begins.  Returns a token for epoch_leave.  Never blocks. */
extern unsigned epoch_enter (struct epoch *e);
extern void epoch_leave (struct epoch *e, unsigned token);

/* The current generation. */
extern uint64_t epoch_generation (struct epoch *e);

/* Advance the generation if no request of the one before is left.
 * Only one thread at a time may call this (the committer).
 */
extern bool epoch_advance (struct epoch *e);

#endif /* EPOCH_H */
