/* SPDX-License-Identifier: BSD-3-Clause */
/* Each call to the backend fails in turn (I8, I9). */

#include <config.h>

#include <stdlib.h>

#include "crash-faults.h"
#include "crash-run.h"

static void
workload (struct crash_run *run)
{
  const uint64_t cluster = crash_run_cluster_size (run);
  uint64_t off, len;
  int i;

  for (i = 0; i < 18; ++i) {
    switch (i % 9) {
    case 3:
      crash_run_range (run, cluster, 4 * cluster, &off, &len);
      crash_run_compressed (run, off, len);
      break;
    case 4:
    case 8:
      crash_run_flush (run);
      break;
    case 5:
      crash_run_range (run, cluster, 4 * cluster, &off, &len);
      crash_run_trim (run, off, len);
      break;
    case 6:
      crash_run_range (run, 1, 3 * cluster, &off, &len);
      crash_run_zero (run, off, len, i & 1 ? IO_MAY_TRIM : 0);
      break;
    case 7:
      crash_run_range (run, 512, cluster, &off, &len);
      crash_run_write (run, off, len, IO_FUA);
      break;
    default:
      crash_run_range (run, 512, 3 * cluster, &off, &len);
      crash_run_write (run, off, len, 0);
      break;
    }
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
    setup.raw_backing = crash_run_raw (o->size / 2 + 100, 3);
  crash_faults (&setup);
  backend_close (setup.initial);
  backend_close (setup.raw_backing);
}

int
main (void)
{
  struct create_options o;

  create_defaults (&o);
  o.size = 60000;
  o.cluster_size = 512;
  o.refcount_bits = 64;
  test ("faults-512-refcount64", &o);
  create_defaults (&o);
  o.size = 1 << 20;
  test ("faults-64k", &o);
  o.lazy_refcounts = true;
  test ("faults-64k-lazy", &o);
  o.lazy_refcounts = false;
  o.backing_file = o.backing_format = "raw";
  o.cluster_size = 4096;
  o.size = 200000;
  test ("faults-4k-backing", &o);
  return 0;
}
