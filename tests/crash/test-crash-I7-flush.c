/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss while allocated clusters are overwritten in place: after a
 * flush, or FUA, the data is there (I7), although no metadata changes.  With
 * an external data file, both files are flushed, and in the right order.
 */

#include <config.h>

#include <stdlib.h>

#include "backend-mem.h"
#include "crash-faults.h"
#include "crash-power.h"
#include "crash-run.h"

static void
overwrite (struct crash_run *run)
{
  uint64_t off, len;
  int i;

  crash_run_write (run, 0, crash_run_size (run), 0);
  crash_run_flush (run);
  for (i = 0; i < 40; ++i) {
    switch (crash_run_random (run, 5)) {
    case 0:
      crash_run_flush (run);
      break;
    case 1:
      crash_run_range (run, 1, 20000, &off, &len);
      crash_run_write (run, off, len, IO_FUA);
      break;
    default:
      crash_run_range (run, 1, 20000, &off, &len);
      crash_run_write (run, off, len, 0);
      break;
    }
  }
}

static void
mixed (struct crash_run *run)
{
  const uint64_t cluster = crash_run_cluster_size (run);
  uint64_t off, len;
  int i;

  for (i = 0; i < 30; ++i) {
    crash_run_range (run, 512, 2 * cluster, &off, &len);
    switch (crash_run_random (run, 8)) {
    case 0:
    case 1:
      crash_run_flush (run);
      break;
    case 2:
      crash_run_zero (run, off, len, IO_MAY_TRIM);
      break;
    case 3:
      crash_run_trim (run, off, len);
      break;
    case 4:
      crash_run_write (run, off, len, IO_FUA);
      break;
    default:
      crash_run_write (run, off, len, 0);
      break;
    }
  }
}

static void
test (const char *name, const struct create_options *o,
      void (*workload) (struct crash_run *run), bool faults)
{
  struct crash_setup setup = {
    .name = name, .workload = workload, .discard = true,
  };

  if (o->data_file)
    setup.initial = crash_run_create_pair (o, &setup.initial_data);
  else
    setup.initial = crash_run_create (o);
  if (faults)
    crash_faults (&setup);
  else
    crash_power (&setup);
  backend_close (setup.initial);
  backend_close (setup.initial_data);
}

int
main (void)
{
  struct create_options o;

  create_defaults (&o);
  o.size = 200000;
  o.cluster_size = 4096;
  test ("overwrite-4k", &o, overwrite, false);
  o.preallocation = CREATE_PREALLOC_METADATA;
  test ("overwrite-prealloc", &o, overwrite, false);
  o.preallocation = CREATE_PREALLOC_OFF;
  o.data_file = "data";
  test ("data-file-4k", &o, mixed, false);
  test ("data-file-4k", &o, mixed, true);
  o.data_file_raw = true;
  test ("data-file-raw-4k", &o, mixed, false);
  test ("data-file-raw-4k", &o, mixed, true);
  o.data_file_raw = false;
  o.size = 500000;
  o.cluster_size = 65536;
  o.extended_l2 = o.lazy_refcounts = true;
  test ("data-file-64k-subclusters-lazy", &o, mixed, false);
  return 0;
}
