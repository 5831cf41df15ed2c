/* SPDX-License-Identifier: BSD-3-Clause */
/* New refcount blocks.
 *
 * Invariants:
 *  - A block in the table has itself a refcount of at least one, in memory
 *    as soon as it is in the table.
 *  - A block that was just made is on disk as zeroes, or all its slices
 *    are dirty: nothing of it is ever read as what was there before.
 *
 * Where a new block goes: into the first cluster of the range it describes
 * that its maker did not ask for.  So making a block needs no allocator,
 * hence no recursion, with one exception: the maker asks for the whole
 * range (only tables do, with small clusters and wide refcounts).  Then
 * the block goes behind what was asked for.
 *
 * Locks: LOCK_META, exclusively, held by the caller.  A space may be zeroed
 * under it.
 *
 * This does not order writes (commit.c).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "refcount-slice.h"
#include "refcount.h"

static int ensure_block (struct refcount *rc, uint64_t block_idx,
                         const struct refcount_wanted *w, bool describe_itself);

int
refcount_extend_file (struct refcount *rc, uint64_t end)
{
  int64_t size = backend_size (rc->file);
  int r;

  if (size < 0)
    return size;
  if ((uint64_t) size >= end)
    return 0;
  r = rc->file->fixed_size ? -ENOSPC :
    backend_grow (rc->file, end, false);
  if (r == -EFBIG || r == -EDQUOT || r == -ENOTSUP)
    r = -ENOSPC;
  return r;
}

/* Make the space at OFF ready for a block. */
static int
prepare_space (struct refcount *rc, uint64_t off)
{
  const uint64_t cluster_size = rc->geo->cluster_size;
  enum overlap_kind kind;
  int64_t size;
  int r;

  kind = rc->overlap ? overlap_find (rc->overlap, off, cluster_size) : 0;
  if (kind != 0) {
    nbdkit_error ("%s: the image is corrupt: the space at offset 0x%" PRIx64
                  " holds the %s, but its refcount is 0; "
                  "repair it with qemu-img check -r all",
                  rc->file->name, off, overlap_kind_name (kind));
    return -EUCLEAN;
  }
  size = backend_size (rc->file);
  if (size < 0)
    return size;
  r = refcount_extend_file (rc, off + cluster_size);
  if (r < 0)
    return r;
  mcache_forget_locked (rc->mcache, off, cluster_size);
  /* A block that is a single slice is written as a whole by the commit. */
  if (rc->geo->slice_bits < rc->geo->cluster_bits && (uint64_t) size > off) {
    r = backend_zero (rc->file, off, cluster_size);
    if (r < 0)
      return r;
  }
  r = backend_reserve (rc->file, off, cluster_size);
  if (r < 0)
    return r;
  return rc->overlap ?
    overlap_add_locked (rc->overlap, off, cluster_size, OVERLAP_REFBLOCK) : 0;
}

/* Point the table to the new block at cluster C, whose refcount becomes
 * one: in the new block, or in the one that has its range.
 */
static int
install_block (struct refcount *rc, uint64_t block_idx, uint64_t c)
{
  const uint64_t off = c << rc->geo->cluster_bits;
  struct mcache_block *block, *own = NULL;
  uint64_t in_block;
  uint8_t *p;
  int r;

  if (refcount_block_of (rc, c) == block_idx ||
      rc->geo->slice_bits == rc->geo->cluster_bits) {
    in_block = refcount_block_of (rc, c) != block_idx ? 0 :
      refcount_slice_start (rc, c) & (refcount_block_span (rc) - 1);
    r = mcache_new_locked (rc->mcache,
                           off + (in_block << rc->geo->refcount_order >> 3),
                           &own);
    if (r < 0)
      return r;
    if (mcache_dirty_locked (rc->mcache, own, MCACHE_REFBLOCK, 0) == NULL)
      return -ENOMEM;
  }
  block = own;
  if (refcount_block_of (rc, c) != block_idx) {
    r = refcount_slice_locked (rc, c, &block);
    if (r < 0)
      return r;
  }
  p = mcache_dirty_locked (rc->mcache, block, MCACHE_REFBLOCK, 0);
  if (p == NULL)
    return -ENOMEM;
  refcount_entry_set (p, c - refcount_slice_start (rc, c),
                      rc->geo->refcount_order, 1);
  rc->table[block_idx] = off;
  refcount_redirty_locked (rc, block_idx, block_idx + 1);
  return 0;
}

/* A place outside the range of the block, behind all that is wanted, in a
 * range that has a block.
 */
static int
find_place_elsewhere (struct refcount *rc, const struct refcount_wanted *w,
                      uint64_t *c)
{
  uint64_t nr;
  int r;

  for (;;) {
    r = refcount_find_free_locked (rc, w->hi, 1, c, &nr);
    if (r < 0)
      return r;
    if (refcount_block_of (rc, *c) >= rc->nr_entries)
      return -EAGAIN;
    if (rc->table[refcount_block_of (rc, *c)] != 0)
      return 0;
    r = ensure_block (rc, refcount_block_of (rc, *c), w, true);
    if (r < 0)
      return r;
  }
}

/* Make block BLOCK_IDX if there is none. */
static int
ensure_block (struct refcount *rc, uint64_t block_idx,
              const struct refcount_wanted *w, bool describe_itself)
{
  const uint64_t lo = block_idx << rc->geo->refblock_bits;
  const uint64_t hi = lo + refcount_block_span (rc);
  uint64_t c;
  int r;

  if (block_idx >= rc->nr_entries)
    return -EAGAIN;
  if (rc->table[block_idx] != 0)
    return 0;

  c = lo >= w->lo && lo < w->hi ? w->hi : lo;
  if (c >= hi && !describe_itself) {
    r = find_place_elsewhere (rc, w, &c);
    if (r < 0)
      return r;
  }
  if (c >= refcount_limit (rc))
    return -ENOSPC;
  r = prepare_space (rc, c << rc->geo->cluster_bits);
  if (r < 0)
    return r;
  r = install_block (rc, block_idx, c);
  if (r < 0) {
    mcache_forget_locked (rc->mcache, c << rc->geo->cluster_bits,
                          rc->geo->cluster_size);
    if (rc->overlap)
      overlap_remove_locked (rc->overlap, c << rc->geo->cluster_bits,
                             rc->geo->cluster_size);
  }
  return r;
}

int
refcount_make_block_locked (struct refcount *rc, uint64_t block_idx,
                            const struct refcount_wanted *w)
{
  return ensure_block (rc, block_idx, w, false);
}
