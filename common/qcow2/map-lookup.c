/* SPDX-License-Identifier: BSD-3-Clause */
/* What the tables say about a guest range.
 *
 * Lookups hold LOCK_META shared and allocate nothing; a slice that is not
 * cached is read without a lock, then the lookup starts again.
 *
 * Invariant: a run that is returned can be accessed as its type says; what
 * lies beyond the end of the file, or in space that the file had lost, is
 * broken.
 *
 * Changes nothing.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "map-entry.h"
#include "map.h"

/* Entries examined in one lookup: bounds the time under the lock. */
#define MAX_LOOKUP_ENTRIES 32768

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
    run->len = map_entry_clip (guest_off, max_len, geo->cluster_bits);
    run->host_off = l2_entry_comp_off (geo, e);
    run->comp_len = l2_entry_comp_len (geo, e);
    return;
  }
  run->host_off = l2_entry_off (e) + in_cluster;
  run->len = map_entry_clip (guest_off, max_len, geo->subcluster_bits);
  if (!geo->extended_l2)
    return;
  while (run->len < max_len && ++sub < SUBCLUSTERS_PER_CLUSTER &&
         l2_entry_type (geo, e, sub) == run->type)
    run->len += map_entry_clip (guest_off + run->len, max_len - run->len,
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
    slice_off = map_entry_slice (geo, l2_off, pos, &in_slice);
    slice = mcache_peek (map->mcache, slice_off);
    if (slice == NULL) {
      *missing = slice_off;
      return run->len > 0 ? 0 : -EAGAIN;
    }
    while (pos < end && in_slice < slice_size) {
      entry_run (geo, map_entry_get (geo, slice + in_slice), pos, end - pos,
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
  run->len = map_entry_clip (guest_off, max_len, geometry_l2_span_bits (geo));
  return true;
}

static int
lookup_locked (struct map *map, uint64_t guest_off, uint64_t max_len,
               struct map_run *run, uint64_t *missing)
{
  const unsigned span_bits = geometry_l2_span_bits (map->geo);
  unsigned budget = MAX_LOOKUP_ENTRIES;
  uint64_t pos = guest_off, left = max_len;
  struct map_run next;
  int r;

  run->len = 0;
  while (left > 0 && budget > 0) {
    if (!lookup_l1 (map, pos, left, &next)) {
      r = lookup_in_table (map, pos,
                           map_entry_clip (pos, left, span_bits),
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

void
map_lookup_complain (const struct map *map, uint64_t guest_off)
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
        .type = ENTRY_BROKEN, .len = map_entry_clip (guest_off, max_len, bits),
      };
      return 0;
    }
  }
  if (r == 0 && run->type == ENTRY_BROKEN)
    map_lookup_complain (map, guest_off);
  return r;
}
