/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss during a repair: the image is at worst as broken as before, the
 * disk and its snapshots are what they were, and the next repair ends what
 * this one began.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend-mem.h"
#include "crash-check.h"
#include "crash-power.h"
#include "crash-run.h"
#include "ondisk.h"
#include "repair.h"

static struct ccache *ccache;

/* What the disk and its only snapshot contain. */
struct content {
  uint64_t size;
  uint8_t *disk, *snapshot;
};

static void
read_content (struct backend *b, struct content *c)
{
  const struct core_options opts = {
    .metadata_cache = 1 << 20, .ccache = ccache,
  };
  struct core *core;

  assert (core_open (b, &opts, &core) == 0);
  c->size = core->io.size;
  c->disk = malloc (c->size + 1);
  assert (c->disk && crash_run_read (&core->io, c->disk) == 0);
  assert (core->snapshots.nr == 1);
  c->snapshot = crash_run_read_snapshot (core, 0);
  assert (c->snapshot != NULL);
  core_close (core);
}

static void
free_content (struct content *c)
{
  free (c->disk);
  free (c->snapshot);
}

static void
verify_content (struct backend *b, const struct content *expected)
{
  struct content now;

  read_content (b, &now);
  assert (now.size == expected->size);
  assert (memcmp (now.disk, expected->disk, now.size) == 0);
  assert (memcmp (now.snapshot, expected->snapshot, now.size) == 0);
  free_content (&now);
}

static void
verify_image (const struct crash_image *image, void *opaque)
{
  const struct content *expected = opaque;
  struct check_result res;
  struct crash_check check;

  verify_content (image->file, expected);
  assert (repair_run (image->file, REPAIR_ALL, NULL, &res) == 0);
  assert (crash_check (image->file, false, &check) == 0);
  /* Refcounts of clusters behind the end of the file may remain: see
   * test-crash-I5-admin.c.
   */
  if (check.errors || check.dirty || check.corrupt || check.leaks > 2) {
    assert (crash_check (image->file, true, &check) == 0);
    fprintf (stderr, "errors %d, leaks %d, dirty %d, corrupt %d\n",
             (int) check.errors, (int) check.leaks, check.dirty,
             check.corrupt);
    assert (backend_mem_save (image->file, "crash-failed.qcow2") == 0);
    abort ();
  }
  verify_content (image->file, expected);
}

/* --- Kinds of damage --- */

static uint64_t
read_be64 (struct backend *b, uint64_t off)
{
  uint8_t p[8];

  assert (backend_pread (b, p, sizeof p, off) == 0);
  return get_be64 (p);
}

static void
flip (struct backend *b, uint64_t off, uint64_t mask)
{
  uint8_t p[8];

  put_be64 (p, read_be64 (b, off) ^ mask);
  assert (backend_pwrite (b, p, sizeof p, off, 0) == 0);
}

static uint64_t
first_refblock (struct backend *b)
{
  return read_be64 (b, read_be64 (b, HDR_REFCOUNT_TABLE_OFFSET));
}

/* How many times four refcounts of 16 bits are those of clusters in the file;
 * of others no check knows.
 */
static uint64_t
refcount_words (struct backend *b)
{
  uint8_t p[4];

  assert (backend_pread (b, p, sizeof p, HDR_CLUSTER_BITS) == 0);
  return backend_size (b) >> get_be32 (p) >> 2;
}

/* Wrong refcounts: too high, too low, in clusters of all kinds. */
static void
damage_refcounts (struct backend *b)
{
  uint64_t i;

  for (i = 0; i < refcount_words (b); ++i)
    flip (b, first_refblock (b) + i * 8, UINT64_C (0x0001000200030001));
}

static void
damage_leaks (struct backend *b)
{
  static const uint8_t p[8] = { 0, 9, 0, 9, 0, 9, 0, 9 };
  uint64_t i;

  for (i = 0; i < refcount_words (b); ++i)
    assert (backend_pwrite (b, p, sizeof p, first_refblock (b) + i * 8,
                            0) == 0);
}

static void
damage_reftable (struct backend *b)
{
  uint64_t table = read_be64 (b, HDR_REFCOUNT_TABLE_OFFSET);

  flip (b, table, read_be64 (b, table));
}

static void
damage_copied (struct backend *b)
{
  uint64_t l2 = read_be64 (b, read_be64 (b, HDR_L1_TABLE_OFFSET)) &
    L1E_OFFSET_MASK;
  const int step = read_be64 (b, HDR_INCOMPATIBLE) & INCOMPAT_EXTENDED_L2
    ? 16 : 8;
  int i;

  for (i = 0; i < 4; ++i)
    if (read_be64 (b, l2 + i * step) & L2E_OFFSET_MASK)
      flip (b, l2 + i * step, ENTRY_COPIED);
}

static void
damage_dirty (struct backend *b)
{
  damage_refcounts (b);
  flip (b, HDR_INCOMPATIBLE, INCOMPAT_DIRTY);
}

static void
damage_corrupt (struct backend *b)
{
  damage_reftable (b);
  flip (b, HDR_INCOMPATIBLE, INCOMPAT_CORRUPT);
}

static const struct {
  const char *name;
  void (*damage) (struct backend *b);
  bool v3;
} kinds[] = {
  { "refcounts", damage_refcounts, false },
  { "leaks", damage_leaks, false },
  { "refcount table", damage_reftable, false },
  { "copied flags", damage_copied, false },
  { "dirty", damage_dirty, true },
  { "corrupt", damage_corrupt, true },
};

static void
test_kind (struct backend *initial, size_t kind)
{
  struct crash_clock clock = { .now = 0 };
  struct crash_run run = { .clock = &clock };
  struct check_result res;
  struct content before;
  struct backend *mem;

  read_content (initial, &before);
  assert (backend_mem_clone (initial, &mem) == 0);
  kinds[kind].damage (mem);
  assert (backend_crash_create (mem, &clock, &run.disk) == 0);
  assert (repair_run (run.disk, REPAIR_ALL, NULL, &res) == 0);
  assert (res.corruptions == 0 && res.check_errors == 0);
  printf ("  %s: %zu images\n", kinds[kind].name,
          crash_power_each (&run, verify_image, &before));
  backend_close (run.disk);
  free_content (&before);
}

static void
test (const char *options, bool v3)
{
  struct backend *initial;
  char path[64];
  size_t i;

  printf ("%s\n", options);
  snprintf (path, sizeof path, "test-crash-repair.%d", (int) getpid ());
  crash_run_command ("qemu-img create -q -f qcow2 -o %s %s 1M",
                     options, path);
  crash_run_command ("qemu-io -f qcow2 -c 'write -P 1 0 300k' "
                     "-c 'write -c -P 2 512k 64k' %s >/dev/null", path);
  crash_run_command ("qemu-img snapshot -c one %s", path);
  crash_run_command ("qemu-io -f qcow2 -c 'write -P 4 10k 100k' "
                     "%s >/dev/null", path);
  initial = crash_run_load (path);
  unlink (path);
  for (i = 0; i < sizeof kinds / sizeof kinds[0]; ++i)
    if (v3 || !kinds[i].v3)
      test_kind (initial, i);
  backend_close (initial);
}

int
main (void)
{
  if (system ("qemu-img --version >/dev/null && qemu-io --version "
              ">/dev/null") != 0) {
    fprintf (stderr, "test-crash-I5-repair: skipped: no qemu-img or qemu-io "
             "to make images with\n");
    return 77;
  }
  assert (ccache_create (1 << 20, &ccache) == 0);
  test ("cluster_size=64k", true);
  test ("cluster_size=4k,lazy_refcounts=on", true);
  test ("cluster_size=64k,extended_l2=on", true);
  test ("cluster_size=64k,compat=0.10", false);
  ccache_free (ccache);
  return 0;
}
