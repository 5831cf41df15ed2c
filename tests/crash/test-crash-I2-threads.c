/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss while several threads write, zero, trim and flush at once: in
 * the same clusters, though never in the same sectors.  What a commit writes
 * must be consistent whatever is changed meanwhile (I2, I8), and a flush
 * covers what others did before it (I7).
 *
 * The order of things differs from run to run.
 */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "crash-power.h"
#include "crash-run.h"

#define NR_THREADS 4
#define NR_REQUESTS 20

struct client {
  pthread_t thread;
  struct crash_run *run;
  unsigned id;
};

/* A range of one of this thread's units: of 3 sectors in the first half of
 * the disk, so that each cluster has all threads in it; of 3 clusters in the
 * second half.
 */
static void
own_range (struct client *c, uint64_t *off, uint64_t *len)
{
  const uint64_t half = crash_run_size (c->run) / 2;
  const uint64_t cluster = crash_run_cluster_size (c->run);
  bool fine = crash_run_random (c->run, 2);
  uint64_t unit = fine ? 3 * 512 : 3 * cluster;
  uint64_t step = fine ? 512 : cluster;
  uint64_t n = half / unit / NR_THREADS, first;

  *off = (crash_run_random (c->run, n) * NR_THREADS + c->id) * unit;
  if (!fine)
    *off += (half + cluster - 1) / cluster * cluster;
  first = crash_run_random (c->run, 3);
  *off += first * step;
  *len = (1 + crash_run_random (c->run, 3 - first)) * step;
  if (*off + *len > crash_run_size (c->run))
    *off = c->id * 512, *len = 512;
}

static void *
client (void *arg)
{
  struct client *c = arg;
  uint64_t off, len;
  int i;

  for (i = 0; i < NR_REQUESTS; ++i) {
    own_range (c, &off, &len);
    switch (crash_run_random (c->run, 8)) {
    case 0:
      crash_run_flush (c->run);
      break;
    case 1:
      crash_run_zero (c->run, off, len,
                      crash_run_random (c->run, 2) ? IO_MAY_TRIM : 0);
      break;
    case 2:
      crash_run_trim (c->run, off, len);
      break;
    case 3:
      crash_run_write (c->run, off, len, IO_FUA);
      break;
    case 4:
      if (len % crash_run_cluster_size (c->run) == 0) {
        crash_run_compressed (c->run, off, len);
        break;
      }
      __attribute__ ((__fallthrough__));
    default:
      crash_run_write (c->run, off, len, 0);
      break;
    }
  }
  return NULL;
}

static void
workload (struct crash_run *run)
{
  struct client clients[NR_THREADS];
  unsigned i;

  for (i = 0; i < NR_THREADS; ++i) {
    clients[i].id = i;
    clients[i].run = crash_run_join (run, run->seed * 1000 + i);
    assert (pthread_create (&clients[i].thread, NULL, client,
                            &clients[i]) == 0);
  }
  for (i = 0; i < NR_THREADS; ++i) {
    assert (pthread_join (clients[i].thread, NULL) == 0);
    crash_run_leave (clients[i].run);
  }
}

static void
test (const char *name, const struct create_options *o)
{
  struct crash_setup setup = {
    .name = name, .workload = workload, .discard = true,
    .initial = crash_run_create (o),
  };

  if (o->backing_file)
    setup.raw_backing = crash_run_raw (o->size / 3 * 2 + 100, 3);
  crash_power (&setup);
  backend_close (setup.initial);
  backend_close (setup.raw_backing);
}

int
main (void)
{
  struct create_options o;

  create_defaults (&o);
  o.size = 400000;
  o.cluster_size = 4096;
  test ("threads-4k", &o);
  o.cluster_size = 512;
  o.refcount_bits = 64;
  test ("threads-512", &o);
  create_defaults (&o);
  o.size = 2 << 20;
  o.backing_file = o.backing_format = "raw";
  test ("threads-64k-backing", &o);
  o.extended_l2 = true;
  test ("threads-64k-subclusters", &o);
  return 0;
}
