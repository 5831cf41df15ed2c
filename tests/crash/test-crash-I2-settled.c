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

int
main (void)
{
  static const struct crash_kind kinds[] = {
    { "512-refcount1", .size = 300000 },
    { "4k", .size = 2 << 20 },
    { "4k-v2", .size = 2 << 20 },
    { "64k", .size = 4 << 20 },
    { "64k-lazy", .size = 4 << 20 },
    { "64k-subclusters", .size = 4 << 20 },
    { "16k", .size = 3 << 20, .backing_size = (3 << 19) - 100 },
  };
  const struct crash_setup setup = {
    .name = "settled", .workload = workload, .discard = true,
  };

  crash_run_kinds (&setup, crash_power, kinds, sizeof kinds / sizeof *kinds);
  return 0;
}
