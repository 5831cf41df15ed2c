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

int
main (void)
{
  static const struct crash_kind kinds[] = {
    { "4k", .size = 1 << 20, .backing_size = (2 << 20) / 3 - 100 },
    { "4k-v2", .size = 1 << 20, .backing_size = (2 << 20) / 3 - 100 },
    { "64k", .size = 3 << 20, .backing_size = (2 << 20) - 100 },
    { "64k-subclusters", .size = 3 << 20, .backing_size = (2 << 20) - 100 },
  };
  const struct crash_setup setup = {
    .name = "cow", .workload = workload,
  };

  crash_run_kinds (&setup, crash_power, kinds, sizeof kinds / sizeof *kinds);
  return 0;
}
