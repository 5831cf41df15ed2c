/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss while an image is made (I5): what is left is no image, or the
 * whole of it, with the data file that belongs to it.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend-mem.h"
#include "crash-check.h"
#include "crash-power.h"
#include "crash-run.h"
#include "ondisk.h"

static struct ccache *ccache;

struct expected {
  const struct create_options *o;
  size_t complete, nothing;
};

static struct core *
open_core (const struct crash_image *image)
{
  const struct core_options opts = {
    .metadata_cache = 1 << 20, .ccache = ccache,
  };
  struct core *core;

  if (core_open (image->file, &opts, &core) < 0)
    return NULL;
  if (image->data)
    core_set_data_file (core, image->data);
  return core;
}

static void
verify_image (const struct crash_image *image, void *opaque)
{
  struct expected *e = opaque;
  struct crash_check check;
  struct core *core = open_core (image);
  uint8_t magic[4], *disk;
  uint64_t i;

  if (core == NULL) {
    /* Not even something that somebody could take for an image. */
    assert (backend_size (image->file) < 4 ||
            (backend_pread (image->file, magic, 4, 0) == 0 &&
             get_be32 (magic) == 0));
    e->nothing++;
    return;
  }
  e->complete++;
  assert (crash_check (image->file, false, &check) == 0);
  if (check.errors || check.leaks || check.dirty || check.corrupt) {
    assert (crash_check (image->file, true, &check) == 0);
    abort ();
  }
  assert (core->io.size == e->o->size);
  if (!e->o->crypto_header) {
    disk = malloc (core->io.size);
    assert (disk && crash_run_read (&core->io, disk) == 0);
    for (i = 0; i < core->io.size; ++i)
      assert (disk[i] == 0);
    free (disk);
  }
  core_close (core);
}

static void
test (const char *name, const struct create_options *o)
{
  struct crash_clock clock = { .now = 0 };
  struct crash_run run = { .clock = &clock };
  struct expected e = { .o = o };
  struct backend *mem;
  size_t n;

  assert (backend_mem_create ("image", &mem) == 0);
  assert (backend_crash_create (mem, &clock, &run.disk) == 0);
  if (o->data_file) {
    assert (backend_mem_create ("data", &mem) == 0);
    assert (backend_crash_create (mem, &clock, &run.data) == 0);
  }
  assert (create_image (run.disk, run.data, o) == 0);
  n = crash_power_each (&run, verify_image, &e);
  printf ("%s: %zu images: %zu complete, %zu nothing\n", name, n,
          e.complete, e.nothing);
  assert (e.complete > 0 && e.nothing > 0);
  backend_close (run.disk);
  backend_close (run.data);
}

int
main (void)
{
  static uint8_t crypto_header[100000];
  struct create_options o;

  assert (ccache_create (1 << 20, &ccache) == 0);
  create_defaults (&o);
  o.size = 3 << 20;
  test ("plain", &o);
  o.version = 2;
  test ("version 2", &o);
  o.version = 3;
  o.cluster_size = 512;
  o.preallocation = CREATE_PREALLOC_METADATA;
  test ("512, metadata", &o);
  o.cluster_size = 65536;
  o.preallocation = CREATE_PREALLOC_FULL;
  o.extended_l2 = true;
  test ("full, subclusters", &o);
  o.preallocation = CREATE_PREALLOC_OFF;
  o.data_file = "data";
  test ("data file", &o);
  o.data_file_raw = true;
  test ("raw data file", &o);
  o.data_file = NULL;
  o.data_file_raw = false;
  memset (crypto_header, 1, sizeof crypto_header);
  o.crypto_header = crypto_header;
  o.crypto_len = sizeof crypto_header;
  test ("encrypted", &o);
  ccache_free (ccache);
  return 0;
}
