/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss while clusters are freed and reused: what was freed is reused
 * only after the removal of the last reference is stable (I4), and not
 * punched before either.
 */

#include <config.h>

#include <stdlib.h>

#include "crash-power.h"
#include "crash-run.h"

/* The disk is small, so that freed clusters come back soon. */
static void
workload (struct crash_run *run)
{
  const uint64_t cluster = crash_run_cluster_size (run);
  uint64_t off, len;
  int i;

  crash_run_write (run, 0, crash_run_size (run), 0);
  crash_run_flush (run);
  for (i = 0; i < 50; ++i) {
    switch (crash_run_random (run, 7)) {
    case 0:
    case 1:
      crash_run_flush (run);
      break;
    case 2:
      crash_run_range (run, cluster, 8 * cluster, &off, &len);
      crash_run_zero (run, off, len, IO_MAY_TRIM);
      break;
    case 3:
      crash_run_range (run, cluster, 8 * cluster, &off, &len);
      crash_run_trim (run, off, len);
      break;
    case 4:
      crash_run_range (run, 512, 4 * cluster, &off, &len);
      crash_run_zero (run, off, len, IO_FUA);
      break;
    default:
      crash_run_range (run, cluster, 4 * cluster, &off, &len);
      crash_run_write (run, off, len, 0);
      break;
    }
  }
}

static void
test (const char *name, const struct create_options *o, bool discard,
      bool detect_zeroes)
{
  struct crash_setup setup = {
    .name = name, .workload = workload, .initial = crash_run_create (o),
    .discard = discard, .detect_zeroes = detect_zeroes,
  };

  crash_power (&setup);
  backend_close (setup.initial);
}

int
main (void)
{
  struct create_options o;

  create_defaults (&o);
  o.size = 150000;
  o.cluster_size = 4096;
  test ("discard-4k", &o, true, false);
  test ("discard-4k-keep", &o, false, true);
  o.version = 2;
  test ("discard-4k-v2", &o, true, false);
  create_defaults (&o);
  o.size = 1 << 20;
  o.extended_l2 = true;
  test ("discard-64k-subclusters", &o, true, false);
  o.extended_l2 = false;
  o.lazy_refcounts = true;
  test ("discard-64k-lazy", &o, true, false);
  return 0;
}
