/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend that can lose power, and whose calls can be made to fail.
 *
 * It passes all calls on to a memory backend and keeps a log of them.
 * From the log it makes the file as a crash at any moment could have left
 * it:
 *
 *  - What a successful flush covered (writes that had ended before the
 *    flush began), and FUA writes, is there.
 *  - Of everything else, also of the call that was under way, any part may
 *    be there: each write, zero, punch and change of length is lost or
 *    kept for itself, whole or only some of its 512-byte sectors, or just
 *    the growth of the file that came with it.
 *  - After a failed flush, what it should have covered may be lost even
 *    though a later flush succeeds: the kernel reports a failed write once,
 *    and then forgets it.
 *
 * Moments are values of a clock, which counts the beginnings and ends of
 * calls, and which several backends may share (image and data file).
 *
 * Thread-safe, but only what is done by one thread has the same log each
 * time.
 */

#ifndef BACKEND_CRASH_H
#define BACKEND_CRASH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"

struct crash_clock {
  _Atomic uint64_t now;
};

/* A moment that is later than all before; for clients, to tell what of
 * theirs came before what.
 */
static inline uint64_t
crash_clock_tick (struct crash_clock *clock)
{
  return atomic_fetch_add (&clock->now, 1) + 1;
}

/* Kinds of calls; they can be combined. */
enum crash_call {
  CRASH_PREAD = 1 << 0,
  CRASH_PWRITE = 1 << 1,
  CRASH_FLUSH = 1 << 2,
  CRASH_ZERO = 1 << 3,
  CRASH_PUNCH = 1 << 4,
  CRASH_TRUNCATE = 1 << 5,
  CRASH_ALL_CALLS = (1 << 6) - 1,
};

/* Wrap MEM, which from now on belongs to the new backend.  CLOCK must
 * live as long.  -ENOMEM.
 */
extern int backend_crash_create (struct backend *mem,
                                 struct crash_clock *clock,
                                 struct backend **b)
  __attribute__ ((__warn_unused_result__));

/* --- Power loss --- */

/* The moments up to now at which a crash makes a difference, ascending:
 * one within each call that changes something, one after each flush and FUA
 * write, and the beginning.  *TIMES is for the caller to free.  -ENOMEM.
 */
extern int backend_crash_times (struct backend *b, uint64_t **times,
                                size_t *nr)
  __attribute__ ((__warn_unused_result__));

/* The number of calls whose fate is open if the crash is at moment T. */
extern size_t backend_crash_unsynced (struct backend *b, uint64_t t);

/* What becomes of them. */
enum crash_keep {
  CRASH_KEEP_NONE,
  CRASH_KEEP_ALL,
  CRASH_KEEP_ONLY,      /* number ARG and no other */
  CRASH_LOSE_ONLY,      /* all but number ARG */
  CRASH_KEEP_RANDOM,    /* each whole or not at all; ARG is the seed */
  CRASH_KEEP_TORN,      /* each in any of the ways above; ARG is the seed */
};

struct crash_choice {
  enum crash_keep keep;
  uint64_t arg;
};

/* The file after a crash at moment T, as a new memory backend.  Cheapest if
 * T does not go backwards from call to call.  -ENOMEM.
 */
extern int backend_crash_image (struct backend *b, uint64_t t,
                                const struct crash_choice *choice,
                                struct backend **image)
  __attribute__ ((__warn_unused_result__));

/* The log, for people.  Calls up to moment T. */
extern void backend_crash_dump (struct backend *b, uint64_t t);

/* --- Faults --- */

struct crash_fault {
  unsigned calls;       /* set of enum crash_call */
  uint64_t nr;          /* the first NR of these succeed, then one fails */
  int err;              /* positive errno */
  bool forever;         /* so do all of these calls that come after it */
  bool partial;         /* writes and zeroes: the first half is done */
};

/* Make calls fail from now on; NULL = no longer.  Calls are counted from
 * here.
 */
extern void backend_crash_set_fault (struct backend *b,
                                     const struct crash_fault *fault);

/* Calls of the given kinds since the last backend_crash_set_fault (or the
 * creation), failed ones included; how many were made to fail.
 */
extern uint64_t backend_crash_calls (struct backend *b, unsigned calls);
extern uint64_t backend_crash_failed (struct backend *b);

#endif /* BACKEND_CRASH_H */
