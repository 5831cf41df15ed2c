/* SPDX-License-Identifier: BSD-3-Clause */
/* The pool under jobs of many threads: each part is done once, never more
 * at a time than there are slots, errors end a job early, and all slots
 * come back.
 */

#undef NDEBUG
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "pool.h"

#define MAX_PARTS 40
#define OWNERS 12
#define JOBS 300

struct test_job {
  struct job job;               /* first */
  atomic_int done[MAX_PARTS];
  int fail;                     /* part that fails, or -1 */
};

static unsigned slots;
static atomic_uint active, max_active;

static void
enter (void)
{
  const unsigned n = atomic_fetch_add (&active, 1) + 1;
  unsigned m = atomic_load (&max_active);

  assert (n <= slots);
  while (n > m && !atomic_compare_exchange_weak (&max_active, &m, n))
    ;
}

static void
work (struct job *job)
{
  struct test_job *t = (struct test_job *) job;
  int part;

  enter ();
  while ((part = pool_claim (job)) >= 0) {
    atomic_fetch_add (&t->done[part], 1);
    if (part == t->fail)
      pool_fail (job, -ENOSPC);
    else if (part % 5 == 0)
      sched_yield ();
  }
  atomic_fetch_sub (&active, 1);
}

static void *
owner (void *arg)
{
  unsigned seed = (unsigned) (size_t) arg;

  for (int i = 0; i < JOBS; ++i) {
    struct test_job t;
    int r;

    memset (&t, 0, sizeof t);
    t.job.work = work;
    t.job.nr = rand_r (&seed) % 3 ? 1 : 1 + rand_r (&seed) % MAX_PARTS;
    t.fail = rand_r (&seed) % 8 ? -1 : (int) (rand_r (&seed) % t.job.nr);
    r = pool_run (&t.job);
    assert (r == (t.fail >= 0 ? -ENOSPC : 0));
    for (unsigned n = 0; n < MAX_PARTS; ++n) {
      const int d = atomic_load (&t.done[n]);

      if (t.fail < 0)
        assert (d == (n < t.job.nr));
      else
        assert (d <= (n < t.job.nr));
    }
  }
  return NULL;
}

static void
slow_work (struct job *job)
{
  const struct timespec ts = { 0, 5000000 };

  enter ();
  while (pool_claim (job) >= 0)
    nanosleep (&ts, NULL);
  atomic_fetch_sub (&active, 1);
}

static void
test (unsigned n)
{
  pthread_t threads[OWNERS];
  struct job one = { .work = slow_work, .nr = MAX_PARTS };

  slots = n;
  assert (pool_start (slots) == 0);
  for (size_t i = 0; i < OWNERS; ++i)
    assert (pthread_create (&threads[i], NULL, owner,
                            (void *) (i + 1)) == 0);
  for (size_t i = 0; i < OWNERS; ++i)
    pthread_join (threads[i], NULL);

  /* One job gets all of them: none was lost. */
  atomic_store (&max_active, 0);
  assert (pool_run (&one) == 0);
  assert (atomic_load (&max_active) == slots);
  pool_stop ();
}

int
main (int argc, char *argv[])
{
  /* The pool is one a process. */
  test (argc > 1 ? (unsigned) atoi (argv[1]) : 4);
  exit (EXIT_SUCCESS);
}
