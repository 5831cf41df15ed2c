/* SPDX-License-Identifier: BSD-3-Clause */
/* The L1 table, and the L2 tables that it points to.
 *
 * Lookups are in map-lookup.c, changes of entries in map-change.c.
 *
 * Invariant: a table that may be changed has one reference, that of the
 * active L1 table (map_prepare_locked makes it so).
 *
 * Locks: LOCK_META, exclusively, held by the caller of what changes.
 *
 * This file never decides when something is written to the tables on disk:
 * that is commit.c.  It does write the initial content of a new L2 table,
 * which nothing points to yet (I3 is kept by commit.c, which makes that
 * content stable before the L1 entry is written).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "map-entry.h"
#include "map.h"

#define MAX_EMPTY_SLICES 16

int
map_open (struct map *map, const char *name, const struct geometry *geo,
          struct backend *file, struct mcache *mcache, struct alloc *alloc,
          struct overlap *overlap, struct ranked_rwlock *meta,
          uint64_t size, uint64_t l1_off, uint64_t nr_l1)
{
  uint64_t i;
  uint8_t *raw = (uint8_t *) "";
  int r;

  *map = (struct map) {
    .name = name, .geo = geo, .file = file, .mcache = mcache,
    .alloc = alloc, .overlap = overlap, .meta = meta,
    .size = size, .l1_off = l1_off, .nr_l1 = nr_l1,
  };
  map->l1 = malloc (nr_l1 * sizeof *map->l1 + 1);
  if (alloc)
    map->l1_state = calloc (nr_l1 + 1, 1);
  if (map->l1 == NULL || (alloc && map->l1_state == NULL)) {
    r = -ENOMEM;
    goto fail;
  }

  /* Read into the array itself, then turn each entry round. */
  if (nr_l1 > 0) {
    raw = (uint8_t *) map->l1;
    r = backend_pread (file, raw, nr_l1 * 8, l1_off);
    if (r == -ENODATA) {
      nbdkit_error ("%s: L1 table at offset %" PRIu64 " with %" PRIu64
                    " entries ends beyond the end of the file: "
                    "the image is truncated", name, l1_off, nr_l1);
      r = -EINVAL;
    }
    if (r < 0)
      goto fail;
  }
  for (i = 0; i < nr_l1; ++i)
    map->l1[i].v = get_be64 (raw + i * 8);

  if (overlap == NULL)
    return 0;
  {
    WRITE_SCOPE (meta);

    r = overlap_add_locked (overlap, l1_off, nr_l1 * 8, OVERLAP_L1);
    for (i = 0; r == 0 && i < nr_l1; ++i) {
      if (l1_entry_off (map->l1[i]) && l1_entry_valid (geo, map->l1[i]))
        r = overlap_add_locked (overlap, l1_entry_off (map->l1[i]),
                                geo->cluster_size, OVERLAP_L2);
    }
  }
  if (r == 0)
    return 0;

 fail:
  map_close (map);
  return r;
}

void
map_close (struct map *map)
{
  free (map->l1);
  free (map->l1_state);
  map->l1 = NULL;
  map->l1_state = NULL;
}

/* The L1 entry IDX now points to the L2 table at L2_OFF. */
static void
set_l1 (struct map *map, uint64_t idx, uint64_t l2_off)
{
  map->l1[idx].v = l2_off | ENTRY_COPIED;
  map->l1_state[idx] |= MAP_L1_DIRTY;
  if (map->l1_dirty_lo >= map->l1_dirty_hi) {
    map->l1_dirty_lo = idx;
    map->l1_dirty_hi = idx + 1;
  }
  else {
    if (idx < map->l1_dirty_lo)
      map->l1_dirty_lo = idx;
    if (idx >= map->l1_dirty_hi)
      map->l1_dirty_hi = idx + 1;
  }
  map->ordered = ++map->changes;
}

/* Copy the table at OLD_OFF, cached changes included, to NEW_OFF. */
static int
copy_table (struct map *map, uint64_t old_off, uint64_t new_off)
{
  const uint64_t size = map->geo->cluster_size;
  const uint64_t slice_size = UINT64_C (1) << map->geo->slice_bits;
  struct mcache_block *block;
  uint64_t i;
  uint8_t *buf;
  int r = 0;

  buf = malloc (size);
  if (buf == NULL)
    return -ENOMEM;
  for (i = 0; r == 0 && i < size; i += slice_size) {
    r = mcache_get_locked (map->mcache, old_off + i, &block);
    if (r == 0)
      memcpy (buf + i, mcache_data (block), slice_size);
  }
  if (r == 0)
    r = backend_pwrite (map->file, buf, size, new_off, 0);
  free (buf);
  return r;
}

/* Slices of the empty table at L2_OFF around the entry of GUEST_OFF, which
 * is about to be set: they need not be read.  Not more of a large table than
 * the cache can spare.
 */
static int
cache_empty_slices (struct map *map, uint64_t l2_off, uint64_t guest_off)
{
  const uint64_t slice_size = UINT64_C (1) << map->geo->slice_bits;
  const uint64_t group = MAX_EMPTY_SLICES * slice_size;
  struct mcache_block *block;
  uint64_t in_slice, off, end;
  int r = 0;

  off = map_entry_slice (map->geo, l2_off, guest_off, &in_slice) - l2_off;
  off -= off % group;
  end = off + group < map->geo->cluster_size
    ? off + group : map->geo->cluster_size;
  for (; r == 0 && off < end; off += slice_size)
    r = mcache_new_locked (map->mcache, l2_off + off, &block);
  return r;
}

/* A new L2 table for GUEST_OFF: empty, or a copy of the shared one. */
static int
new_table (struct map *map, uint64_t guest_off, uint64_t old_off)
{
  uint64_t new_off;
  bool virgin;
  int r;

  r = alloc_exactly_locked (map->alloc, 1, &new_off, &virgin);
  if (r < 0)
    return r;
  mcache_forget_locked (map->mcache, new_off, map->geo->cluster_size);

  /* An empty table is written even where the file reads as zeroes, so that
   * the host has given the space before an entry depends on it.
   */
  if (old_off)
    r = copy_table (map, old_off, new_off);
  else
    r = backend_zero (map->file, new_off, map->geo->cluster_size);
  if (r == 0 && !old_off)
    r = cache_empty_slices (map, new_off, guest_off);
  if (r == 0)
    r = overlap_add_locked (map->overlap, new_off, map->geo->cluster_size,
                            OVERLAP_L2);
  if (r < 0) {
    mcache_forget_locked (map->mcache, new_off, map->geo->cluster_size);
    alloc_release_locked (map->alloc, new_off, 1);
    return r;
  }
  set_l1 (map, geometry_l1_idx (map->geo, guest_off), new_off);
  if (old_off)
    alloc_defer_free_locked (map->alloc, old_off, 1);
  return 0;
}

int
map_prepare_locked (struct map *map, uint64_t guest_off, uint64_t len)
{
  const struct geometry *geo = map->geo;
  uint64_t idx = geometry_l1_idx (geo, guest_off);
  uint64_t last = geometry_l1_idx (geo, guest_off + len - 1);
  uint64_t pos = guest_off;
  struct l1_entry e;
  int r;

  for (; idx <= last; pos = ++idx << geometry_l2_span_bits (geo)) {
    if (idx >= map->nr_l1) {
      nbdkit_error ("%s: the L1 table has %" PRIu64 " entries, too few for "
                    "the virtual size (try repair=all)",
                    map->name, map->nr_l1);
      return -EIO;
    }
    e = map->l1[idx];
    if (!l1_entry_valid (geo, e)) {
      map_lookup_complain (map, pos);
      return -EIO;
    }
    if (l1_entry_off (e) != 0 &&
        overlap_find (map->overlap, l1_entry_off (e), 1) != OVERLAP_L2) {
      nbdkit_error ("%s: L1 entry %" PRIu64 " refers to offset 0x%" PRIx64
                    ", which holds other metadata",
                    map->name, idx, l1_entry_off (e));
      return -EUCLEAN;
    }
    if (l1_entry_off (e) != 0 && (e.v & ENTRY_COPIED))
      continue;
    r = new_table (map, pos, l1_entry_off (e));
    if (r < 0)
      return r;
  }
  return 0;
}

int
map_take_dirty_locked (struct map *map, uint8_t **buf,
                       uint64_t *lo, uint64_t *hi)
{
  uint64_t i;

  *buf = NULL;
  *lo = map->l1_dirty_lo;
  *hi = map->l1_dirty_hi;
  if (*lo >= *hi)
    return 0;
  *buf = malloc ((*hi - *lo) * 8);
  if (*buf == NULL)
    return -ENOMEM;
  for (i = *lo; i < *hi; ++i) {
    put_be64 (*buf + (i - *lo) * 8, map->l1[i].v);
    if (map->l1_state[i] & MAP_L1_DIRTY)
      map->l1_state[i] = MAP_L1_FROZEN;
  }
  map->l1_dirty_lo = map->l1_dirty_hi = 0;
  return 0;
}

void
map_release_locked (struct map *map, uint64_t lo, uint64_t hi,
                    bool committed)
{
  uint64_t i;

  for (i = lo; i < hi; ++i) {
    if ((map->l1_state[i] & MAP_L1_FROZEN) == 0)
      continue;
    map->l1_state[i] &= ~MAP_L1_FROZEN;
    if (!committed)
      set_l1 (map, i, l1_entry_off (map->l1[i]));
  }
}

bool
map_is_frozen (const struct map *map, uint64_t l1_idx)
{
  return (map->l1_state[l1_idx] & MAP_L1_FROZEN) != 0;
}

#define MAX_QUICK_TABLES 4

/* Does the L2 table at L2_OFF refer to HOST_OFF?  From its end. */
static bool
table_refers (struct map *map, uint64_t l2_off, uint64_t host_off)
{
  const struct geometry *geo = map->geo;
  const uint64_t slice_size = UINT64_C (1) << geo->slice_bits;
  struct mcache_block *block;
  struct l2_entry e;
  uint64_t off, i;

  for (off = geo->cluster_size; off > 0; ) {
    off -= slice_size;
    if (mcache_get_locked (map->mcache, l2_off + off, &block) < 0)
      return false;
    for (i = 0; i < slice_size; i += geo->l2_entry_size) {
      e = map_entry_get (geo, mcache_data (block) + i);
      if (!l2_entry_compressed (e) && l2_entry_off (e) == host_off)
        return true;
    }
  }
  return false;
}

bool
map_refers_near_end_locked (struct map *map, uint64_t host_off)
{
  unsigned tables = 0;
  uint64_t i;

  for (i = map->nr_l1; i > 0 && tables < MAX_QUICK_TABLES; --i) {
    if (l1_entry_off (map->l1[i-1]) == 0 ||
        !l1_entry_valid (map->geo, map->l1[i-1]))
      continue;
    if (table_refers (map, l1_entry_off (map->l1[i-1]), host_off))
      return true;
    tables++;
  }
  return false;
}
