/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss during allocating writes: data before the entries that point
 * to it (I2), tables before the pointers to them (I3), refcounts before
 * both (I1); flush and FUA (I7).
 */

#include <config.h>

#include <stdlib.h>

#include "crash-power.h"
#include "crash-run.h"

static void
workload (struct crash_run *run)
{
  const uint64_t cluster = crash_run_cluster_size (run);
  uint64_t off, len;
  int i;

  for (i = 0; i < 45; ++i) {
    switch (crash_run_random (run, 8)) {
    case 0:
      crash_run_flush (run);
      break;
    case 1:
      crash_run_range (run, 1, 3 * cluster, &off, &len);
      crash_run_write (run, off, len, IO_FUA);
      break;
    case 2:
      crash_run_range (run, cluster, 8 * cluster, &off, &len);
      crash_run_write (run, off, len, 0);
      break;
    default:
      crash_run_range (run, 512, 2 * cluster, &off, &len);
      crash_run_write (run, off, len, 0);
      break;
    }
  }
}

static void
test (const char *name, const struct create_options *o)
{
  struct crash_setup setup = {
    .name = name, .initial = crash_run_create (o), .workload = workload,
  };

  crash_power (&setup);
  backend_close (setup.initial);
}

int
main (void)
{
  struct create_options o;

  create_defaults (&o);
  o.size = 300000;
  o.cluster_size = 512;
  test ("allocate-512", &o);
  o.refcount_bits = 1;
  test ("allocate-512-refcount1", &o);
  o.refcount_bits = 64;
  test ("allocate-512-refcount64", &o);

  create_defaults (&o);
  o.size = 2 << 20;
  o.cluster_size = 4096;
  test ("allocate-4k", &o);
  o.version = 2;
  test ("allocate-4k-v2", &o);

  create_defaults (&o);
  o.size = 3 << 20;
  test ("allocate-64k", &o);
  o.lazy_refcounts = true;
  test ("allocate-64k-lazy", &o);
  o.lazy_refcounts = false;
  o.extended_l2 = true;
  test ("allocate-64k-subclusters", &o);
  return 0;
}
