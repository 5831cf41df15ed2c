/* SPDX-License-Identifier: BSD-3-Clause */
/* Lookup and change of the guest-to-host mapping.
 *
 * Lookups hold LOCK_META shared and allocate nothing; a slice that is not
 * cached is read without a lock, then the lookup starts again.  Changes
 * hold it exclusively.
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

#include "map.h"

/* Entries examined in one lookup: bounds the time under the lock. */
#define MAX_LOOKUP_ENTRIES 32768

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

/* Offset in the image file of the slice that has the L2 entry of
 * GUEST_OFF in the table at L2_OFF, and where in the slice.
 */
static uint64_t
slice_of (const struct geometry *geo, uint64_t l2_off, uint64_t guest_off,
          uint64_t *in_slice)
{
  uint64_t byte = geometry_l2_idx (geo, guest_off) * geo->l2_entry_size;
  uint64_t mask = (UINT64_C (1) << geo->slice_bits) - 1;

  *in_slice = byte & mask;
  return l2_off + (byte & ~mask);
}

static struct l2_entry
get_entry (const struct geometry *geo, const uint8_t *p)
{
  struct l2_entry e = { .v = get_be64 (p) };

  if (geo->extended_l2)
    e.bitmap = get_be64 (p + 8);
  return e;
}

static void
put_entry (const struct geometry *geo, uint8_t *p, struct l2_entry e)
{
  put_be64 (p, e.v);
  if (geo->extended_l2)
    put_be64 (p + 8, e.bitmap);
}

/* Clip LEN so that OFF + LEN does not cross a multiple of 1 << BITS. */
static uint64_t
clip (uint64_t off, uint64_t len, unsigned bits)
{
  uint64_t room = (UINT64_C (1) << bits) - (off & ((UINT64_C (1) << bits) - 1));

  return len < room ? len : room;
}

/* The run of what entry E says, beginning at GUEST_OFF, to the end of its
 * cluster at the most.
 */
static void
entry_run (const struct geometry *geo, struct l2_entry e,
           uint64_t guest_off, uint64_t max_len, struct map_run *run)
{
  uint64_t in_cluster = geometry_in_cluster (geo, guest_off);
  unsigned sub = in_cluster >> geo->subcluster_bits;

  run->type = l2_entry_type (geo, e, sub);
  run->copied = l2_entry_copied (e);
  run->overlap = 0;
  if (run->type == ENTRY_COMPRESSED) {
    run->len = clip (guest_off, max_len, geo->cluster_bits);
    run->host_off = l2_entry_comp_off (geo, e);
    run->comp_len = l2_entry_comp_len (geo, e);
    return;
  }
  run->host_off = l2_entry_off (e) + in_cluster;
  run->len = clip (guest_off, max_len, geo->subcluster_bits);
  if (!geo->extended_l2)
    return;
  while (run->len < max_len && ++sub < SUBCLUSTERS_PER_CLUSTER &&
         l2_entry_type (geo, e, sub) == run->type)
    run->len += clip (guest_off + run->len, max_len - run->len,
                      geo->subcluster_bits);
}

/* Does NEXT, which begins where RUN ends, continue it? */
static bool
run_continues (const struct map_run *run, const struct map_run *next)
{
  if (run->type != next->type || run->type == ENTRY_COMPRESSED)
    return false;
  switch (run->type) {
  case ENTRY_DATA:
  case ENTRY_ZERO_ALLOC:
  case ENTRY_UNALLOC_ALLOC:
    return run->copied == next->copied &&
      run->host_off + run->len == next->host_off;
  default:
    return true;
  }
}

/* Part of GUEST_OFF, MAX_LEN that one L2 table maps.  -EAGAIN: the slice at
 * *MISSING is needed first.
 */
static int
lookup_in_table (struct map *map, uint64_t guest_off, uint64_t max_len,
                 struct map_run *run, unsigned *budget, uint64_t *missing)
{
  const struct geometry *geo = map->geo;
  const uint8_t *slice;
  uint64_t slice_off, in_slice, slice_size = UINT64_C (1) << geo->slice_bits;
  uint64_t l2_off = l1_entry_off (map->l1[geometry_l1_idx (geo, guest_off)]);
  uint64_t pos = guest_off, end = guest_off + max_len;
  struct map_run next;

  run->len = 0;
  while (pos < end) {
    slice_off = slice_of (geo, l2_off, pos, &in_slice);
    slice = mcache_peek (map->mcache, slice_off);
    if (slice == NULL) {
      *missing = slice_off;
      return run->len > 0 ? 0 : -EAGAIN;
    }
    while (pos < end && in_slice < slice_size) {
      entry_run (geo, get_entry (geo, slice + in_slice), pos, end - pos,
                 &next);
      if (run->len == 0)
        *run = next;
      else if (run_continues (run, &next))
        run->len += next.len;
      else
        return 0;
      pos += next.len;
      if (geometry_in_cluster (geo, pos) != 0 || --*budget == 0)
        return 0;
      in_slice += geo->l2_entry_size;
    }
  }
  return 0;
}

/* What the L1 entry alone says: nothing, or broken. */
static bool
lookup_l1 (const struct map *map, uint64_t guest_off, uint64_t max_len,
           struct map_run *run)
{
  const struct geometry *geo = map->geo;
  uint64_t idx = geometry_l1_idx (geo, guest_off);
  struct l1_entry e = { .v = 0 };

  if (idx < map->nr_l1)
    e = map->l1[idx];
  if (e.v != 0 && l1_entry_valid (geo, e) && l1_entry_off (e) != 0)
    return false;

  memset (run, 0, sizeof *run);
  run->type = l1_entry_valid (geo, e) ? ENTRY_UNALLOCATED : ENTRY_BROKEN;
  run->len = clip (guest_off, max_len, geometry_l2_span_bits (geo));
  return true;
}

static int
lookup_locked (struct map *map, uint64_t guest_off, uint64_t max_len,
               struct map_run *run, uint64_t *missing)
{
  unsigned budget = MAX_LOOKUP_ENTRIES;
  uint64_t pos = guest_off, left = max_len;
  struct map_run next;
  int r;

  run->len = 0;
  while (left > 0 && budget > 0) {
    if (!lookup_l1 (map, pos, left, &next)) {
      r = lookup_in_table (map, pos,
                           clip (pos, left, geometry_l2_span_bits (map->geo)),
                           &next, &budget, missing);
      if (r < 0)
        return run->len > 0 ? 0 : r;
    }
    else
      budget--;
    if (run->len == 0)
      *run = next;
    else if (run_continues (run, &next))
      run->len += next.len;
    else
      return 0;
    pos += next.len;
    left -= next.len;
  }
  return 0;
}

static void
complain (const struct map *map, uint64_t guest_off)
{
  nbdkit_error ("%s: the L1 or L2 entry for guest offset 0x%" PRIx64
                " is broken; this range cannot be accessed "
                "(try repair=all)", map->name, guest_off);
}

static bool
has_host_range (const struct map_run *run)
{
  return run->type == ENTRY_DATA || run->type == ENTRY_ZERO_ALLOC ||
    run->type == ENTRY_UNALLOC_ALLOC;
}

/* Clip RUN to what lies before [OFF, END) on the host, or after it; if it
 * begins inside, it is broken.
 */
static void
exclude (struct map_run *run, uint64_t off, uint64_t end)
{
  if (run->host_off >= end || run->host_off + run->len <= off)
    return;
  if (run->host_off >= off)
    run->type = ENTRY_BROKEN;
  else
    run->len = off - run->host_off;
}

/* Data beyond the end of the file is missing: also after the file has grown
 * over it, and to be written to neither, since that would make the rest of
 * its cluster read as zeroes.
 */
static void
check_host_range (struct map *map, struct map_run *run, bool for_write)
{
  if (!has_host_range (run) || map->alloc == NULL ||
      map->geo->has_data_file)
    return;
  if (for_write)
    run->overlap = overlap_find (map->overlap, run->host_off, run->len);
  if (run->type != ENTRY_DATA)
    return;
  exclude (run, map->alloc->lost_off, map->alloc->lost_end);
  if (for_write)
    exclude (run, map->alloc->file_len, UINT64_MAX);
}

int
map_lookup (struct map *map, uint64_t guest_off, uint64_t max_len,
            bool for_write, struct map_run *run)
{
  uint64_t missing = 0;
  int r;

  for (;;) {
    {
      READ_SCOPE (map->meta);

      r = lookup_locked (map, guest_off, max_len, run, &missing);
      if (r == 0)
        check_host_range (map, run, for_write);
    }
    if (r != -EAGAIN)
      break;
    r = mcache_load (map->mcache, missing);
    if (r == -ENOMEM)
      return r;
    if (r < 0) {
      /* Unreadable: what this slice maps is broken, and only that. */
      unsigned bits = map->geo->cluster_bits + map->geo->slice_bits -
        (map->geo->extended_l2 ? 4 : 3);

      *run = (struct map_run) {
        .type = ENTRY_BROKEN, .len = clip (guest_off, max_len, bits),
      };
      return 0;
    }
  }
  if (r == 0 && run->type == ENTRY_BROKEN)
    complain (map, guest_off);
  return r;
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
  map->changes++;
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

/* A new L2 table for L1 entry IDX: empty, or a copy of the shared one. */
static int
new_table (struct map *map, uint64_t idx, uint64_t old_off)
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
  if (r == 0)
    r = overlap_add_locked (map->overlap, new_off, map->geo->cluster_size,
                            OVERLAP_L2);
  if (r < 0) {
    alloc_release_locked (map->alloc, new_off, 1);
    return r;
  }
  set_l1 (map, idx, new_off);
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
  struct l1_entry e;
  int r;

  for (; idx <= last; ++idx) {
    if (idx >= map->nr_l1) {
      nbdkit_error ("%s: the L1 table has %" PRIu64 " entries, too few for "
                    "the virtual size (try repair=all)",
                    map->name, map->nr_l1);
      return -EIO;
    }
    e = map->l1[idx];
    if (!l1_entry_valid (geo, e)) {
      complain (map, idx << geometry_l2_span_bits (geo));
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
    r = new_table (map, idx, l1_entry_off (e));
    if (r < 0)
      return r;
  }
  return 0;
}

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
  uint64_t slice_off, in_slice, l1_idx, part, pos = guest_off;
  struct mcache_block *block;
  struct l2_entry old;
  uint8_t *p;
  int r;

  *done = 0;
  while (*done < len) {
    l1_idx = geometry_l1_idx (geo, pos);
    slice_off = slice_of (geo, l1_entry_off (map->l1[l1_idx]), pos,
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
      part = clip (pos, len - *done, geo->cluster_bits);
      old = get_entry (geo, p + in_slice);
      put_entry (geo, p + in_slice,
                 change (map, old, pos, part,
                         host_off + (geometry_cluster_start (geo, pos) -
                                     geometry_cluster_start (geo,
                                                             guest_off))));
      pos += part;
      *done += part;
    }
  }
  return 0;
}

int
map_set_data_locked (struct map *map, uint64_t guest_off, uint64_t len,
                     uint64_t host_off, uint64_t *done)
{
  return change_range (map, guest_off, len, change_to_data, host_off, done);
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

  slice_off = slice_of (geo, l1_entry_off (map->l1[l1_idx]), guest_off,
                        &in_slice);
  r = mcache_get_locked (map->mcache, slice_off, &block);
  if (r < 0)
    return r;
  p = mcache_dirty_locked (map->mcache, block, MCACHE_L2, l1_idx);
  if (p == NULL)
    return -ENOMEM;
  map->changes++;
  free_entry (map, get_entry (geo, p + in_slice), UINT64_MAX);
  put_entry (geo, p + in_slice,
             l2_entry_make_compressed (geo, host_off, len));
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
