/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit test of epoch.c: an object that was retired in generation N is
 * destroyed in generation N + 2; no reader may see it destroyed.
 */

#include <config.h>

#include <sched.h>

#include "epoch.h"
#include "test-mem.h"

#define READERS 4
#define ROUNDS 3000

static struct epoch epoch;

struct object {
  _Atomic bool alive;
};

static struct object *_Atomic current;
static _Atomic bool stop;
static _Atomic uint64_t looks;

static void *
reader (void *arg)
{
  struct object *o;
  unsigned token;
  int i;

  (void) arg;
  while (!stop) {
    token = epoch_enter (&epoch);
    o = current;
    for (i = 0; i < 20; ++i)
      CHECK (o->alive);
    epoch_leave (&epoch, token);
    looks++;
  }
  return NULL;
}

static void
test_alone (void)
{
  unsigned t, u;

  epoch_init (&epoch);
  CHECK (epoch_generation (&epoch) == 0);
  CHECK (epoch_advance (&epoch));
  t = epoch_enter (&epoch);           /* in generation 1 */
  CHECK (epoch_advance (&epoch));     /* nobody is in 0 */
  CHECK (epoch_generation (&epoch) == 2);
  CHECK (!epoch_advance (&epoch));    /* T is in 1 */
  u = epoch_enter (&epoch);           /* in generation 2 */
  CHECK (!epoch_advance (&epoch));
  epoch_leave (&epoch, t);
  CHECK (epoch_advance (&epoch));
  CHECK (!epoch_advance (&epoch));    /* U is in 2 */
  epoch_leave (&epoch, u);
  CHECK (epoch_advance (&epoch));
  CHECK (epoch_generation (&epoch) == 4);
}

static void
test_threads (void)
{
  static struct object objects[ROUNDS];
  static uint64_t retired[ROUNDS];
  pthread_t threads[READERS];
  int i, done = 0;

  epoch_init (&epoch);
  objects[0].alive = true;
  current = &objects[0];
  for (i = 0; i < READERS; ++i)
    CHECK_OK (pthread_create (&threads[i], NULL, reader, NULL));
  for (i = 1; i < ROUNDS; ++i) {
    objects[i].alive = true;
    current = &objects[i];
    retired[i-1] = epoch_generation (&epoch);
    epoch_advance (&epoch);
    for (; done < i && retired[done] + 2 <= epoch_generation (&epoch); ++done)
      objects[done].alive = false;
    if (i % 8 == 0)
      sched_yield ();
    while (looks == 0)
      ;
  }
  stop = true;
  for (i = 0; i < READERS; ++i)
    CHECK_OK (pthread_join (threads[i], NULL));
  CHECK (epoch_advance (&epoch));
  CHECK (epoch_advance (&epoch));
}

int
main (void)
{
  test_alone ();
  test_threads ();
  return 0;
}
