/* SPDX-License-Identifier: BSD-3-Clause */
/* How many barriers a flush passes, and when it returns.
 *
 * Guest clusters that read as zeroes, written where clusters are reserved,
 * need one barrier, all others two (I1, I2).
 *
 * A flush returns only when what was acknowledged before it is stable
 * (I7), also if another thread is about to make it so.  Four threads meet
 * in one order: a commit (C) is under way; a write is acknowledged; a
 * flush (A) waits for C; C has released all blocks, but not yet said so,
 * when a second flush (D) begins its barrier, which covers the write.  A
 * then commits with nothing to write.  It must not return before a barrier
 * that covers the write has ended.
 *
 * Guards the commit "an empty commit waits for data that others are making
 * stable".
 */

#include <config.h>

#include <unistd.h>

#include "core.h"
#include "create.h"
#include "test-mem.h"

#define CLUSTER 65536

/* Flushes of the storage: they wait at the gate. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned started, allowed = UINT32_MAX;

static int
gated_flush (struct backend *b)
{
  unsigned nr;

  (void) b;
  pthread_mutex_lock (&lock);
  nr = ++started;
  pthread_cond_broadcast (&changed);
  while (nr > allowed)
    pthread_cond_wait (&changed, &lock);
  pthread_mutex_unlock (&lock);
  return 0;
}

static unsigned
nr_started (void)
{
  unsigned nr;

  pthread_mutex_lock (&lock);
  nr = started;
  pthread_mutex_unlock (&lock);
  return nr;
}

static void
allow (unsigned nr)
{
  pthread_mutex_lock (&lock);
  allowed = nr;
  pthread_cond_broadcast (&changed);
  pthread_mutex_unlock (&lock);
}

static void
await_flush (unsigned nr)
{
  pthread_mutex_lock (&lock);
  while (started < nr)
    pthread_cond_wait (&changed, &lock);
  pthread_mutex_unlock (&lock);
}

static struct core *core;

static void *
flush (void *returned)
{
  CHECK_OK (commit_flush (&core->commit));
  *(_Atomic bool *) returned = true;
  return NULL;
}

static void
write_cluster (unsigned idx, int byte)
{
  static uint8_t buf[CLUSTER];

  memset (buf, byte, sizeof buf);
  CHECK_OK (io_pwrite (&core->io, buf, sizeof buf, idx * CLUSTER, 0, NULL));
}

static void
test_empty_commit (void)
{
  struct commit *c = &core->commit;
  _Atomic bool c_returned = false, a_returned = false, d_returned = false;
  pthread_t c_thread, a_thread, d_thread;
  unsigned before;

  write_cluster (0, 1);
  CHECK_OK (commit_flush (c));
  before = nr_started ();
  allow (before);

  write_cluster (1, 1);
  CHECK (pthread_create (&c_thread, NULL, flush, (void *) &c_returned) == 0);
  await_flush (before + 1);
  write_cluster (0, 2);
  CHECK (pthread_create (&a_thread, NULL, flush, (void *) &a_returned) == 0);
  usleep (50000);               /* A waits for C */
  {
    MUTEX_SCOPE (&c->lock);

    allow (before + 2);         /* before and behind the entries */
    while (mcache_is_dirty (core->mcache) || c->data_flushes > 0)
      usleep (100);
    CHECK (!c_returned && !a_returned);
    CHECK (pthread_create (&d_thread, NULL, flush,
                           (void *) &d_returned) == 0);
    await_flush (before + 3);
  }

  /* A returns (wrong), or issues a barrier of its own. */
  while (!a_returned && nr_started () < before + 4)
    usleep (100);
  CHECK (!a_returned && !d_returned);

  allow (UINT32_MAX);
  CHECK (pthread_join (c_thread, NULL) == 0);
  CHECK (pthread_join (a_thread, NULL) == 0);
  CHECK (pthread_join (d_thread, NULL) == 0);
}

/* Barriers of a flush after WRITE (IDX). */
static unsigned
barriers_of (void (*change) (unsigned idx), unsigned idx)
{
  unsigned before;

  change (idx);
  before = nr_started ();
  CHECK_OK (commit_flush (&core->commit));
  return nr_started () - before;
}

static void
write_some (unsigned idx)
{
  CHECK_OK (io_pwrite (&core->io, "x", 1, idx * CLUSTER + 77, 0, NULL));
}

static void
trim (unsigned idx)
{
  CHECK_OK (io_trim (&core->io, CLUSTER, idx * CLUSTER, 0));
}

static void
test_settled (void)
{
  unsigned i, c = 10;

  /* The first ones find out that flushes are frequent, and reserve. */
  for (i = 0; i < 60; ++i)
    write_some (c++);
  CHECK (barriers_of (write_some, c++) == 2);
  CHECK (barriers_of (write_some, c++) == 2);
  CHECK (barriers_of (write_some, c++) == 2);
  for (i = 0; i < 100; ++i)
    CHECK (barriers_of (write_some, c++) == 1);
  /* In place; gone. */
  CHECK (barriers_of (write_some, 5) == 1);
  CHECK (barriers_of (trim, 5) == 1);
  /* A cluster that was used before, and holds what the trim has left. */
  CHECK (barriers_of (write_some, 5) == 2);
  CHECK (barriers_of (write_some, c++) == 1);
  /* More at once than is reserved. */
  for (i = 0; i < 40; ++i)
    write_some (c++);
  CHECK (barriers_of (write_some, c++) == 2);
}

int
main (void)
{
  const struct core_options opts = {
    .writable = true, .metadata_cache = 1 << 20, .discard = true,
  };
  struct create_options o;
  struct backend_ops ops;
  struct test_mem mem;

  test_mem_init (&mem, 0);
  create_defaults (&o);
  o.size = 20 << 20;
  CHECK_OK (create_image (&mem.b, NULL, &o));
  ops = *mem.b.ops;
  ops.flush = gated_flush;
  mem.b.ops = &ops;
  mem.b.writable = true;
  CHECK_OK (core_open (&mem.b, &opts, &core));

  test_empty_commit ();
  test_settled ();

  CHECK_OK (core_finish (core));
  core_close (core);
  backend_close (&mem.b);
  return 0;
}
