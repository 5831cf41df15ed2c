/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss during snapshot and resize operations (I5: the header is the
 * switch).  At every moment, with any of the open calls lost, kept or torn,
 * the disk is what it was before or what it is after; the other snapshots
 * are what they were; a bitmap that looks valid knows of all changes; and
 * metadata has no errors but what the dirty bit announces and a repair cures.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend-crash.h"
#include "backend-mem.h"
#include "crash-bitmaps.h"
#include "crash-check.h"
#include "crash-power.h"
#include "crash-run.h"
#include "repair.h"
#include "resize.h"
#include "snapshot.h"

enum op { CREATE, APPLY, DELETE, GROW, GROW_L1, SHRINK, NR_OPS };

static const char *const op_names[] = {
  "snapshot_create", "snapshot_apply", "snapshot_delete", "grow",
  "grow with a new L1 table", "shrink",
};

static struct ccache *ccache;

static struct core *
open_core (struct backend *b, bool writable)
{
  const struct core_options opts = {
    .writable = writable, .metadata_cache = 1 << 20, .ccache = ccache,
    .discard = true,
  };
  struct core *core;

  return core_open (b, &opts, &core) == 0 ? core : NULL;
}

static int
run_op (struct core *core, enum op op)
{
  const struct timespec when = { .tv_sec = 1 };

  switch (op) {
  case CREATE: return snapshot_create (core, "new", &when);
  case APPLY: return snapshot_apply (core, "one");
  case DELETE: return snapshot_delete (core, "one");
  case GROW: return resize_image (core, core->header.size + 65536, false);
  case GROW_L1: return resize_image (core, core->header.size * 5, false);
  case SHRINK: return resize_image (core, core->header.size / 3, true);
  default: abort ();
  }
}

/* What an image holds: the disk, and the snapshots by name. */
struct content {
  uint64_t size;
  uint8_t *disk;
  size_t nr;
  char names[4][16];
  uint64_t sizes[4];
  uint8_t *snapshots[4];
};

static bool
read_content (struct backend *b, struct content *c)
{
  struct core *core = open_core (b, false);
  size_t i;
  bool ok = core != NULL;

  memset (c, 0, sizeof *c);
  if (!ok)
    return false;
  c->size = core->io.size;
  c->disk = malloc (c->size + 1);
  ok = c->disk && crash_run_read (&core->io, c->disk) == 0;
  for (i = 0; ok && i < core->snapshots.nr; i++) {
    struct snapshot_entry *e = &core->snapshots.entries[i];

    assert (i < 4);
    snprintf (c->names[i], sizeof c->names[i], "%s", e->name);
    c->sizes[i] = e->disk_size;
    c->snapshots[i] = crash_run_read_snapshot (core, i);
    ok = c->snapshots[i] != NULL;
    c->nr++;
  }
  core_close (core);
  return ok;
}

static void
free_content (struct content *c)
{
  size_t i;

  free (c->disk);
  for (i = 0; i < c->nr; i++)
    free (c->snapshots[i]);
}

static bool
same_content (const struct content *a, const struct content *b)
{
  size_t i;

  if (a->size != b->size || memcmp (a->disk, b->disk, a->size) != 0 ||
      a->nr != b->nr)
    return false;
  for (i = 0; i < a->nr; i++)
    if (strcmp (a->names[i], b->names[i]) != 0 ||
        a->sizes[i] != b->sizes[i] ||
        memcmp (a->snapshots[i], b->snapshots[i], a->sizes[i]) != 0)
      return false;
  return true;
}

/* The number of valid bitmaps, which must know what changed since BEFORE. */
static size_t
valid_bitmaps (struct backend *image, const struct content *before,
               const struct content *now)
{
  size_t nr;
  bool ok;

  nr = crash_bitmaps_valid (image, before->disk, now->disk,
                            before->size < now->size ? before->size
                            : now->size, &ok);
  assert (ok);
  return nr;
}

static void
verify_content (struct backend *image, const struct content *before,
                const struct content *after)
{
  struct content now;

  if (!read_content (image, &now)) {
    fprintf (stderr, "the image cannot be read\n");
    abort ();
  }
  if (!same_content (&now, before) && !same_content (&now, after)) {
    fprintf (stderr, "the content is neither old nor new\n");
    abort ();
  }
  valid_bitmaps (image, before, &now);
  free_content (&now);
}

/* Version 2 has no dirty bit, so flags may be wrong there; refcounts never
 * too low.
 */
static void
verify (struct backend *image, const struct content *before,
        const struct content *after, bool v2)
{
  struct crash_check check;
  struct check_result res;

  assert (crash_check (image, false, &check) == 0);
  if (check.errors && !check.dirty && !v2) {
    assert (crash_check (image, true, &check) == 0);
    abort ();
  }
  verify_content (image, before, after);
  if (check.errors == 0 && check.leaks == 0 && !check.dirty)
    return;
  assert (repair_run (image, REPAIR_ALL, NULL, &res) == 0);
  assert (crash_check (image, false, &check) == 0);
  /* Refcounts of clusters behind the end of the file may remain: the write
   * that made it longer was lost, and like QEMU the check ends there.
   */
  if (check.errors || check.dirty || check.leaks > 2) {
    assert (crash_check (image, true, &check) == 0);
    abort ();
  }
  verify_content (image, before, after);
}

struct expected {
  struct content before, after;
  bool v2;
};

static void
verify_image (const struct crash_image *image, void *opaque)
{
  const struct expected *e = opaque;

  verify (image->file, &e->before, &e->after, e->v2);
}

static void
test_op (struct backend *initial, enum op op, bool v2, size_t bitmaps)
{
  struct crash_clock clock = { .now = 0 };
  struct crash_run run = { .clock = &clock };
  struct expected e = { .v2 = v2 };
  struct backend *mem;
  struct core *core;

  assert (read_content (initial, &e.before));
  assert (backend_mem_clone (initial, &mem) == 0);
  assert (backend_crash_create (mem, &clock, &run.disk) == 0);
  core = open_core (run.disk, true);
  assert (core != NULL);
  assert (run_op (core, op) == 0);
  assert (core_finish (core) == 0);
  core_close (core);
  assert (read_content (run.disk, &e.after));
  assert (!same_content (&e.before, &e.after));
  assert (valid_bitmaps (run.disk, &e.before, &e.after) == bitmaps);
  printf ("%s: %zu images\n", op_names[op],
          crash_power_each (&run, verify_image, &e));
  backend_close (run.disk);
  free_content (&e.before);
  free_content (&e.after);
}

static void
test (const char *options, unsigned size_k, bool v2, bool bitmap)
{
  struct backend *initial;
  char path[64];
  int op;

  printf ("%s%s\n", options, bitmap ? ", with a bitmap" : "");
  snprintf (path, sizeof path, "test-crash-admin.%d", (int) getpid ());
  crash_run_command ("qemu-img create -q -f qcow2 -o %s %s %uk",
                     options, path, size_k);
  crash_run_command ("qemu-io -f qcow2 -c 'write -P 1 0 %uk' "
                     "-c 'write -c -P 2 %uk 64k' -c 'write -P 3 %uk 20k' "
                     "%s >/dev/null", size_k / 3, size_k / 2,
                     size_k - 100, path);
  crash_run_command ("qemu-img snapshot -c one %s", path);
  if (bitmap)
    crash_run_command ("qemu-img bitmap --add -g 512 %s bitmap", path);
  crash_run_command ("qemu-io -f qcow2 -c 'write -P 4 10k %uk' "
                     "-c 'discard 0 64k' %s >/dev/null", size_k / 4, path);
  crash_run_command ("qemu-img snapshot -c two %s", path);
  crash_run_command ("qemu-io -f qcow2 -c 'write -P 5 %uk 90k' %s >/dev/null",
                     size_k / 5, path);
  initial = crash_run_load (path);
  unlink (path);
  for (op = 0; op < (v2 ? GROW : NR_OPS); op++)
    /* Only small clusters make small L1 tables. */
    if (op != GROW_L1 || strstr (options, "=4k"))
      test_op (initial, op, v2, bitmap);
  backend_close (initial);
}

int
main (void)
{
  if (system ("qemu-img --version >/dev/null && qemu-io --version "
              ">/dev/null") != 0) {
    fprintf (stderr, "test-crash-I5-admin: skipped: no qemu-img or qemu-io "
             "to make snapshots with\n");
    return 77;
  }
  assert (ccache_create (1 << 20, &ccache) == 0);
  test ("cluster_size=64k", 1280, false, false);
  test ("cluster_size=64k", 1280, false, true);
  test ("cluster_size=4k,refcount_bits=64", 1024, false, false);
  test ("cluster_size=64k,extended_l2=on,lazy_refcounts=on", 1280, false,
        false);
  test ("cluster_size=64k,compat=0.10", 1280, true, false);
  ccache_free (ccache);
  return 0;
}
