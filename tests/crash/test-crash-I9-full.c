/* SPDX-License-Identifier: BSD-3-Clause */
/* The host's disk fills up half way through an allocation: the request
 * fails with ENOSPC, nothing else is lost, flush still works, and once space
 * was trimmed the disk can be written again.  With power loss anywhere.
 */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backend-mem.h"
#include "crash-power.h"
#include "crash-run.h"

static void
fill_up (struct crash_run *run)
{
  const uint64_t size = crash_run_size (run);
  const uint64_t step = 5 * crash_run_cluster_size (run) / 2 / 512 * 512;
  uint64_t off, len;
  int r = 0;

  run->tolerant = true;
  for (off = 0; r == 0 && off < size; off += step) {
    len = size - off < step ? size - off : step;
    r = crash_run_write (run, off, len, 0);
  }
  assert (r == -ENOSPC);
  r = crash_run_flush (run);
  assert (r == 0);
}

static void
workload (struct crash_run *run)
{
  const uint64_t cluster = crash_run_cluster_size (run);
  uint64_t i;
  int r;

  fill_up (run);
  r = crash_run_write (run, 0, cluster, 0);     /* in place */
  assert (r == 0);
  r = crash_run_trim (run, 4 * cluster, 8 * cluster);
  assert (r == 0);
  r = crash_run_flush (run);
  assert (r == 0);
  for (i = 0; i < 8; ++i) {
    r = crash_run_write (run, (4 + i) * cluster, cluster, 0);
    assert (r == 0);
  }
  r = crash_run_flush (run);
  assert (r == 0);
  /* What is freed but not yet stable cannot be had at once, only after a
   * flush.
   */
  r = crash_run_trim (run, 0, 8 * cluster);
  assert (r == 0);
  r = crash_run_write (run, cluster, 6 * cluster, 0);
  assert (r == 0 || r == -ENOSPC);
  r = crash_run_flush (run);
  assert (r == 0);
  r = crash_run_write (run, cluster, 6 * cluster, 0);
  assert (r == 0);
}

static void
test (const char *name, const struct create_options *o, uint64_t limit)
{
  struct crash_setup setup = {
    .name = name, .workload = workload, .initial = crash_run_create (o),
  };

  backend_mem_limit (setup.initial, limit);
  crash_power (&setup);
  backend_close (setup.initial);
}

int
main (void)
{
  struct create_options o;

  create_defaults (&o);
  o.size = 400000;
  o.cluster_size = 4096;
  test ("full-4k", &o, 200000);
  o.cluster_size = 512;
  o.refcount_bits = 64;
  test ("full-512", &o, 100000);
  o.size = 4 << 20;
  o.cluster_size = 65536;
  test ("full-64k", &o, 20 * 65536 + 5);
  return 0;
}
