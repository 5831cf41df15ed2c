/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss while compressed clusters are written, overwritten and given
 * back: the space of a compressed cluster must not be reused before the
 * removal of its entry is stable (I4), although others share the host
 * cluster.
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

  for (i = 0; i < 45; ++i) {
    switch (crash_run_random (run, 10)) {
    case 0:
    case 1:
      crash_run_flush (run);
      break;
    case 2:
      crash_run_range (run, 512, cluster, &off, &len);
      crash_run_write (run, off, len, 0);
      break;
    case 3:
      crash_run_range (run, cluster, 2 * cluster, &off, &len);
      crash_run_zero (run, off, len, IO_MAY_TRIM);
      break;
    case 4:
      crash_run_range (run, cluster, 3 * cluster, &off, &len);
      crash_run_trim (run, off, len);
      break;
    default:
      crash_run_range (run, cluster, 4 * cluster, &off, &len);
      crash_run_compressed (run, off, len);
      break;
    }
  }
}

static void
test (const char *name, const struct create_options *o)
{
  struct crash_setup setup = {
    .name = name, .workload = workload, .codec = o->compression_type,
    .initial = crash_run_create (o), .discard = true,
  };

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
  test ("compressed-4k-zlib", &o);
  o.compression_type = CODEC_ZSTD;
  test ("compressed-4k-zstd", &o);
  o.compression_type = CODEC_ZLIB;
  o.cluster_size = 65536;
  o.size = 1 << 20;
  test ("compressed-64k-zlib", &o);
  o.refcount_bits = 8;
  o.cluster_size = 512;
  o.size = 50000;
  test ("compressed-512-refcount8", &o);
  /* Hardly any cluster can be shared. */
  o.refcount_bits = 2;
  test ("compressed-512-refcount2", &o);
  return 0;
}
