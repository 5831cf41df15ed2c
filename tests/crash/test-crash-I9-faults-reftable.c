/* SPDX-License-Identifier: BSD-3-Clause */
/* Each call to the backend fails in turn while the refcount table grows
 * (I5, I9).
 */

#include <config.h>

#include <stdlib.h>

#include "crash-faults.h"
#include "crash-run.h"

/* The first write brings the file near the end of what the table covers. */
static void
workload (struct crash_run *run)
{
  uint64_t off, step = 40 * 1024;

  crash_run_write (run, 0, 1900 * 1024, 0);
  crash_run_flush (run);
  for (off = 1900 * 1024; off + step <= crash_run_size (run); off += step)
    crash_run_write (run, off, step, 0);
  crash_run_trim (run, 0, 10000);
  crash_run_flush (run);
  crash_run_write (run, 0, 10000, 0);
}

int
main (void)
{
  struct crash_setup setup = {
    .name = "faults-reftable", .workload = workload, .discard = true,
  };
  struct create_options o;

  create_defaults (&o);
  o.size = 2100 * 1024;
  o.cluster_size = 512;
  o.refcount_bits = 64;
  setup.initial = crash_run_create (&o);
  crash_faults (&setup);
  backend_close (setup.initial);
  return 0;
}
