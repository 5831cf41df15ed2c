/* SPDX-License-Identifier: BSD-3-Clause */
/* See pool.h.
 *
 * A slot is the right to be in job->work.  It is either free, or held by
 * one thread, or on its way to one (job->granted, pool.grants).  A thread
 * that has no more use for its slot hands it on: to the owner of the first
 * job in the queue that waits without one, else to an idle worker; if
 * nobody needs it, it is free.  So
 *
 *   slots in use + free slots = slots, and
 *   while a job in the queue has no slot, none is free.
 *
 * Since at least one slot in use belongs to the owner of a job, or is free,
 * slots - 1 workers are enough.
 *
 * One lock, never held while working.
 */

#include <config.h>

#include <stddef.h>
#include <stdlib.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>

#include "scope-lock.h"
#include "pool.h"

static struct {
  pthread_mutex_t lock;
  pthread_cond_t cond;          /* idle workers wait on it */
  pthread_t *workers;
  unsigned nr_workers;
  unsigned free;                /* slots */
  unsigned idle;                /* workers that wait without a grant */
  unsigned grants;              /* slots on their way to workers */
  bool quit;
  struct job *head, **tail;     /* jobs that have unclaimed parts */
} pool = {
  .lock = PTHREAD_MUTEX_INITIALIZER,
  .cond = PTHREAD_COND_INITIALIZER,
  .tail = &pool.head,
};

static void
enqueue_locked (struct job *job)
{
  job->next = NULL;
  *pool.tail = job;
  pool.tail = &job->next;
}

static void
dequeue_locked (struct job *job)
{
  struct job **p = &pool.head;

  while (*p != job)
    p = &(*p)->next;
  *p = job->next;
  if (pool.tail == &job->next)
    pool.tail = p;
}

/* Nobody takes another part of it. */
static void
close_locked (struct job *job)
{
  if (job->claimed < job->nr) {
    job->claimed = job->nr;
    dequeue_locked (job);
  }
}

static bool
is_finished_locked (const struct job *job)
{
  return job->claimed == job->nr && job->inside == 0;
}

/* Give a slot to an idle worker.  False if there is none. */
static bool
grant_worker_locked (void)
{
  if (pool.idle == 0)
    return false;
  pool.idle--;
  pool.grants++;
  pthread_cond_signal (&pool.cond);
  return true;
}

/* The calling thread gives up its slot. */
static void
hand_on_locked (void)
{
  for (struct job *job = pool.head; job != NULL; job = job->next) {
    if (job->waiting && !job->granted) {
      job->granted = true;
      pthread_cond_signal (&job->cond);
      return;
    }
  }
  if (pool.head == NULL || !grant_worker_locked ())
    pool.free++;
}

/* Work on JOB with the slot that the calling thread holds. */
static void
work_locked (struct job *job)
{
  job->inside++;
  pthread_mutex_unlock (&pool.lock);
  job->work (job);
  pthread_mutex_lock (&pool.lock);
  job->inside--;
}

static void *
worker (void *arg)
{
  (void) arg;
  SCOPE_LOCK (&pool.lock);

  for (;;) {
    pool.idle++;
    while (pool.grants == 0 && !pool.quit)
      pthread_cond_wait (&pool.cond, &pool.lock);
    if (pool.grants == 0)
      return NULL;
    pool.grants--;

    while (pool.head) {
      struct job *job = pool.head;

      work_locked (job);
      /* Its owner may free it from here on. */
      if (is_finished_locked (job) && job->waiting)
        pthread_cond_signal (&job->cond);
    }
    hand_on_locked ();
  }
}

int
pool_start (unsigned slots)
{
  pool.free = slots;
  pool.workers = calloc (slots, sizeof *pool.workers);
  if (pool.workers == NULL)
    return -ENOMEM;
  while (pool.nr_workers < slots - 1) {
    const int err =
      pthread_create (&pool.workers[pool.nr_workers], NULL, worker, NULL);

    if (err != 0)
      return -err;
    pool.nr_workers++;
  }
  return 0;
}

void
pool_stop (void)
{
  {
    SCOPE_LOCK (&pool.lock);
    pool.quit = true;
    pthread_cond_broadcast (&pool.cond);
  }
  while (pool.nr_workers > 0)
    pthread_join (pool.workers[--pool.nr_workers], NULL);
  free (pool.workers);
  pool.workers = NULL;
}

int
pool_run (struct job *job)
{
  bool slot = false;

  job->claimed = job->inside = 0;
  job->err = 0;
  job->waiting = job->granted = false;
  pthread_cond_init (&job->cond, NULL);

  pthread_mutex_lock (&pool.lock);
  enqueue_locked (job);
  if (pool.free > 0) {
    pool.free--;
    slot = true;
  }
  for (unsigned n = 1; n < job->nr && pool.free > 0; ++n) {
    if (!grant_worker_locked ())
      break;
    pool.free--;
  }

  for (;;) {
    if (slot) {
      work_locked (job);
      hand_on_locked ();
      slot = false;
    }
    if (is_finished_locked (job))
      break;
    job->waiting = true;
    while (!job->granted && !is_finished_locked (job))
      pthread_cond_wait (&job->cond, &pool.lock);
    job->waiting = false;
    slot = job->granted;
    job->granted = false;
  }
  pthread_mutex_unlock (&pool.lock);

  pthread_cond_destroy (&job->cond);
  return job->err;
}

int
pool_claim (struct job *job)
{
  SCOPE_LOCK (&pool.lock);
  int part;

  if (job->claimed == job->nr)
    return -1;
  part = job->claimed++;
  if (job->claimed == job->nr)
    dequeue_locked (job);
  return part;
}

void
pool_fail (struct job *job, int r)
{
  SCOPE_LOCK (&pool.lock);

  if (job->err == 0)
    job->err = r;
  close_locked (job);
}
