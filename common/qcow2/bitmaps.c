/* SPDX-License-Identifier: BSD-3-Clause */
/* Keeping persistent bitmaps up.
 *
 * Only the changes of this session are in memory, one bit per granule of
 * each bitmap, set with atomic operations.  At clean close each cluster of
 * bitmap data that got new bits is read, changed and written in place, or
 * allocated if the table said "all zero".  That may be torn by a crash,
 * which does no harm: the bitmap is marked in use until all is stable.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "bitmaps.h"
#include "ondisk.h"

/* "Bitmap table" */
#define TABLE_OFFSET_MASK       UINT64_C (0x00fffffffffffe00)
#define TABLE_RESERVED_MASK     UINT64_C (0xff000000000001fe)
#define TABLE_ALL_ONES          UINT64_C (1)

#define DIRECTORY_FLAGS         12      /* in an entry */

struct bitmap {
  struct bitmap_entry *entry;
  uint64_t nr_bits;
  _Atomic uint64_t *changes;    /* NULL: not kept up, stays in use */
};

struct bitmaps {
  const char *name;
  const struct geometry *geo;
  struct backend *file;
  struct alloc *alloc;
  struct overlap *overlap;
  struct commit *commit;
  struct bitmap_directory directory;
  struct bitmap *kept;          /* the auto bitmaps that were valid */
  size_t nr_kept;
};

bool
bitmaps_are_exclusive (struct alloc *alloc, uint64_t off, uint64_t len)
{
  const unsigned bits = alloc->geo->cluster_bits;
  uint64_t idx = off >> bits, value;
  uint64_t end = idx + geometry_clusters (alloc->geo, len);

  WRITE_SCOPE (alloc->meta);
  for (; idx < end; ++idx) {
    if (refcount_get_locked (alloc->refcount, idx, &value) < 0 || value != 1)
      return false;
  }
  return true;
}

/* Take the auto bitmaps; what does not fit into MAX_BYTES gets no memory. */
static int
take_bitmaps (struct bitmaps *b, uint64_t size, uint64_t max_bytes)
{
  uint64_t words;
  size_t i;

  b->kept = calloc (b->directory.nr, sizeof *b->kept);
  if (b->kept == NULL)
    return -ENOMEM;
  for (i = 0; i < b->directory.nr; ++i) {
    struct bitmap_entry *e = &b->directory.entries[i];
    struct bitmap *m = &b->kept[b->nr_kept];

    if ((e->flags & BITMAP_AUTO) == 0 || (e->flags & BITMAP_IN_USE))
      continue;
    b->nr_kept++;
    m->entry = e;
    m->nr_bits = (size >> e->granularity_bits) +
      !!(size & ((UINT64_C (1) << e->granularity_bits) - 1));
    words = m->nr_bits / 64 + 1;
    if (e->table_size != bitmaps_table_size (b->geo, size,
                                             e->granularity_bits) ||
        words * 8 > max_bytes) {
      nbdkit_debug ("%s: bitmap \"%s\" is not kept up", b->name, e->name);
      continue;
    }
    m->changes = calloc (words, 8);
    if (m->changes == NULL)
      return -ENOMEM;
    max_bytes -= words * 8;
  }
  return 0;
}

int
bitmaps_open (const char *name, const struct geometry *geo,
              const struct header *h, struct backend *file,
              struct alloc *alloc, struct overlap *overlap,
              struct commit *commit, uint64_t max_bytes,
              struct bitmaps **ret)
{
  struct bitmaps *b;
  int r;

  b = calloc (1, sizeof *b);
  if (b == NULL)
    return -ENOMEM;
  b->name = name;
  b->geo = geo;
  b->file = file;
  b->alloc = alloc;
  b->overlap = overlap;
  b->commit = commit;
  r = bitmaps_read_directory (name, file, geo, h, &b->directory);
  if (r == 0 && !bitmaps_are_exclusive (alloc, h->bitmap_directory_offset,
                                        h->bitmap_directory_size)) {
    nbdkit_error ("%s: the bitmap directory at offset %" PRIu64 " is used "
                  "for something else as well; the bitmaps are taken as "
                  "inconsistent", name, h->bitmap_directory_offset);
    r = -EINVAL;
  }
  if (r == 0)
    r = take_bitmaps (b, h->size, max_bytes);
  if (r < 0) {
    bitmaps_close (b);
    return r;
  }
  *ret = b;
  return 0;
}

void
bitmaps_close (struct bitmaps *b)
{
  size_t i;

  if (b == NULL)
    return;
  for (i = 0; i < b->nr_kept; ++i)
    free ((void *) b->kept[i].changes);
  free (b->kept);
  bitmaps_free_directory (&b->directory);
  free (b);
}

static int
write_flags (struct bitmaps *b, struct bitmap_entry *e, uint32_t flags)
{
  uint8_t buf[4];
  int r;

  put_be32 (buf, flags);
  r = backend_pwrite (b->file, buf, sizeof buf,
                      e->entry_off + DIRECTORY_FLAGS, 0);
  if (r == 0)
    e->flags = flags;
  return r;
}

int
bitmaps_announce (struct bitmaps *b, bool *changed)
{
  size_t i;
  int r;

  for (i = 0; i < b->nr_kept; ++i) {
    r = write_flags (b, b->kept[i].entry,
                     b->kept[i].entry->flags | BITMAP_IN_USE);
    if (r < 0)
      return r;
    *changed = true;
  }
  return 0;
}

/* Set the bits [FIRST, LAST]. */
static void
set_bits (_Atomic uint64_t *words, uint64_t first, uint64_t last)
{
  uint64_t w, mask;

  for (w = first / 64; w <= last / 64; ++w) {
    mask = UINT64_MAX;
    if (w == first / 64)
      mask &= UINT64_MAX << (first % 64);
    if (w == last / 64)
      mask &= UINT64_MAX >> (63 - last % 64);
    if ((atomic_load_explicit (&words[w], memory_order_relaxed) & mask) !=
        mask)
      atomic_fetch_or_explicit (&words[w], mask, memory_order_relaxed);
  }
}

void
bitmaps_mark (struct bitmaps *b, uint64_t off, uint64_t len)
{
  struct bitmap *m;
  unsigned bits;
  size_t i;

  if (len == 0)
    return;
  for (i = 0; i < b->nr_kept; ++i) {
    m = &b->kept[i];
    bits = m->entry->granularity_bits;
    if (m->changes)
      set_bits (m->changes, off >> bits, (off + len - 1) >> bits);
  }
}

/* Storing one bitmap. */
struct store {
  struct bitmap *m;
  uint8_t *table;               /* disk order */
  uint8_t *data;                /* one cluster */
  bool table_changed;
};

/* Bytes of new bits that belong to the cluster of bitmap data I: are there
 * any?  They are ORed into S->data.
 */
static bool
add_changes (const struct bitmaps *b, struct store *s, uint64_t i)
{
  const uint64_t first = i * b->geo->cluster_size;      /* byte */
  const uint64_t total = (s->m->nr_bits + 7) / 8;
  uint64_t n, byte;
  bool any = false;
  uint8_t bits;

  for (n = 0; n < b->geo->cluster_size && first + n < total; ++n) {
    byte = first + n;
    bits = s->m->changes[byte / 8] >> (byte % 8 * 8);
    if (bits) {
      s->data[n] |= bits;
      any = true;
    }
  }
  return any;
}

static int
alloc_cluster (struct bitmaps *b, uint64_t *off)
{
  bool virgin;
  int r;

  for (;;) {
    {
      WRITE_SCOPE (b->alloc->meta);
      r = alloc_exactly_locked (b->alloc, 1, off, &virgin);
    }
    if (r != -EAGAIN)
      return r;
    r = commit_grow_reftable (b->commit);
    if (r < 0)
      return r;
  }
}

/* The cluster of bitmap data I of S. */
static int
store_cluster (struct bitmaps *b, struct store *s, uint64_t i)
{
  uint64_t entry = get_be64 (s->table + i * 8);
  uint64_t off = entry & TABLE_OFFSET_MASK;
  int r;

  if (entry == TABLE_ALL_ONES)
    return 0;
  memset (s->data, 0, b->geo->cluster_size);
  if (!add_changes (b, s, i))
    return 0;
  if ((entry & TABLE_RESERVED_MASK) || (off && (entry & TABLE_ALL_ONES)) ||
      geometry_in_cluster (b->geo, off) != 0)
    return -EINVAL;
  if (off) {
    {
      READ_SCOPE (b->alloc->meta);
      if (overlap_find (b->overlap, off, b->geo->cluster_size))
        return -EINVAL;
    }
    if (!bitmaps_are_exclusive (b->alloc, off, b->geo->cluster_size))
      return -EINVAL;
    r = backend_pread (b->file, s->data, b->geo->cluster_size, off);
    if (r < 0)
      return r;
    add_changes (b, s, i);
  }
  else {
    r = alloc_cluster (b, &off);
    if (r < 0)
      return r;
    put_be64 (s->table + i * 8, off);
    s->table_changed = true;
  }
  return backend_pwrite (b->file, s->data, b->geo->cluster_size, off, 0);
}

static int
store_bitmap (struct bitmaps *b, struct bitmap *m)
{
  const struct bitmap_entry *e = m->entry;
  struct store s = { .m = m };
  uint64_t i;
  int r = -ENOMEM;

  if (!bitmaps_are_exclusive (b->alloc, e->table_off,
                              (uint64_t) e->table_size * 8))
    return -EINVAL;
  s.table = malloc ((size_t) e->table_size * 8);
  s.data = malloc (b->geo->cluster_size);
  if (s.table && s.data)
    r = backend_pread (b->file, s.table, (size_t) e->table_size * 8,
                       e->table_off);
  for (i = 0; r == 0 && i < e->table_size; ++i)
    r = store_cluster (b, &s, i);
  /* Refcounts of new clusters before the entries (I1). */
  if (r == 0 && s.table_changed)
    r = commit_flush (b->commit);
  if (r == 0 && s.table_changed)
    r = backend_pwrite (b->file, s.table, (size_t) e->table_size * 8,
                        e->table_off, 0);
  free (s.table);
  free (s.data);
  return r;
}

int
bitmaps_store (struct bitmaps *b)
{
  size_t i;
  int r;

  for (i = 0; i < b->nr_kept; ++i) {
    struct bitmap *m = &b->kept[i];

    r = m->changes ? store_bitmap (b, m) : -ENOTSUP;
    if (r < 0) {
      nbdkit_error ("%s: the bitmap \"%s\" could not be kept up (%s); it "
                    "stays marked as in use, so it counts as inconsistent",
                    b->name, m->entry->name, strerror (-r));
      free ((void *) m->changes);
      m->changes = NULL;
    }
  }
  r = commit_barrier (b->commit);
  for (i = 0; r == 0 && i < b->nr_kept; ++i) {
    struct bitmap_entry *e = b->kept[i].entry;

    if (b->kept[i].changes)
      r = write_flags (b, e, e->flags & ~(uint32_t) BITMAP_IN_USE);
  }
  return r;
}
