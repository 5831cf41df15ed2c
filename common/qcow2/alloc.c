/* SPDX-License-Identifier: BSD-3-Clause */
/* Where new clusters go.
 *
 * Invariants:
 *  - All clusters below the cursor are in use, except for those that were
 *    passed over because their refcount block is broken.
 *  - Space at and beyond virgin_off was never handed out in this session,
 *    and was beyond the end of the file when it began, so it reads as
 *    zeroes.  Space that is given back was handed out, by whomever.  Where
 *    the file cannot grow, this holds up to virgin_end (alloc-ahead.c).
 *  - comp_off, if it is not 0, lies inside (not at the start of) a cluster
 *    that has a reference from compressed data.
 *
 * Locks: LOCK_META, exclusively, held by the caller.
 *
 * Space that comes back: alloc-free.c.  This does not know when anything
 * becomes stable (commit.c), nor what the space is used for.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "alloc.h"

#define MIN_STEP (UINT64_C (1) << 20)
#define MAX_STEP (UINT64_C (16) << 20)

/* The first step by the hint is small: it tells how clusters are written.
 * Those at the end of a step may have been handed out a moment ago.
 */
#define SMALL_STEP (UINT64_C (2) << 20)
#define STEP_MARGIN (UINT64_C (1) << 20)
#define MAX_LOOKS 12

/* Is the cluster that ends at END a hole, up to the end of the file? */
static bool
is_hole (const struct alloc *a, uint64_t end)
{
  return end > 0 && end <= a->file_len &&
    backend_hole_end (a->file, end - a->geo->cluster_size, a->file_len) ==
    a->file_len;
}

/* Space beyond the end of the file that the refcounts say is in use: the
 * file was cut off (or an earlier server crashed between the two).
 */
static int
find_lost (struct alloc *a)
{
  uint64_t end_idx;
  int r;

  WRITE_SCOPE (a->meta);

  r = refcount_end_locked (a->refcount, &end_idx);
  if (r == -EIO) {
    a->ahead_max = 0;
    return 0;                   /* nothing can be said; logged */
  }
  if (r < 0)
    return r;
  a->lost_off = a->geo->extended_l2
    ? geometry_cluster_end (a->geo, a->file_len) : a->file_len;
  a->lost_end = end_idx << a->geo->cluster_bits;
  /* Here only what is zeroed ahead is virgin: nothing yet. */
  if (a->file->fixed_size)
    a->virgin_off = a->virgin_end = a->lost_end;
  else
    a->leaky = is_hole (a, a->lost_end);
  if (a->lost_end > a->lost_off)
    nbdkit_debug ("%s: the file ends at offset %" PRIu64 ", but clusters up "
                  "to offset %" PRIu64 " are marked as in use",
                  a->file->name, a->file_len, a->lost_end);
  return 0;
}

int
alloc_open (struct alloc *a, const struct geometry *geo,
            struct backend *file, struct refcount *refcount,
            struct epoch *epoch, struct ranked_rwlock *meta, bool discard)
{
  int64_t size = backend_size (file);

  memset (a, 0, sizeof *a);
  if (size < 0)
    return size;
  a->geo = geo;
  a->file = file;
  a->refcount = refcount;
  a->epoch = epoch;
  a->meta = meta;
  a->discard = discard;
  a->file_len = a->open_len = size;
  a->step_off = a->ahead_max = UINT64_MAX;
  a->virgin_off = geometry_cluster_end (geo, size);
  a->virgin_end = file->fixed_size ? 0 : UINT64_MAX;
  return find_lost (a);
}

void
alloc_close (struct alloc *a)
{
  free (a->pending.ranges);
  free (a->committing.ranges);
  free (a->limbo.ranges);
  memset (a, 0, sizeof *a);
}

/* ------------------------------------------------------------------
 * The length of the file.
 */

/* All reasons why a file cannot be longer are one to a client. */
static int
no_space (int r)
{
  return r == -EFBIG || r == -EDQUOT || r == -ENOTSUP ? -ENOSPC : r;
}

/* Was at least half of the last step written? */
static bool
is_filled (struct alloc *a)
{
  uint64_t off = a->step_off, len, holes = 0;
  enum backend_extent_type type;
  unsigned i;

  for (i = 0; i < MAX_LOOKS && off + STEP_MARGIN < a->file_len; ++i) {
    if (a->file->ops->extent == NULL ||
        a->file->ops->extent (a->file, off, a->file_len - STEP_MARGIN - off,
                              &type, &len) < 0 || len == 0)
      break;
    if (type == BACKEND_HOLE)
      holes += len;
    off += len;
  }
  return holes <= (off - a->step_off) / 2;
}

static void
note_grown (struct alloc *a, uint64_t start, uint64_t end)
{
  struct alloc_span *last = a->nr_grown > 0 ? &a->grown[a->nr_grown-1] : NULL;

  if (last && (last->end == start || a->nr_grown == ALLOC_MAX_GROWN))
    last->end = end;
  else
    a->grown[a->nr_grown++] = (struct alloc_span) { start, end };
}

/* Grow by the step that filter preallocate asks for.  Where the last one was
 * left mostly empty, since small parts of clusters are written, space would
 * only have to be given back, piece by piece: then grow by size alone.  But
 * where flushes are frequent it pays: each of them waits for the host to
 * allocate.
 */
static int
grow_by_hint (struct alloc *a, uint64_t end,
              const struct alloc_growth *growth)
{
  const uint64_t align = growth->align > 0 ? growth->align : 1;
  uint64_t size = growth->size, target;
  bool dense = true, small;
  int r;

  if (a->step_off != UINT64_MAX)
    dense = is_filled (a);
  small = a->step_off == UINT64_MAX || (!dense && a->reserved.wanted);
  if (small) {
    dense = true;
    if (size > SMALL_STEP)
      size = SMALL_STEP;
  }
  if (__builtin_add_overflow (a->file_len, size, &target))
    return -EFBIG;
  if (target < end)
    target = end;
  if (target % align != 0 &&
      __builtin_add_overflow (target, align - target % align, &target))
    return -EFBIG;
  if (target > INT64_MAX)
    return -EFBIG;
  r = backend_grow (a->file, target, dense);
  if (r < 0)
    return r;
  if (dense)
    note_grown (a, a->file_len, target);
  a->step_off = a->file_len;
  return 0;
}

/* Grow by a hole: few calls, but little for a small image, since the file
 * keeps this length if the session does not end well.
 */
static int
grow_by_step (struct alloc *a, uint64_t end)
{
  uint64_t step = a->file_len / 8;
  uint64_t target;

  if (step < MIN_STEP)
    step = MIN_STEP;
  if (step > MAX_STEP)
    step = MAX_STEP;
  target = geometry_cluster_end (a->geo, a->file_len + step);
  if (target < end)
    target = end;
  return backend_grow (a->file, target, false);
}

int
alloc_grow_file_locked (struct alloc *a, uint64_t end,
                        const struct alloc_growth *growth)
{
  int64_t size;
  int r = -ENOTSUP;

  if (end <= a->file_len)
    return 0;
  size = backend_size (a->file);
  if (size < 0)
    return size;
  a->file_len = size;
  if (end <= a->file_len)
    return 0;
  if (a->file->fixed_size)
    return -ENOSPC;

  if (growth != NULL && growth->size > 0 && !a->no_hint) {
    r = grow_by_hint (a, end, growth);
    if (r < 0)
      nbdkit_debug ("%s: could not allocate %" PRIu64 " bytes ahead: %s",
                    a->file->name, growth->size, strerror (-r));
    a->no_hint = r == -ENOTSUP;
  }
  if (r < 0)
    r = grow_by_step (a, end);
  if (r < 0)
    r = backend_grow (a->file, end, false);
  if (r < 0)
    return no_space (r);

  size = backend_size (a->file);
  if (size < 0)
    return size;
  a->file_len = size;
  return 0;
}

/* ------------------------------------------------------------------
 * Taking clusters.
 */

static int
check_overlap (const struct alloc *a, uint64_t off, uint64_t len)
{
  enum overlap_kind kind;

  if (a->refcount->overlap == NULL)
    return 0;
  kind = overlap_find (a->refcount->overlap, off, len);
  if (kind == 0)
    return 0;
  nbdkit_error ("%s: the image is corrupt: the %s lies in space that has "
                "refcount 0, at or behind offset 0x%" PRIx64 "; "
                "repair it with repair=all",
                a->file->name, overlap_kind_name (kind), off);
  return -EUCLEAN;
}

/* A fixed file may have room for a part of the run only. */
static uint64_t
clamp_to_file (const struct alloc *a, uint64_t idx, uint64_t nr)
{
  const uint64_t end_idx = a->file_len >> a->geo->cluster_bits;

  if (!a->file->fixed_size || idx + nr <= end_idx)
    return nr;
  return idx < end_idx ? end_idx - idx : 0;
}

/* Take clusters that are free by their refcounts. */
static int
take (struct alloc *a, uint64_t idx, uint64_t nr,
      const struct alloc_growth *growth, bool *virgin)
{
  const uint64_t off = idx << a->geo->cluster_bits;
  const uint64_t end = (idx + nr) << a->geo->cluster_bits;
  int r;

  r = check_overlap (a, off, end - off);
  if (r < 0)
    return r;
  r = alloc_grow_file_locked (a, end, growth);
  if (r < 0)
    return r;
  if (a->file->fixed_size && growth != NULL && growth->size > 0)
    alloc_ahead_locked (a, off, end, growth);
  r = refcount_add_locked (a->refcount, idx, nr, 1);
  if (r < 0)
    return no_space (r);
  *virgin = off >= a->virgin_off && end <= a->virgin_end;
  if (end > a->virgin_off)
    a->virgin_off = end;
  if (idx <= a->cursor_idx && a->cursor_idx < idx + nr)
    a->cursor_idx = idx + nr;
  return 0;
}

/* Shorten a run so that it is virgin as a whole or not at all, and does
 * not need a larger refcount table unless it starts beyond the present one.
 */
static uint64_t
shorten (const struct alloc *a, uint64_t idx, uint64_t nr)
{
  const uint64_t virgin_idx = a->virgin_off >> a->geo->cluster_bits;
  const uint64_t span = refcount_table_span (a->refcount);

  nr = clamp_to_file (a, idx, nr);
  if (idx < virgin_idx && virgin_idx < idx + nr)
    nr = virgin_idx - idx;
  if (idx < span && span < idx + nr)
    nr = span - idx;
  return nr;
}

/* Free clusters at or after START_IDX, none of them in lost space: so an
 * entry that points there is known to be one whose data is missing.
 */
static int
find_free (struct alloc *a, uint64_t start_idx, uint64_t max_nr,
           uint64_t *idx, uint64_t *nr)
{
  const unsigned bits = a->geo->cluster_bits;
  int r;

  r = refcount_find_free_locked (a->refcount, start_idx, max_nr, idx, nr);
  if (r < 0 || a->lost_off >= a->lost_end)
    return r;
  if (*idx >= a->lost_end >> bits || (*idx + *nr) << bits <= a->lost_off)
    return 0;
  return refcount_find_free_locked (a->refcount, a->lost_end >> bits, max_nr,
                                    idx, nr);
}

/* Take the first reserved clusters, at most MAX_NR.  They are virgin.  Returns
 * how many.
 */
static uint64_t
take_reserved (struct alloc *a, uint64_t max_nr)
{
  struct alloc_reserved *res = &a->reserved;
  const uint64_t left = res->end - res->idx;
  const uint64_t nr = left < max_nr ? left : max_nr;

  res->idx += nr;
  return nr;
}

/* As much as is reserved of MAX_NR clusters.  [IDX, IDX + N) are free, or
 * none if N is 0: they may continue the run.
 */
static uint64_t
take_from_reserve (struct alloc *a, uint64_t max_nr, uint64_t idx, uint64_t n,
                   const struct alloc_growth *growth)
{
  const uint64_t nr = take_reserved (a, max_nr);
  bool virgin;

  if (n > max_nr - nr)
    n = max_nr - nr;
  if (n == 0 || idx != a->reserved.end ||
      idx << a->geo->cluster_bits < a->virgin_off)
    return nr;
  n = shorten (a, idx, n);
  if (n > 0 && take (a, idx, n, growth, &virgin) < 0)
    return nr;                  /* the next run will tell why */
  return nr + n;
}

/* What is known of a virgin run.  RESERVED: all of it was. */
static unsigned
virgin_flags (const struct alloc *a, uint64_t idx, uint64_t nr, bool reserved)
{
  const bool counted = a->lazy ||
    (reserved && idx + nr <= a->reserved.stable_end);

  if (counted && (idx + nr) << a->geo->cluster_bits <= a->stable_len)
    return ALLOC_VIRGIN | ALLOC_SETTLED;
  return ALLOC_VIRGIN;
}

int
alloc_clusters_locked (struct alloc *a, uint64_t max_nr,
                       const struct alloc_growth *growth,
                       uint64_t *host_off, uint64_t *nr, unsigned *flags)
{
  struct alloc_reserved *res = &a->reserved;
  const uint64_t first = res->idx, reserved = res->end - res->idx;
  uint64_t idx, n = 0;
  bool virgin;
  int r;

  *flags = 0;
  r = find_free (a, a->cursor_idx, max_nr, &idx, &n);
  if (r == 0)
    a->cursor_idx = idx;
  if (reserved > 0 && (r < 0 || idx > first)) {
    n = take_from_reserve (a, max_nr, idx, r < 0 ? 0 : n, growth);
    idx = first;
    *flags = virgin_flags (a, idx, n, n <= reserved);
  }
  else {
    if (r < 0)
      return no_space (r);
    n = shorten (a, idx, n);
    if (n == 0)
      return -ENOSPC;
    r = take (a, idx, n, growth, &virgin);
    if (r < 0)
      return r;
    if (virgin)
      *flags = virgin_flags (a, idx, n, false);
  }
  *host_off = idx << a->geo->cluster_bits;
  *nr = n;
  res->taken += n;
  alloc_reserved_top_up_locked (a, idx + n, growth);
  return 0;
}

/* Refcount blocks that get storage in advance: those of 4 TiB of 64k
 * clusters.
 */
#define MAX_RESERVED_BLOCKS 2048

void
alloc_reserve_tables (struct alloc *a, uint64_t l1_off, uint64_t l1_len)
{
  const struct refcount *rc = a->refcount;
  uint64_t i, nr = 0;
  int r;

  r = backend_reserve (a->file, l1_off, l1_len);
  if (r == 0)
    r = backend_reserve (a->file, rc->table_off, rc->nr_entries * 8);
  for (i = rc->nr_entries; r == 0 && i > 0 && nr < MAX_RESERVED_BLOCKS; --i) {
    if (rc->table[i-1] == 0 || rc->table[i-1] >= a->open_len ||
        geometry_in_cluster (a->geo, rc->table[i-1]) != 0)
      continue;
    r = backend_reserve (a->file, rc->table[i-1], a->geo->cluster_size);
    nr++;
  }
  if (r < 0)
    nbdkit_debug ("%s: no space could be reserved for metadata: %s",
                  a->file->name, strerror (-r));
}

/* Take NR clusters in one run, or none. */
static int
take_exactly (struct alloc *a, uint64_t nr, uint64_t *idx, bool *virgin)
{
  uint64_t start = a->cursor_idx, n;
  int r;

  for (;;) {
    r = find_free (a, start, nr, idx, &n);
    if (r < 0)
      return no_space (r);
    if (n == nr)
      break;
    start = *idx + n;
  }
  if (clamp_to_file (a, *idx, nr) < nr)
    return -ENOSPC;
  return take (a, *idx, nr, NULL, virgin);
}

int
alloc_exactly_locked (struct alloc *a, uint64_t nr, uint64_t *host_off,
                      bool *virgin)
{
  struct alloc_reserved *res = &a->reserved;
  uint64_t idx = res->idx;
  int r = 0;

  if (res->end - res->idx >= nr) {
    take_reserved (a, nr);
    *virgin = true;
  }
  else {
    r = take_exactly (a, nr, &idx, virgin);
    if (r == -ENOSPC && res->end > res->idx) {
      alloc_reserved_give_back_locked (a);
      r = take_exactly (a, nr, &idx, virgin);
    }
  }
  if (r < 0)
    return r;
  *host_off = idx << a->geo->cluster_bits;
  r = backend_reserve (a->file, *host_off, nr << a->geo->cluster_bits);
  if (r < 0)
    alloc_release_locked (a, *host_off, nr);
  return r;
}

int
alloc_at_locked (struct alloc *a, uint64_t host_off, uint64_t max_nr,
                 const struct alloc_growth *growth,
                 uint64_t *nr, bool *virgin)
{
  const uint64_t idx = host_off >> a->geo->cluster_bits;
  uint64_t n;
  int r;

  *nr = 0;
  if (geometry_in_cluster (a->geo, host_off) != 0)
    return 0;
  if (idx == a->reserved.idx && a->reserved.end > idx) {
    *nr = take_reserved (a, max_nr);
    *virgin = true;
    return 0;
  }
  if (host_off < a->lost_end && a->lost_off < a->lost_end) {
    const uint64_t left = a->lost_off > host_off ? a->lost_off - host_off : 0;

    if (max_nr > left >> a->geo->cluster_bits)
      max_nr = left >> a->geo->cluster_bits;
  }
  n = max_nr ? refcount_free_run_locked (a->refcount, idx, max_nr) : 0;
  n = shorten (a, idx, n);
  if (n == 0)
    return 0;
  r = take (a, idx, n, growth, virgin);
  if (r == 0)
    *nr = n;
  return r;
}

/* ------------------------------------------------------------------
 * Compressed clusters.
 */

/* Continue behind the previous one: in the same cluster, and in the next
 * one if that is free.  -ERANGE: not possible.
 */
static int
pack (struct alloc *a, uint64_t len, const struct alloc_growth *growth)
{
  const uint64_t room = a->geo->cluster_size -
    geometry_in_cluster (a->geo, a->comp_off);
  const uint64_t idx = a->comp_off >> a->geo->cluster_bits;
  const uint64_t next_off = (idx + 1) << a->geo->cluster_bits;
  uint64_t nr = 1;
  bool virgin;
  int r;

  if (a->comp_off == 0 || a->comp_off + len - 1 > a->geo->coffset_mask)
    return -ERANGE;
  if (len > room) {
    r = alloc_at_locked (a, next_off, 1, growth, &nr, &virgin);
    if (r < 0)
      return r;
    if (nr == 0)
      return -ERANGE;
  }
  r = refcount_add_locked (a->refcount, idx, 1, 1);
  if (r < 0 && len > room)
    alloc_release_locked (a, next_off, 1);
  return no_space (r);
}

int
alloc_bytes_locked (struct alloc *a, uint64_t len,
                    const struct alloc_growth *growth, uint64_t *host_off)
{
  uint64_t off = a->comp_off, nr;
  unsigned flags;
  int r;

  r = pack (a, len, growth);
  if (r == -ERANGE) {
    r = alloc_clusters_locked (a, 1, growth, &off, &nr, &flags);
    if (r == 0 && off + len - 1 > a->geo->coffset_mask) {
      alloc_release_locked (a, off, 1);
      return -EFBIG;
    }
  }
  if (r < 0)
    return r;
  *host_off = off;
  a->comp_off = off + len;
  if (geometry_in_cluster (a->geo, a->comp_off) == 0)
    a->comp_off = 0;
  return 0;
}
