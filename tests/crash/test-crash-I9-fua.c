/* SPDX-License-Identifier: BSD-3-Clause */
/* A write with FUA is a barrier: if it fails, the host may have reported
 * with it, for the only time, that it lost what was written before.  So no
 * flush succeeds afterwards (I9).
 */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "crash-run.h"

static void
workload (struct crash_run *run)
{
  (void) run;
}

static void
test (const struct crash_setup *setup, int err, bool fua, bool sticky)
{
  const struct crash_fault fault = { .calls = CRASH_PWRITE, .err = err };
  struct crash_run run;

  crash_run_start (&run, setup, 1);
  assert (crash_run_write (&run, 0, run.cluster_size, 0) == 0);
  assert (crash_run_flush (&run) == 0);
  assert (crash_run_write (&run, 512, 512, 0) == 0);
  run.tolerant = true;
  backend_crash_set_fault (run.disk, &fault);
  assert (crash_run_write (&run, 4096, 512, fua ? IO_FUA : 0) < 0);
  backend_crash_set_fault (run.disk, NULL);
  assert (crash_run_flush (&run) == (sticky ? -EIO : 0));
  assert (crash_run_write (&run, 0, 512, 0) == (sticky ? -EIO : 0));
  assert ((crash_run_finish (&run) < 0) == sticky);
  crash_run_end (&run);
}

int
main (void)
{
  struct create_options o;
  struct crash_setup setup = { .name = "fua", .workload = workload };

  create_defaults (&o);
  o.size = 1 << 20;
  setup.initial = crash_run_create (&o);
  test (&setup, EIO, true, true);
  test (&setup, EIO, false, false);
  test (&setup, ENOSPC, false, false);
  /* Not the write itself: it succeeds the second time. */
  test (&setup, ENOSPC, true, true);
  backend_close (setup.initial);
  exit (EXIT_SUCCESS);
}
