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

int
main (void)
{
  static const struct crash_kind kinds[] = {
    { "512", .size = 300000 },
    { "512-refcount1", .size = 300000 },
    { "512-refcount64", .size = 300000 },
    { "4k", .size = 2 << 20 },
    { "4k-v2", .size = 2 << 20 },
    { "64k", .size = 3 << 20 },
    { "64k-lazy", .size = 3 << 20 },
    { "64k-subclusters", .size = 3 << 20 },
  };
  const struct crash_setup setup = {
    .name = "allocate", .workload = workload,
  };

  crash_run_kinds (&setup, crash_power, kinds, sizeof kinds / sizeof *kinds);
  return 0;
}
