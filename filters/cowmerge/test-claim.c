/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads claim random ranges.  What is claimed exclusively has one owner
 * and what is shared has no exclusive one; and nobody overtakes.
 */

#undef NDEBUG
#include <config.h>

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "claim.h"

#define NR_THREADS 8
#define NR_CLUSTERS 16
#define ROUNDS 3000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct claims claims;
static unsigned shared[NR_CLUSTERS], exclusive[NR_CLUSTERS];

static void *
run (void *arg)
{
  unsigned seed = *(unsigned *) arg;
  struct claim c;

  for (unsigned i = 0; i < ROUNDS; ++i) {
    unsigned first = rand_r (&seed) % NR_CLUSTERS;
    unsigned last = first + rand_r (&seed) % 4;
    unsigned *count = rand_r (&seed) % 2 ? exclusive : shared;

    if (last >= NR_CLUSTERS)
      last = NR_CLUSTERS - 1;
    pthread_mutex_lock (&lock);
    if (i % 5 == 0) {
      last = first;
      count = exclusive;
      if (!claim_try_locked (&claims, &c, first)) {
        pthread_mutex_unlock (&lock);
        continue;
      }
    }
    else
      claim_begin_locked (&claims, &lock, &c, first, last,
                          count == exclusive);
    for (unsigned j = first; j <= last; ++j) {
      count[j]++;
      assert (exclusive[j] == 0 || exclusive[j] + shared[j] == 1);
    }
    pthread_mutex_unlock (&lock);
    sched_yield ();
    pthread_mutex_lock (&lock);
    for (unsigned j = first; j <= last; ++j)
      count[j]--;
    claim_end_locked (&claims, &c);
    pthread_mutex_unlock (&lock);
  }
  return NULL;
}

/* An exclusive claim that waits is not overtaken by shared ones which come
 * later, though these go with the one that is granted.
 */
static unsigned granted;

static void *
wait_shared (void *arg)
{
  struct claim *c = arg;

  pthread_mutex_lock (&lock);
  assert (claim_begin_locked (&claims, &lock, c, 3, 3, false));
  assert (granted == 1);
  granted = 2;
  claim_end_locked (&claims, c);
  pthread_mutex_unlock (&lock);
  return NULL;
}

static void *
wait_exclusive (void *arg)
{
  struct claim *c = arg;

  pthread_mutex_lock (&lock);
  assert (claim_begin_locked (&claims, &lock, c, 0, 9, true));
  assert (granted == 0);
  granted = 1;
  claim_end_locked (&claims, c);
  pthread_mutex_unlock (&lock);
  return NULL;
}

/* Until NR claims wait. */
static void
wait_for (unsigned nr)
{
  unsigned waiters;

  do {
    pthread_mutex_lock (&lock);
    waiters = claims.waiters;
    pthread_mutex_unlock (&lock);
    usleep (1000);
  } while (waiters < nr);
}

static void
test_order (void)
{
  struct claim first, second, third, other;
  pthread_t t1, t2;

  pthread_mutex_lock (&lock);
  assert (!claim_begin_locked (&claims, &lock, &first, 2, 4, false));
  assert (!claim_begin_locked (&claims, &lock, &other, 4, 4, false));
  claim_end_locked (&claims, &other);
  pthread_mutex_unlock (&lock);
  assert (pthread_create (&t1, NULL, wait_exclusive, &second) == 0);
  wait_for (1);
  assert (pthread_create (&t2, NULL, wait_shared, &third) == 0);
  wait_for (2);
  pthread_mutex_lock (&lock);
  assert (!claim_try_locked (&claims, &other, 9));
  assert (claim_try_locked (&claims, &other, 10));
  claim_end_locked (&claims, &other);
  assert (granted == 0);
  claim_end_locked (&claims, &first);
  pthread_mutex_unlock (&lock);
  pthread_join (t1, NULL);
  pthread_join (t2, NULL);
  assert (granted == 2);
}

int
main (void)
{
  pthread_t threads[NR_THREADS];
  unsigned seeds[NR_THREADS];

  claim_init (&claims);
  test_order ();
  for (unsigned i = 0; i < NR_THREADS; ++i) {
    seeds[i] = i + 1;
    assert (pthread_create (&threads[i], NULL, run, &seeds[i]) == 0);
  }
  for (unsigned i = 0; i < NR_THREADS; ++i)
    pthread_join (threads[i], NULL);
  assert (list_empty (&claims.list));
  claim_destroy (&claims);
  return EXIT_SUCCESS;
}
