/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss while the refcount table grows: the new one is complete and
 * stable before the header points to it (I5), the old one is not reused
 * before that (I4).
 */

#include <config.h>

#include <stdlib.h>

#include "crash-power.h"
#include "crash-run.h"

/* With clusters of 512 bytes and 64-bit refcounts, a table of one cluster
 * covers 2 MiB of the file.
 */
static void
workload (struct crash_run *run)
{
  const uint64_t size = crash_run_size (run), step = 96 * 1024;
  uint64_t off, len;
  int i;

  for (off = 0; off < size; off += step) {
    len = size - off < step ? size - off : step;
    crash_run_write (run, off, len, 0);
    if (crash_run_random (run, 4) == 0)
      crash_run_flush (run);
  }
  for (i = 0; i < 5; ++i) {
    crash_run_range (run, 512, 20 * 1024, &off, &len);
    crash_run_trim (run, off, len);
    crash_run_range (run, 512, 20 * 1024, &off, &len);
    crash_run_write (run, off, len, 0);
    crash_run_flush (run);
  }
}

static void
test (const char *name, const struct create_options *o)
{
  struct crash_setup setup = {
    .name = name, .workload = workload, .initial = crash_run_create (o),
    .discard = true,
  };

  crash_power (&setup);
  backend_close (setup.initial);
}

int
main (void)
{
  struct create_options o;

  create_defaults (&o);
  o.size = 2200 * 1024;
  o.cluster_size = 512;
  o.refcount_bits = 64;
  test ("reftable-512", &o);
  o.version = 2;
  o.refcount_bits = 16;
  o.size = 3 << 20;
  test ("reftable-512-v2", &o);
  return 0;
}
