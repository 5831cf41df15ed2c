/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening images for fuzzers. */

#include <config.h>

#include <errno.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "fuzz-disk.h"
#include "ondisk.h"

#define RAW_LEN (100 * 1024 + 300)

/* A backing file that is shorter than most disks, with a hole. */
static struct backend *
make_raw (void)
{
  struct backend *b = fuzz_mem_create ("backing");
  uint8_t buf[4096];
  uint64_t off;

  for (off = 0; off < RAW_LEN; off += sizeof buf) {
    memset (buf, 1 + off / sizeof buf, sizeof buf);
    if (off / sizeof buf % 5 != 3 &&
        backend_pwrite (b, buf, sizeof buf, off, 0) < 0)
      abort ();
  }
  if (backend_truncate (b, RAW_LEN, false) < 0)
    abort ();
  b->writable = false;
  return b;
}

int
fuzz_disk_open (struct backend *file, struct backend *data, unsigned flags,
                struct fuzz_disk *disk)
{
  struct core_options opts = {
    .writable = flags & FUZZ_DISK_WRITABLE,
    .discard = flags & FUZZ_DISK_DISCARD,
    .detect_zeroes = flags & FUZZ_DISK_DETECT_ZEROES,
    .metadata_cache = UINT64_C (1) << 20,
  };
  int r;

  memset (disk, 0, sizeof *disk);
  file->writable = opts.writable;
  if (ccache_create (UINT64_C (1) << 20, &disk->ccache) < 0)
    abort ();
  opts.ccache = disk->ccache;
  r = flags & FUZZ_DISK_ADMIN ? core_open_admin (file, &opts, &disk->core) :
    core_open (file, &opts, &disk->core);
  if (r < 0) {
    ccache_free (disk->ccache);
    return r;
  }
  if (disk->core->header.incompatible & INCOMPAT_DATA_FILE)
    core_set_data_file (disk->core, data);
  if (disk->core->header.backing_file) {
    disk->raw = make_raw ();
    disk->backing.raw = disk->raw;
    disk->backing.size = RAW_LEN;
    disk->core->io.backing = &disk->backing;
  }
  return 0;
}

int
fuzz_disk_close (struct fuzz_disk *disk)
{
  int r;

  r = core_finish (disk->core);
  core_close (disk->core);
  ccache_free (disk->ccache);
  backend_close (disk->raw);
  return r;
}

static void
problem (void *opaque, const char *text)
{
  (void) opaque;
  nbdkit_debug ("check: %s", text);
}

bool
fuzz_disk_check (struct backend *file, uint64_t budget,
                 struct check_result *res)
{
  const struct check_options opts = { .problem = problem };
  const bool writable = file->writable;
  struct fuzz_disk disk;
  int r;

  memset (res, 0, sizeof *res);
  r = fuzz_disk_open (file, NULL, FUZZ_DISK_ADMIN, &disk);
  if (r == 0) {
    fuzz_mem_read_budget (file, budget);
    r = check_run (disk.core, &opts, res);
    if (fuzz_disk_close (&disk) < 0)
      abort ();
    fuzz_mem_read_budget (file, UINT64_MAX);
  }
  file->writable = writable;
  return r == 0;
}
