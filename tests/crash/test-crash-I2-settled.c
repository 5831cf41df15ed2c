/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss where flushes are frequent, so clusters are counted ahead, and
 * entries are written together with the data that they point to (I1, I2):
 * over what reads as zeroes, beside copy-on-write, which must not do so, and
 * with clusters that come back.
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

  for (i = 0; i < 50; ++i) {
    switch (crash_run_random (run, 12)) {
    case 0:
      crash_run_range (run, cluster, 3 * cluster, &off, &len);
      crash_run_trim (run, off, len);
      break;
    case 1:
      crash_run_range (run, 512, 3 * cluster, &off, &len);
      crash_run_zero (run, off, len, IO_MAY_TRIM);
      break;
    case 2:
      crash_run_range (run, cluster, 6 * cluster, &off, &len);
      crash_run_write (run, off, len, 0);
      break;
    default:
      crash_run_range (run, 512, cluster, &off, &len);
      crash_run_write (run, off, len, crash_run_random (run, 4) ? 0 : IO_FUA);
      break;
    }
    if (crash_run_random (run, 3) > 0)
      crash_run_flush (run);
  }
}

static void
test (const char *name, const struct create_options *o)
{
  struct crash_setup setup = {
    .name = name, .workload = workload, .discard = true,
    .initial = crash_run_create (o),
    .raw_backing = o->backing_file ? crash_run_raw (o->size / 2 - 100, 7)
      : NULL,
  };

  crash_power (&setup);
  backend_close (setup.initial);
  backend_close (setup.raw_backing);
}

int
main (void)
{
  struct create_options o;

  create_defaults (&o);
  o.size = 300000;
  o.cluster_size = 512;
  o.refcount_bits = 1;
  test ("settled-512-refcount1", &o);

  create_defaults (&o);
  o.size = 2 << 20;
  o.cluster_size = 4096;
  test ("settled-4k", &o);
  o.version = 2;
  test ("settled-4k-v2", &o);

  create_defaults (&o);
  o.size = 4 << 20;
  test ("settled-64k", &o);
  o.lazy_refcounts = true;
  test ("settled-64k-lazy", &o);
  o.lazy_refcounts = false;
  o.extended_l2 = true;
  test ("settled-64k-subclusters", &o);

  create_defaults (&o);
  o.size = 3 << 20;
  o.cluster_size = 16384;
  o.backing_file = "raw";
  o.backing_format = "raw";
  test ("settled-16k-overlay", &o);
  return 0;
}
