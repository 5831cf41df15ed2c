/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit test of inflight.c: ranges that overlap are never owned at the same
 * time, a wide range gets its turn, and the given back end is free.
 */

#include <config.h>

#include "inflight.h"
#include "test-mem.h"

#define THREADS 6
#define ROUNDS 2000
#define UNITS 64

static struct inflight inflight;
static int owner[UNITS];        /* protected by nothing but the ranges */
static _Atomic int wide_turns;
static _Atomic bool stop;

static void
own (uint64_t start, uint64_t end, int me)
{
  uint64_t i;

  for (i = start; i < end; ++i) {
    CHECK (owner[i] == 0);
    owner[i] = me;
  }
}

static void
disown (uint64_t start, uint64_t end, int me)
{
  uint64_t i;

  for (i = start; i < end; ++i) {
    CHECK (owner[i] == me);
    owner[i] = 0;
  }
}

static void *
worker (void *arg)
{
  const int me = *(int *) arg;
  uint64_t seed = 1000 + me, start, end, mid;
  struct inflight_range r;
  int i;

  for (i = 0; i < ROUNDS; ++i) {
    start = test_below (&seed, UNITS);
    end = start + 1 + test_below (&seed, UNITS - start);
    mid = start + 1 + test_below (&seed, end - start);
    inflight_begin (&inflight, &r, start, end);
    own (start, end, me);
    disown (mid, end, me);
    inflight_shrink (&inflight, &r, mid);
    disown (start, mid, me);
    inflight_end (&inflight, &r);
  }
  return NULL;
}

static void *
wide_worker (void *arg)
{
  const int me = *(int *) arg;
  struct inflight_range r;

  while (!stop) {
    inflight_begin (&inflight, &r, 0, UNITS);
    own (0, UNITS, me);
    disown (0, UNITS, me);
    inflight_end (&inflight, &r);
    wide_turns++;
  }
  return NULL;
}

int
main (void)
{
  pthread_t threads[THREADS], wide;
  int ids[THREADS + 1], i;
  struct inflight_range a, b;

  inflight_init (&inflight);

  /* Disjoint ranges do not wait. */
  inflight_begin (&inflight, &a, 0, 10);
  inflight_begin (&inflight, &b, 10, 20);
  inflight_end (&inflight, &a);
  inflight_begin (&inflight, &a, 0, 10);
  inflight_shrink (&inflight, &b, 15);
  inflight_end (&inflight, &b);
  inflight_begin (&inflight, &b, 15, 20);
  inflight_end (&inflight, &a);
  inflight_end (&inflight, &b);

  for (i = 0; i <= THREADS; ++i)
    ids[i] = i + 1;
  CHECK_OK (pthread_create (&wide, NULL, wide_worker, &ids[THREADS]));
  for (i = 0; i < THREADS; ++i)
    CHECK_OK (pthread_create (&threads[i], NULL, worker, &ids[i]));
  for (i = 0; i < THREADS; ++i)
    CHECK_OK (pthread_join (threads[i], NULL));
  stop = true;
  CHECK_OK (pthread_join (wide, NULL));
  CHECK (wide_turns > 10);
  inflight_destroy (&inflight);
  return 0;
}
