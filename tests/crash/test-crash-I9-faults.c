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

int
main (void)
{
  static const struct crash_kind kinds[] = {
    { "512-refcount64", .size = 60000 },
    { "64k", .size = 1 << 20 },
    { "64k-lazy", .size = 1 << 20 },
    { "4k", .size = 200000, .backing_size = 100000 + 100 },
  };
  const struct crash_setup setup = {
    .name = "faults", .workload = workload, .discard = true,
  };

  crash_run_kinds (&setup, crash_faults, kinds, sizeof kinds / sizeof *kinds);
  return 0;
}
