/* SPDX-License-Identifier: BSD-3-Clause */
/* Faults at every call to the backend: see the header. */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend-crash.h"
#include "crash-faults.h"
#include "crash-model.h"
#include "crash-run.h"
#include "crash-verify.h"

static void
complain (const struct crash_run *run, const struct crash_fault *fault,
          const char *what)
{
  crash_model_dump (run->model, UINT64_MAX);
  backend_crash_dump (run->disk, UINT64_MAX);
  if (run->data)
    backend_crash_dump (run->data, UINT64_MAX);
  fprintf (stderr, "%s, seed %" PRIu64 ": after %" PRIu64 " calls of 0x%x, "
           "%s %s%s: %s\n", run->setup->name, run->first_seed,
           fault->nr, fault->calls, strerror (fault->err),
           fault->forever ? "for ever" : "once",
           fault->partial ? ", half done" : "", what);
  abort ();
}

/* What is left after KEEP at the end of the run. */
static void
check_left (struct crash_run *run, const struct crash_fault *fault,
            enum crash_keep keep, uint64_t max_leaks)
{
  const struct crash_choice choice = { keep, fault->nr };
  struct crash_image image;

  crash_run_image (run, run->clock->now, &choice, &image);
  if (!crash_verify_image (run, &image, max_leaks, fault->nr * 5 + keep)) {
    crash_run_image_free (&image);
    crash_run_image (run, run->clock->now, &choice, &image);
    crash_run_image_save (&image);
    complain (run, fault, "a bad image is left: see crash-failed.qcow2");
  }
  crash_run_image_free (&image);
}

/* One run with FAULT, of the data file if OF_DATA.  True if it came to the
 * fault.
 */
static bool
run_with_fault (const struct crash_setup *setup, uint64_t seed,
                const struct crash_fault *fault, bool of_data)
{
  struct crash_run run;
  struct backend *victim;
  bool hit;
  int r;

  crash_run_start (&run, setup, seed);
  victim = of_data ? run.data : run.disk;
  run.tolerant = true;
  backend_crash_set_fault (victim, fault);
  setup->workload (&run);
  r = crash_run_finish (&run);
  hit = backend_crash_failed (victim) > 0;
  backend_crash_set_fault (victim, NULL);

  /* What the clients of this process still read. */
  crash_model_now (run.model);
  if (!crash_verify_content (&run, run.core))
    complain (&run, fault, "it reads wrongly");

  /* The process ends: what it has written stays. */
  if (r < 0)
    crash_model_at (run.model, run.clock->now);
  check_left (&run, fault, CRASH_KEEP_ALL, r == 0 ? 0 : UINT64_MAX);
  /* So does the power. */
  crash_model_at (run.model, run.clock->now);
  check_left (&run, fault, CRASH_KEEP_NONE, UINT64_MAX);
  check_left (&run, fault, CRASH_KEEP_RANDOM, UINT64_MAX);
  check_left (&run, fault, CRASH_KEEP_TORN, UINT64_MAX);
  crash_run_end (&run);
  return hit;
}

/* Opening either fails, or does not care. */
static void
open_with_faults (const struct crash_setup *setup, uint64_t seed)
{
  struct crash_fault fault = { .calls = CRASH_ALL_CALLS, .err = EIO };
  struct crash_run run;
  struct core *core;
  bool hit = true;

  crash_run_start (&run, setup, seed);
  for (fault.nr = 0; hit; fault.nr++) {
    backend_crash_set_fault (run.disk, &fault);
    core = crash_run_open (&run, run.disk, run.data, false);
    hit = backend_crash_failed (run.disk) > 0;
    if (core == NULL && !hit)
      complain (&run, &fault, "it cannot be opened");
    core_close (core);
  }
  backend_crash_set_fault (run.disk, NULL);
  crash_run_end (&run);
}

void
crash_faults (const struct crash_setup *setup)
{
  static const struct crash_fault kinds[] = {
    { .calls = CRASH_ALL_CALLS, .err = EIO },
    { .calls = CRASH_ALL_CALLS, .err = EIO, .forever = true },
    { .calls = CRASH_PWRITE | CRASH_ZERO | CRASH_TRUNCATE, .err = ENOSPC },
    { .calls = CRASH_PWRITE | CRASH_ZERO | CRASH_TRUNCATE, .err = ENOSPC,
      .forever = true },
    { .calls = CRASH_PWRITE | CRASH_ZERO, .err = EIO, .partial = true },
    { .calls = CRASH_PWRITE | CRASH_ZERO, .err = ENOSPC, .partial = true },
  };
  uint64_t seed = crash_run_env ("CRASH_TEST_SEED", 1), nr = 0, i;
  size_t k, nr_kinds = sizeof kinds / sizeof kinds[0];

  for (i = 0; i < crash_run_env ("CRASH_TEST_FACTOR", 1); ++i) {
    open_with_faults (setup, seed + i);
    for (k = 0; k < (setup->initial_data ? 2 : 1) * nr_kinds; ++k) {
      struct crash_fault fault = kinds[k % nr_kinds];

      while (run_with_fault (setup, seed + i, &fault, k >= nr_kinds))
        fault.nr++;
      nr += fault.nr;
    }
    fprintf (stderr, "%s, seed %" PRIu64 ": %" PRIu64 " faults\n",
             setup->name, seed + i, nr);
  }
}
