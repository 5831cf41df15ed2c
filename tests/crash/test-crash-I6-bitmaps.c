/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss while an image with persistent bitmaps is written, opened and
 * closed.  A bitmap that is valid after it, and not marked in use, has a bit
 * for all that ever changed (I6): never is it stale and looks valid.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend-mem.h"
#include "crash-bitmaps.h"
#include "crash-power.h"
#include "crash-run.h"

static size_t nr_valid, nr_images;

static void
workload (struct crash_run *run)
{
  const uint64_t cluster = crash_run_cluster_size (run);
  uint64_t off, len;
  int i;

  for (i = 0; i < 15; ++i) {
    crash_run_range (run, 512, 2 * cluster, &off, &len);
    switch (crash_run_random (run, 8)) {
    case 0:
      crash_run_flush (run);
      break;
    case 1:
      crash_run_zero (run, off, len, IO_MAY_TRIM);
      break;
    case 2:
      crash_run_trim (run, off, len);
      break;
    default:
      crash_run_write (run, off, len,
                       crash_run_random (run, 4) ? 0 : IO_FUA);
      break;
    }
  }
}

static bool
verify (struct crash_run *run, struct backend *image, const uint8_t *disk)
{
  bool ok;

  nr_images++;
  nr_valid += crash_bitmaps_valid (image, run->initial, disk, run->size, &ok);
  return ok;
}

/* Without power loss all are valid in the end, all the time. */
static void
test_close (const struct crash_setup *setup, size_t nr)
{
  struct crash_run run;
  bool ok;
  int i;

  crash_run_start (&run, setup, 1);
  for (i = 0; i < 2; ++i) {
    workload (&run);
    assert (crash_run_read (&run.core->io, run.buf) == 0);
    assert (crash_bitmaps_valid (run.disk, run.initial, run.buf, run.size,
                                 &ok) == 0);
    assert (crash_run_finish (&run) == 0);
    assert (crash_bitmaps_valid (run.disk, run.initial, run.buf, run.size,
                                 &ok) == nr && ok);
    core_close (run.core);
    run.core = crash_run_open (&run, run.disk, NULL, true);
    assert (run.core != NULL);
  }
  crash_run_end (&run);
}

static void
test (const char *name, const char *options)
{
  struct crash_setup setup = {
    .name = name, .workload = workload, .discard = true, .verify = verify,
  };
  char path[64];

  snprintf (path, sizeof path, "test-crash-bitmaps.%d", (int) getpid ());
  crash_run_command ("qemu-img create -q -f qcow2 -o %s %s 700k",
                     options, path);
  crash_run_command ("qemu-img bitmap --add -g 4k %s coarse", path);
  crash_run_command ("qemu-io -f qcow2 -c 'write -P 1 0 200k' %s >/dev/null",
                     path);
  crash_run_command ("qemu-img bitmap --add -g 512 %s fine", path);
  crash_run_command ("qemu-img bitmap --add --disable %s off", path);
  setup.initial = crash_run_load (path);
  unlink (path);
  test_close (&setup, 2);
  nr_valid = nr_images = 0;
  crash_power (&setup);
  fprintf (stderr, "%s: of 2 bitmaps in %zu images %zu were valid\n",
           name, nr_images, nr_valid);
  assert (nr_valid > 0 && nr_valid < 2 * nr_images);
  backend_close (setup.initial);
}

int
main (void)
{
  if (system ("qemu-img --version >/dev/null && qemu-io --version "
              ">/dev/null") != 0) {
    fprintf (stderr, "test-crash-I6-bitmaps: skipped: no qemu-img or qemu-io "
             "to make bitmaps with\n");
    return 77;
  }
  test ("bitmaps-512", "cluster_size=512");
  test ("bitmaps-64k", "cluster_size=64k");
  test ("bitmaps-64k-lazy-subclusters",
        "cluster_size=64k,lazy_refcounts=on,extended_l2=on");
  return 0;
}
