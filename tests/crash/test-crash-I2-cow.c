/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss during copy-on-write from a backing file: what was copied is
 * stable before the entry (I2), and old data shows through until then.  The
 * backing file is shorter than the image, and ends inside a sector.
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

  for (i = 0; i < 40; ++i) {
    switch (crash_run_random (run, 8)) {
    case 0:
      crash_run_flush (run);
      break;
    case 1:
      crash_run_range (run, 1, 2 * cluster, &off, &len);
      crash_run_zero (run, off, len,
                      crash_run_random (run, 2) ? IO_MAY_TRIM : 0);
      break;
    case 2:
      crash_run_range (run, 1, 3 * cluster, &off, &len);
      crash_run_write (run, off, len, IO_FUA);
      break;
    case 3:
      crash_run_range (run, 512, 2 * cluster, &off, &len);
      crash_run_trim (run, off, len);
      break;
    default:
      crash_run_range (run, 512, cluster, &off, &len);
      crash_run_write (run, off, len, 0);
      break;
    }
  }
}

static void
test (const char *name, const struct create_options *o)
{
  struct crash_setup setup = {
    .name = name, .workload = workload,
    .initial = crash_run_create (o),
    .raw_backing = crash_run_raw (o->size * 2 / 3 - 100, 7),
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
  o.backing_file = "raw";
  o.backing_format = "raw";
  o.size = 1 << 20;
  o.cluster_size = 4096;
  test ("cow-4k", &o);
  o.version = 2;
  test ("cow-4k-v2", &o);
  o.version = 3;
  o.size = 3 << 20;
  o.cluster_size = 65536;
  test ("cow-64k", &o);
  o.extended_l2 = true;
  test ("cow-64k-subclusters", &o);
  return 0;
}
