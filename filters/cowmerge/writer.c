/* SPDX-License-Identifier: BSD-3-Clause */
/* The threads that write out in the background: what is old, what a flush
 * wants down, and what takes memory that will soon be needed.
 *
 * They are a help, not a bottleneck: a client's thread that needs memory
 * at once, or flushes, writes out itself.  Their number is small and
 * fixed.
 *
 * Invariant: a kick that comes after WORK began to look is not lost, since
 * it changes the number which the thread compares before it sleeps.
 *
 * Locks: one, a leaf, never held while WORK runs.
 */

#include <errno.h>
#include <stddef.h>
#include <time.h>

#include <pthread.h>

#include <nbdkit-filter.h>

#include "scope-lock.h"

#include "writer.h"

#define NR_THREADS 4

static struct {
  pthread_mutex_t lock;
  pthread_cond_t cond;
  bool (*work) (int64_t *wake);
  pthread_t threads[NR_THREADS];
  unsigned nr;                  /* of THREADS that run */
  unsigned idle;                /* of these sleep */
  int64_t next;                 /* one wakes up by then; also read without
                                   LOCK */
  uint64_t kicks;
  bool quit;
} writer = { .lock = PTHREAD_MUTEX_INITIALIZER, .next = INT64_MAX };

static void
set_next_locked (int64_t next)
{
  __atomic_store_n (&writer.next, next, __ATOMIC_SEQ_CST);
}

/* Sleep until WAKE or until something happens after the kick SEEN. */
static void
sleep_locked (int64_t wake, uint64_t seen)
{
  struct timespec ts = {
    .tv_sec = wake / 1000, .tv_nsec = wake % 1000 * 1000000
  };
  int r = 0;

  writer.idle++;
  if (wake < writer.next)
    set_next_locked (wake);
  while (!writer.quit && writer.kicks == seen && r != ETIMEDOUT) {
    if (wake == INT64_MAX)
      pthread_cond_wait (&writer.cond, &writer.lock);
    else
      r = pthread_cond_timedwait (&writer.cond, &writer.lock, &ts);
  }
  /* Others may sleep until the same time: at worst a kick too many. */
  if (wake == writer.next)
    set_next_locked (INT64_MAX);
  writer.idle--;
}

static void *
run (void *arg)
{
  uint64_t seen;

  (void) arg;
  for (;;) {
    int64_t wake = INT64_MAX;

    {
      SCOPE_LOCK (&writer.lock);
      if (writer.quit)
        return NULL;
      seen = writer.kicks;
    }
    if (writer.work (&wake))
      continue;
    SCOPE_LOCK (&writer.lock);
    sleep_locked (wake, seen);
  }
}

int
writer_start (bool (*work) (int64_t *wake))
{
  pthread_condattr_t attr;
  int r;

  writer.work = work;
  pthread_condattr_init (&attr);
  pthread_condattr_setclock (&attr, CLOCK_MONOTONIC);
  pthread_cond_init (&writer.cond, &attr);
  pthread_condattr_destroy (&attr);

  while (writer.nr < NR_THREADS) {
    r = pthread_create (&writer.threads[writer.nr], NULL, run, NULL);
    if (r != 0) {
      errno = r;
      nbdkit_error ("cowmerge: cannot start a thread: %m");
      if (writer.nr == 0)
        return -1;
      break;
    }
    writer.nr++;
  }
  return 0;
}

void
writer_stop (void)
{
  {
    SCOPE_LOCK (&writer.lock);
    writer.quit = true;
    if (writer.nr > 0)
      pthread_cond_broadcast (&writer.cond);
  }
  while (writer.nr > 0)
    pthread_join (writer.threads[--writer.nr], NULL);
}

bool
writer_running (void)
{
  return writer.nr > 0;
}

void
writer_kick (void)
{
  SCOPE_LOCK (&writer.lock);
  writer.kicks++;
  if (writer.idle > 0)
    pthread_cond_signal (&writer.cond);
}

void
writer_kick_all (void)
{
  SCOPE_LOCK (&writer.lock);
  writer.kicks++;
  if (writer.idle > 0)
    pthread_cond_broadcast (&writer.cond);
}

void
writer_wake_by (int64_t when)
{
  if (__atomic_load_n (&writer.next, __ATOMIC_SEQ_CST) <= when)
    return;
  writer_kick ();
}
