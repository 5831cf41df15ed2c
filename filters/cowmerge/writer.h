/* SPDX-License-Identifier: BSD-3-Clause */
/* The threads that write out in the background. */

#ifndef WRITER_H
#define WRITER_H

#include <stdbool.h>
#include <stdint.h>

/* Start the threads.  Each calls WORK again and again until that returns
 * false; then it sleeps until writer_kick, or until the time *WAKE (of
 * overlay_now, INT64_MAX if WORK left it alone).  WORK is called without
 * locks.  -1 with a message if no thread can be had.
 */
extern int writer_start (bool (*work) (int64_t *wake))
  __attribute__ ((__warn_unused_result__));

/* Stop the threads, when they have finished what they are at. */
extern void writer_stop (void);

extern bool writer_running (void);

/* There is work now: for one thread more, or for all.  Or there will be at
 * the time WHEN (of overlay_now): then to be called with the lock held under
 * which WORK would find it, since it is cheap only by trusting that a thread
 * which wakes up by then looks after it.
 */
extern void writer_kick (void);
extern void writer_kick_all (void);
extern void writer_wake_by (int64_t when);

#endif /* WRITER_H */
