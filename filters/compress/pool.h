/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads that work on the parts of requests, and the limit on how many
 * work at once.
 *
 * Working takes a slot, of which there are as many as pool_start was told,
 * for all requests of all connections together.  The thread that has the
 * request works as well, so that one with a single part never changes
 * threads, and one of many parts keeps all slots busy.
 */

#ifndef POOL_H
#define POOL_H

#include <stdbool.h>
#include <pthread.h>

/* One request, owned by the thread that calls pool_run. */
struct job {
  /* Works on the parts that it gets from pool_claim until there are no
   * more; called in several threads at once.
   */
  void (*work) (struct job *job);
  unsigned nr;                  /* parts: 0 .. nr-1 */

  /* Private, protected by the pool's lock. */
  unsigned claimed;             /* parts that somebody took */
  unsigned inside;              /* threads in work */
  int err;                      /* of the first part that failed */
  bool waiting;                 /* the owner waits on cond ... */
  bool granted;                 /* ... and has been given a slot */
  pthread_cond_t cond;
  struct job *next;             /* in the queue while parts are unclaimed */
};

/* SLOTS >= 1.  Starts threads: call it after the fork.  0 or -errno. */
extern int pool_start (unsigned slots)
  __attribute__ ((__warn_unused_result__));

/* No pool_run is running any more.  Harmless without pool_start. */
extern void pool_stop (void);

/* Run all parts of the job, of which WORK and NR are set, and wait for
 * them.  0, or the -errno of the first part that failed; then the parts
 * that nobody had begun are left out.
 */
extern int pool_run (struct job *job)
  __attribute__ ((__warn_unused_result__));

/* For WORK: the next part, or -1. */
extern int pool_claim (struct job *job);

/* For WORK: a part failed; R is -errno. */
extern void pool_fail (struct job *job, int r);

#endif /* POOL_H */
