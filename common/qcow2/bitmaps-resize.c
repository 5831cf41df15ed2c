/* SPDX-License-Identifier: BSD-3-Clause */
/* Persistent bitmaps when the size of the disk changes.
 *
 * Invariant: at any moment of a power loss the table that a directory entry
 * describes is readable and its clusters have refcounts.  A table that grows
 * gets its new place before its new size; one that shrinks first gets
 * its new size, and then what it lost is freed (I1).
 *
 * Locks: LOCK_META for allocation only.  Barriers are commit.c's.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "admin.h"
#include "bitmaps-resize.h"
#include "ondisk.h"

/* "Bitmap directory", "Bitmap table" */
#define ENTRY_TABLE_OFF         0
#define ENTRY_TABLE_SIZE        8
#define ENTRY_FLAGS             12
#define TABLE_OFFSET_MASK       UINT64_C (0x00fffffffffffe00)
#define TABLE_ALL_ONES          UINT64_C (1)

/* For the changes of the bitmaps that are opened again. */
#define REOPEN_MEMORY           (UINT64_C (64) << 20)

static int
put_field (struct core *core, const struct bitmap_entry *e, unsigned field,
           uint64_t value, unsigned bytes)
{
  uint8_t buf[8];

  if (bytes == 8)
    put_be64 (buf, value);
  else
    put_be32 (buf, value);
  return backend_pwrite (core->file, buf, bytes, e->entry_off + field, 0);
}

/* Mark all bitmaps as in use, or not; stable on return. */
static int
mark_all (struct bitmaps_resize *b, bool in_use)
{
  struct core *core = b->core;
  size_t i;
  int r;

  r = commit_barrier (&core->commit);
  for (i = 0; r == 0 && i < b->directory.nr; i++) {
    struct bitmap_entry *e = &b->directory.entries[i];

    e->flags = in_use ? e->flags | BITMAP_IN_USE
      : e->flags & ~(uint32_t) BITMAP_IN_USE;
    r = put_field (core, e, ENTRY_FLAGS, e->flags, 4);
  }
  return r == 0 ? commit_barrier (&core->commit) : r;
}

/* The bitmaps are not followed meanwhile; the promise to do so stays. */
static void
let_go (struct core *core)
{
  core->commit.bitmaps = NULL;
  core->io.bitmaps = NULL;
  bitmaps_close (core->bitmaps);
  core->bitmaps = NULL;
}

static int
open_again (struct core *core)
{
  int r;

  r = bitmaps_open (core->name, &core->geo, &core->header, core->file,
                    &core->alloc, core->overlap, &core->commit,
                    REOPEN_MEMORY, &core->bitmaps);
  if (r < 0)
    return r;
  core->commit.bitmaps = core->bitmaps;
  core->io.bitmaps = core->bitmaps;
  return 0;
}

static bool
is_valid (const struct bitmaps_resize *b, const struct bitmap_entry *e)
{
  return (e->flags & BITMAP_IN_USE) == 0 &&
    e->table_size == bitmaps_table_size (&b->core->geo, b->old_size,
                                         e->granularity_bits);
}

/* Bitmaps that are not valid stay as they are. */
static void
drop_invalid (struct bitmaps_resize *b)
{
  struct bitmap_directory *d = &b->directory;
  size_t i, n = 0;

  for (i = 0; i < d->nr; i++)
    if (is_valid (b, &d->entries[i]))
      d->entries[n++] = d->entries[i];
    else
      free (d->entries[i].name);
  d->nr = n;
}

/* QEMU refuses as well. */
static int
check_all (const struct bitmaps_resize *b, uint64_t new_size)
{
  const struct core *core = b->core;
  size_t i;

  for (i = 0; new_size != b->old_size && i < b->directory.nr; i++) {
    const struct bitmap_entry *e = &b->directory.entries[i];

    if (!is_valid (b, e)) {
      nbdkit_error ("%s: the size cannot be changed while the bitmap \"%s\" "
                    "is inconsistent: remove it (qemu-img bitmap --remove)",
                    core->name, e->name);
      return -ENOTSUP;
    }
    if (new_size == 0) {
      nbdkit_error ("%s: a disk of 0 bytes cannot have the bitmap \"%s\": "
                    "remove it (qemu-img bitmap --remove)",
                    core->name, e->name);
      return -ENOTSUP;
    }
  }
  return 0;
}

static int
compare_tables (const void *a, const void *b)
{
  const struct bitmap_entry *x = *(struct bitmap_entry *const *) a;
  const struct bitmap_entry *y = *(struct bitmap_entry *const *) b;

  return x->table_off < y->table_off ? -1 : x->table_off > y->table_off;
}

/* No two of them use the same space: then the work follows the size of the
 * file, and a change of one leaves the others alone.
 */
static int
check_apart (const struct bitmaps_resize *b)
{
  const struct bitmap_directory *d = &b->directory;
  struct bitmap_entry **e;
  size_t i;
  int r = 0;

  e = malloc ((d->nr + 1) * sizeof *e);
  if (e == NULL)
    return -ENOMEM;
  for (i = 0; i < d->nr; i++)
    e[i] = &d->entries[i];
  qsort (e, d->nr, sizeof *e, compare_tables);
  for (i = 1; r == 0 && i < d->nr; i++) {
    if (e[i]->table_off >=
        e[i - 1]->table_off + e[i - 1]->table_size * UINT64_C (8))
      continue;
    nbdkit_error ("%s: the bitmaps \"%s\" and \"%s\" use the same space: "
                  "remove one of them (qemu-img bitmap --remove)",
                  b->core->name, e[i - 1]->name, e[i]->name);
    r = -EINVAL;
  }
  free (e);
  return r;
}

int
bitmaps_resize_begin (struct bitmaps_resize *b, struct core *core,
                      uint64_t new_size)
{
  int r;

  memset (b, 0, sizeof *b);
  b->core = core;
  b->old_size = core->header.size;
  if (core->bitmaps == NULL)
    return 0;
  r = bitmaps_store (core->bitmaps);
  if (r == 0)
    r = bitmaps_read_directory (core->name, core->file, &core->geo,
                                &core->header, &b->directory);
  if (r == 0)
    r = check_all (b, new_size);
  if (r == 0) {
    drop_invalid (b);
    r = check_apart (b);
  }
  if (r == 0)
    r = mark_all (b, true);
  if (r < 0) {
    bitmaps_free_directory (&b->directory);
    return r;
  }
  let_go (core);
  b->active = true;
  return 0;
}

/* One bitmap whose table is in memory. */
struct table {
  struct core *core;
  struct bitmap_entry *e;
  uint8_t *bytes;               /* disk order */
  uint64_t old_size, size;      /* entries */
};

static int
table_broken (const struct table *t, const char *what, uint64_t off)
{
  nbdkit_error ("%s: bitmap \"%s\": %s at offset 0x%" PRIx64 " is used twice, "
                "or is not in the file; it stays marked as in use",
                t->core->name, t->e->name, what, off);
  return -EINVAL;
}

/* May the clusters be written, and freed? */
static bool
is_own (const struct table *t, uint64_t off, uint64_t len)
{
  enum overlap_kind kind;

  if (!bitmaps_are_exclusive (&t->core->alloc, off, len))
    return false;

  READ_SCOPE (&t->core->meta);
  kind = overlap_find (t->core->overlap, off, len);
  return kind == 0 || kind == OVERLAP_BITMAPS;
}

/* The host cluster of entry I, 0 = none. */
static int
get_cluster (const struct table *t, uint64_t i, uint64_t *off)
{
  *off = get_be64 (t->bytes + i * 8) & TABLE_OFFSET_MASK;
  if (*off == 0)
    return 0;
  if (geometry_in_cluster (&t->core->geo, *off) != 0 ||
      !is_own (t, *off, t->core->geo.cluster_size))
    return table_broken (t, "bitmap data", *off);
  return 0;
}

static int
table_load (struct table *t)
{
  const struct geometry *g = &t->core->geo;
  uint64_t larger = t->size > t->old_size ? t->size : t->old_size;
  int r;

  if (!is_own (t, t->e->table_off, t->old_size * 8))
    return table_broken (t, "its table", t->e->table_off);
  t->bytes = calloc (1, geometry_cluster_end (g, larger * 8));
  if (t->bytes == NULL)
    return -ENOMEM;
  r = backend_pread (t->core->file, t->bytes, t->old_size * 8,
                     t->e->table_off);
  return r == -ENODATA ? table_broken (t, "its table", t->e->table_off) : r;
}

/* The table moves to where it has room. */
static int
table_move (struct table *t, uint64_t old_nr, uint64_t nr)
{
  struct core *core = t->core;
  uint64_t off, old_off = t->e->table_off;
  int r;

  r = admin_alloc (core, nr, OVERLAP_BITMAPS, &off);
  if (r < 0)
    return r;
  r = backend_pwrite (core->file, t->bytes, nr << core->geo.cluster_bits,
                      off, 0);
  if (r == 0)
    r = commit_flush (&core->commit);
  if (r == 0)
    r = put_field (core, t->e, ENTRY_TABLE_OFF, off, 8);
  if (r == 0)
    r = commit_barrier (&core->commit);
  if (r < 0)
    return r;                   /* the space is leaked until a check */
  t->e->table_off = off;
  admin_free (core, old_off, old_nr, true);
  return 0;
}

static int
table_grow (struct table *t)
{
  const struct geometry *g = &t->core->geo;
  uint64_t old_nr = geometry_clusters (g, t->old_size * 8);
  uint64_t nr = geometry_clusters (g, t->size * 8);
  int r;

  if (nr > old_nr)
    r = table_move (t, old_nr, nr);
  else
    r = backend_pwrite (t->core->file, t->bytes + t->old_size * 8,
                        (t->size - t->old_size) * 8,
                        t->e->table_off + t->old_size * 8, 0);
  if (r == 0)
    r = commit_barrier (&t->core->commit);
  if (r == 0)
    r = put_field (t->core, t->e, ENTRY_TABLE_SIZE, t->size, 4);
  return r;
}

/* Bits behind the end of the disk must be zero, or they would be there
 * when it grows again.
 */
static int
clear_tail (struct table *t)
{
  struct core *core = t->core;
  uint64_t off, bits, first, cs = core->geo.cluster_size;
  unsigned gran = t->e->granularity_bits;
  uint8_t *data;
  int r;

  r = get_cluster (t, t->size - 1, &off);
  if (r < 0 || off == 0)
    return r;
  bits = (core->header.size >> gran) +
    !!(core->header.size & ((UINT64_C (1) << gran) - 1));
  bits -= (t->size - 1) * cs * 8;
  first = bits / 8;
  if (first == cs)
    return 0;
  data = malloc (cs);
  if (data == NULL)
    return -ENOMEM;
  r = backend_pread (core->file, data, cs, off);
  if (r == -ENODATA)
    r = table_broken (t, "bitmap data", off);
  if (r == 0) {
    data[first] &= (1 << bits % 8) - 1;
    memset (data + first + 1, 0, cs - first - 1);
    r = backend_pwrite (core->file, data, cs, off, 0);
  }
  free (data);
  return r;
}

static int
table_shrink (struct table *t)
{
  struct core *core = t->core;
  uint64_t old_nr = geometry_clusters (&core->geo, t->old_size * 8);
  uint64_t nr = geometry_clusters (&core->geo, t->size * 8);
  uint64_t i, off;
  int r = 0;

  for (i = t->size; r == 0 && i < t->old_size; i++)
    r = get_cluster (t, i, &off);
  if (r == 0)
    r = put_field (core, t->e, ENTRY_TABLE_SIZE, t->size, 4);
  if (r == 0)
    r = commit_barrier (&core->commit);
  for (i = t->size; r == 0 && i < t->old_size; i++) {
    r = get_cluster (t, i, &off);
    if (r == 0 && off)
      admin_free (core, off, 1, true);
  }
  if (r == 0)
    admin_free (core, t->e->table_off + (nr << core->geo.cluster_bits),
                old_nr - nr, true);
  if (r == 0 && t->size > 0)
    r = clear_tail (t);
  return r;
}

/* Every bit of the disk is set: whole clusters by the entry alone, the last
 * one by data, since bits behind the end stay zero.
 */
static int
table_fill (struct table *t)
{
  struct core *core = t->core;
  const uint64_t cs = core->geo.cluster_size;
  unsigned gran = t->e->granularity_bits;
  uint64_t bits = (core->header.size >> gran) +
    !!(core->header.size & ((UINT64_C (1) << gran) - 1));
  uint64_t last_bits = bits - (t->size - 1) * cs * 8;
  uint64_t i, off, last_off;
  uint8_t *old, *data;
  int r;

  old = malloc (t->size * 8);
  data = calloc (1, cs);
  r = old && data ? 0 : -ENOMEM;
  if (r == 0) {
    memcpy (old, t->bytes, t->size * 8);
    r = get_cluster (t, t->size - 1, &last_off);
  }
  if (r == 0 && last_off == 0)
    r = admin_alloc (core, 1, OVERLAP_BITMAPS, &last_off);
  if (r == 0) {
    memset (data, 0xff, last_bits / 8);
    if (last_bits % 8)
      data[last_bits / 8] = (1 << last_bits % 8) - 1;
    r = backend_pwrite (core->file, data, cs, last_off, 0);
  }
  if (r == 0)
    r = commit_flush (&core->commit);
  for (i = 0; i < t->size - 1; i++)
    put_be64 (t->bytes + i * 8, TABLE_ALL_ONES);
  put_be64 (t->bytes + i * 8, last_off);
  if (r == 0)
    r = backend_pwrite (core->file, t->bytes, t->size * 8, t->e->table_off,
                        0);
  if (r == 0)
    r = commit_barrier (&core->commit);
  for (i = 0; r == 0 && i < t->size - 1; i++) {
    off = get_be64 (old + i * 8) & TABLE_OFFSET_MASK;
    if (off && geometry_in_cluster (&core->geo, off) == 0 &&
        is_own (t, off, cs))
      admin_free (core, off, 1, true);
  }
  free (old);
  free (data);
  return r;
}

static int
resize_one (struct core *core, struct bitmap_entry *e, bool all_dirty)
{
  struct table t = {
    .core = core, .e = e, .old_size = e->table_size,
    .size = bitmaps_table_size (&core->geo, core->header.size,
                                e->granularity_bits),
  };
  int r;

  r = table_load (&t);
  if (r == 0 && t.size > t.old_size)
    r = table_grow (&t);
  else if (r == 0)
    r = table_shrink (&t);
  e->table_size = t.size;
  if (r == 0 && all_dirty && (e->flags & BITMAP_AUTO) && t.size > 0)
    r = table_fill (&t);
  free (t.bytes);
  return r;
}

int
bitmaps_resize_end (struct bitmaps_resize *b, bool all_dirty)
{
  struct core *core = b->core;
  size_t i;
  int r = 0, r2;

  if (!b->active)
    return 0;
  if (commit_has_failed (&core->commit)) {
    bitmaps_free_directory (&b->directory);
    return -EIO;                /* they stay marked */
  }
  for (i = 0; r == 0 && i < b->directory.nr; i++)
    if (core->header.size != b->old_size || all_dirty)
      r = resize_one (core, &b->directory.entries[i], all_dirty);
  if (r == 0)
    r = admin_settle (core);
  if (r == 0)
    r = mark_all (b, false);
  bitmaps_free_directory (&b->directory);
  r2 = open_again (core);
  return r < 0 ? r : r2;
}
