/* SPDX-License-Identifier: BSD-3-Clause */
/* Changes of L2 entries.
 *
 * Invariants:
 *  - An entry that goes drops the reference that it held, once, by way of
 *    the allocator's pending list (I4); an entry that lies frees no
 *    metadata.
 *  - The tables that are changed are ours alone: map_prepare_locked came
 *    first.
 *
 * Locks: LOCK_META, exclusively, held by the caller.
 *
 * Writes nothing: that is commit.c.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "map-entry.h"
#include "map.h"

/* An entry that lies must not free metadata. */
static bool
holds_metadata (struct map *map, uint64_t host_off, uint64_t len)
{
  enum overlap_kind kind = overlap_find (map->overlap, host_off, len);

  if (kind)
    nbdkit_error ("%s: an L2 entry refers to host offset 0x%" PRIx64
                  ", where the %s is, which is not freed (try repair=all)",
                  map->name, host_off, overlap_kind_name (kind));
  return kind != 0;
}

/* Drop the reference that E holds, unless it is to the host cluster
 * KEEP_OFF (UINT64_MAX = none).
 */
static void
free_entry (struct map *map, struct l2_entry e, uint64_t keep_off)
{
  const struct geometry *geo = map->geo;
  uint64_t off, len;

  if (geo->has_data_file)
    return;
  if (l2_entry_compressed (e)) {
    off = l2_entry_comp_off (geo, e);
    len = l2_entry_comp_len (geo, e);
    if (!holds_metadata (map, off, len))
      alloc_defer_free_bytes_locked (map->alloc, off, len);
    return;
  }
  off = l2_entry_off (e);
  if (off != 0 && off != keep_off && geometry_in_cluster (geo, off) == 0 &&
      !holds_metadata (map, off, 1))
    alloc_defer_free_locked (map->alloc, off, 1);
}

/* Bits of the subclusters that [IN_CLUSTER, IN_CLUSTER + LEN) covers. */
static uint64_t
sub_mask (const struct geometry *geo, uint64_t in_cluster, uint64_t len)
{
  unsigned first = in_cluster >> geo->subcluster_bits;
  unsigned nr = len >> geo->subcluster_bits;

  return ((UINT64_C (1) << nr) - 1) << first;
}

/* A change of entries: how the new one follows from the old one.  Returns
 * the new entry for the part [GUEST_OFF, GUEST_OFF + LEN) of one cluster;
 * host_off is that of the cluster.
 */
typedef struct l2_entry change_fn (struct map *map, struct l2_entry old,
                                   uint64_t guest_off, uint64_t len,
                                   uint64_t host_off);

static struct l2_entry
change_to_data (struct map *map, struct l2_entry old,
                uint64_t guest_off, uint64_t len, uint64_t host_off)
{
  const struct geometry *geo = map->geo;
  struct l2_entry e = { .v = host_off | ENTRY_COPIED };
  uint64_t mask;

  free_entry (map, old, host_off);
  if (!geo->extended_l2)
    return e;
  mask = sub_mask (geo, geometry_in_cluster (geo, guest_off), len);
  if (!l2_entry_compressed (old))
    e.bitmap = old.bitmap;
  e.bitmap &= ~(mask << 32);
  e.bitmap |= mask;
  return e;
}

static struct l2_entry
change_to_zero (struct map *map, struct l2_entry old,
                uint64_t guest_off, uint64_t len, bool keep)
{
  const struct geometry *geo = map->geo;
  struct l2_entry e = { .v = 0 };
  uint64_t mask, all = (UINT64_C (1) << SUBCLUSTERS_PER_CLUSTER) - 1;

  /* A shared cluster is of no use for a later write: never kept. */
  keep = keep && l2_entry_has_cluster (geo, old) && l2_entry_copied (old);
  if (!geo->extended_l2) {
    e.v = L2E_ZERO | (keep ? old.v & (L2E_OFFSET_MASK | ENTRY_COPIED) : 0);
    if (!keep)
      free_entry (map, old, UINT64_MAX);
    return e;
  }
  mask = sub_mask (geo, geometry_in_cluster (geo, guest_off), len);
  if (!l2_entry_compressed (old))
    e = old;
  e.bitmap = (e.bitmap & ~mask) | mask << 32;
  /* No subcluster is left in the host cluster: it can go. */
  if (!keep && (e.bitmap & all) == 0) {
    free_entry (map, old, UINT64_MAX);
    e.v = 0;
  }
  return e;
}

static struct l2_entry
change_zero_free (struct map *map, struct l2_entry old,
                  uint64_t guest_off, uint64_t len, uint64_t host_off)
{
  (void) host_off;
  return change_to_zero (map, old, guest_off, len, false);
}

static struct l2_entry
change_zero_keep (struct map *map, struct l2_entry old,
                  uint64_t guest_off, uint64_t len, uint64_t host_off)
{
  (void) host_off;
  return change_to_zero (map, old, guest_off, len, true);
}

static struct l2_entry
change_unmap (struct map *map, struct l2_entry old,
              uint64_t guest_off, uint64_t len, uint64_t host_off)
{
  struct l2_entry e = { .v = 0 };

  (void) guest_off;
  (void) len;
  (void) host_off;
  free_entry (map, old, UINT64_MAX);
  return e;
}

/* Apply CHANGE to each cluster of the range, one slice after the other. */
static int
change_range (struct map *map, uint64_t guest_off, uint64_t len,
              change_fn *change, uint64_t host_off, uint64_t *done)
{
  const struct geometry *geo = map->geo;
  const uint64_t slice_size = UINT64_C (1) << geo->slice_bits;
  uint64_t slice_off, in_slice, l1_idx, part, cluster_off, pos = guest_off;
  struct mcache_block *block;
  struct l2_entry old;
  uint8_t *p;
  int r;

  *done = 0;
  while (*done < len) {
    l1_idx = geometry_l1_idx (geo, pos);
    slice_off = map_entry_slice (geo, l1_entry_off (map->l1[l1_idx]), pos,
                                 &in_slice);
    r = mcache_get_locked (map->mcache, slice_off, &block);
    if (r < 0)
      return r;
    p = mcache_dirty_locked (map->mcache, block, MCACHE_L2, l1_idx);
    if (p == NULL)
      return -ENOMEM;
    map->changes++;
    for (; *done < len && in_slice < slice_size;
         in_slice += geo->l2_entry_size) {
      part = map_entry_clip (pos, len - *done, geo->cluster_bits);
      old = map_entry_get (geo, p + in_slice);
      cluster_off = host_off + (geometry_cluster_start (geo, pos) -
                                geometry_cluster_start (geo, guest_off));
      map_entry_put (geo, p + in_slice,
                     change (map, old, pos, part, cluster_off));
      pos += part;
      *done += part;
    }
  }
  return 0;
}

int
map_set_data_locked (struct map *map, uint64_t guest_off, uint64_t len,
                     uint64_t host_off, bool settled, uint64_t *done)
{
  int r = change_range (map, guest_off, len, change_to_data, host_off, done);

  if (!settled)
    map->ordered = map->changes;
  return r;
}

int
map_set_zero_locked (struct map *map, uint64_t guest_off, uint64_t len,
                     bool keep, uint64_t *done)
{
  return change_range (map, guest_off, len,
                       keep ? change_zero_keep : change_zero_free, 0, done);
}

int
map_unmap_locked (struct map *map, uint64_t guest_off, uint64_t len,
                  uint64_t *done)
{
  return change_range (map, guest_off, len, change_unmap, 0, done);
}

int
map_set_compressed_locked (struct map *map, uint64_t guest_off,
                           uint64_t host_off, uint64_t len)
{
  const struct geometry *geo = map->geo;
  struct mcache_block *block;
  uint64_t l1_idx = geometry_l1_idx (geo, guest_off);
  uint64_t slice_off, in_slice;
  uint8_t *p;
  int r;

  slice_off = map_entry_slice (geo, l1_entry_off (map->l1[l1_idx]),
                               guest_off, &in_slice);
  r = mcache_get_locked (map->mcache, slice_off, &block);
  if (r < 0)
    return r;
  p = mcache_dirty_locked (map->mcache, block, MCACHE_L2, l1_idx);
  if (p == NULL)
    return -ENOMEM;
  map->ordered = ++map->changes;
  free_entry (map, map_entry_get (geo, p + in_slice), UINT64_MAX);
  map_entry_put (geo, p + in_slice,
                 l2_entry_make_compressed (geo, host_off, len));
  return 0;
}
