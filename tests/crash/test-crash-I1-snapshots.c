/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss while an image with internal snapshots is written: clusters and
 * L2 tables with a refcount above one are copied, refcounts never fall below
 * the number of references (I1), and the snapshots stay what they are.
 */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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
      crash_run_range (run, cluster, 3 * cluster, &off, &len);
      crash_run_zero (run, off, len,
                      crash_run_random (run, 2) ? IO_MAY_TRIM : 0);
      break;
    case 2:
      crash_run_range (run, cluster, 3 * cluster, &off, &len);
      crash_run_trim (run, off, len);
      break;
    case 3:
      crash_run_range (run, cluster, 2 * cluster, &off, &len);
      crash_run_compressed (run, off, len);
      break;
    default:
      crash_run_range (run, 512, 2 * cluster, &off, &len);
      crash_run_write (run, off, len, 0);
      break;
    }
  }
}

static void
test (const char *name, const char *options, unsigned size_k,
      unsigned cluster_k)
{
  struct crash_setup setup = { .name = name, .workload = workload,
                               .discard = true };
  char path[64];
  int i;

  snprintf (path, sizeof path, "test-crash-snapshots.%d", (int) getpid ());
  crash_run_command ("qemu-img create -q -f qcow2 -o %s %s %uk",
                     options, path, size_k);
  for (i = 0; i < 3; ++i) {
    crash_run_command ("qemu-io -f qcow2 -c 'write -P %d 0 %uk' "
                       "-c 'write -P %d %uk 40k' -c 'write -c -P %d %uk %uk' "
                       "%s >/dev/null",
                       i + 1, size_k / 4, i + 11, size_k / 2, i + 21,
                       size_k / 4 * 3 + i * cluster_k, cluster_k, path);
    crash_run_command ("qemu-img snapshot -c s%d %s", i, path);
  }
  setup.initial = crash_run_load (path);
  unlink (path);
  crash_power (&setup);
  backend_close (setup.initial);
}

int
main (void)
{
  if (system ("qemu-img --version >/dev/null && qemu-io --version "
              ">/dev/null") != 0) {
    fprintf (stderr, "test-crash-I1-snapshots: skipped: no qemu-img or "
             "qemu-io to make snapshots with\n");
    return 77;
  }
  test ("snapshots-4k", "cluster_size=4k", 512, 4);
  test ("snapshots-64k", "cluster_size=64k", 768, 64);
  test ("snapshots-64k-v2", "cluster_size=64k,compat=0.10", 768, 64);
  test ("snapshots-64k-lazy", "cluster_size=64k,lazy_refcounts=on", 768, 64);
  test ("snapshots-64k-subclusters", "cluster_size=64k,extended_l2=on",
        768, 64);
  return 0;
}
