/* SPDX-License-Identifier: BSD-3-Clause */
/* What the refcounts say: of one cluster, of runs, and where some are 0.
 *
 * Locks: LOCK_META, held exclusively by the caller.  Reads of blocks that
 * are not in the cache happen under it.
 *
 * Changes nothing.
 */

#include <config.h>

#include <errno.h>
#include <stdint.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "ondisk.h"
#include "refcount-slice.h"
#include "refcount.h"

/* Slices that are looked through from the end of the table, 256 MiB: the
 * file may be sparse, and its table full of blocks that are holes.
 */
#define MAX_EMPTY_SLICES 65536

int
refcount_run_locked (struct refcount *rc, uint64_t cluster_idx,
                     uint64_t max_nr, uint64_t *value, uint64_t *nr)
{
  const unsigned order = rc->geo->refcount_order;
  const uint64_t block_idx = refcount_block_of (rc, cluster_idx);
  struct mcache_block *block;
  uint64_t start, i, end;
  const uint8_t *p;
  int r;

  if (block_idx >= rc->nr_entries) {
    *value = 0;
    *nr = max_nr;
    return 0;
  }
  if (rc->table[block_idx] == 0) {
    end = (block_idx + 1) << rc->geo->refblock_bits;
    *value = 0;
    *nr = end - cluster_idx < max_nr ? end - cluster_idx : max_nr;
    return 0;
  }
  r = refcount_slice_locked (rc, cluster_idx, &block);
  if (r < 0)
    return r;
  p = mcache_data (block);
  start = refcount_slice_start (rc, cluster_idx);
  i = cluster_idx - start;
  end = refcount_slice_span (rc) - i < max_nr
    ? refcount_slice_span (rc) : i + max_nr;
  *value = refcount_entry_get (p, i, order);
  if (*value == 0)
    *nr = refcount_entry_find_nonzero (p, i, end, order) - i;
  else {
    *nr = 1;
    while (i + *nr < end && refcount_entry_get (p, i + *nr, order) == *value)
      ++*nr;
  }
  return 0;
}

int
refcount_get_locked (struct refcount *rc, uint64_t cluster_idx,
                     uint64_t *value)
{
  uint64_t nr;

  return refcount_run_locked (rc, cluster_idx, 1, value, &nr);
}

/* From IDX on, the first cluster with refcount 0.  Ranges whose block is
 * broken are passed over; *R remembers why.
 */
static uint64_t
skip_used (struct refcount *rc, uint64_t idx, int *r)
{
  struct mcache_block *block;
  uint64_t start, found;

  while (refcount_block_of (rc, idx) < rc->nr_entries &&
         rc->table[refcount_block_of (rc, idx)] != 0) {
    *r = refcount_slice_locked (rc, idx, &block);
    if (*r < 0) {
      idx = (refcount_block_of (rc, idx) + 1) << rc->geo->refblock_bits;
      continue;
    }
    start = refcount_slice_start (rc, idx);
    found = refcount_entry_find_zero (mcache_data (block), idx - start,
                                      refcount_slice_span (rc),
                                      rc->geo->refcount_order);
    idx = start + found;
    if (found < refcount_slice_span (rc))
      break;
  }
  return idx;
}

uint64_t
refcount_free_run_locked (struct refcount *rc, uint64_t cluster_idx,
                          uint64_t max_nr)
{
  uint64_t limit = refcount_limit (rc);
  uint64_t nr = 0, value, n;

  if (cluster_idx >= limit)
    return 0;
  if (max_nr > limit - cluster_idx)
    max_nr = limit - cluster_idx;
  while (nr < max_nr) {
    if (refcount_run_locked (rc, cluster_idx + nr, max_nr - nr,
                             &value, &n) < 0 || value != 0)
      break;
    nr += n;
  }
  return nr;
}

int
refcount_find_free_locked (struct refcount *rc, uint64_t start_idx,
                           uint64_t max_nr, uint64_t *found_idx,
                           uint64_t *found_nr)
{
  int r = 0;
  uint64_t idx = start_idx;

  idx = skip_used (rc, idx, &r);
  if (idx >= refcount_limit (rc))
    return -EFBIG;
  *found_idx = idx;
  *found_nr = refcount_free_run_locked (rc, idx, max_nr);
  return *found_nr > 0 ? 0 : r < 0 ? r : -EIO;
}

int
refcount_end_locked (struct refcount *rc, uint64_t *end_idx)
{
  uint8_t buf[1 << MAX_SLICE_BITS] __attribute__ ((__aligned__ (8)));
  uint64_t b, idx, found, tries = 0;
  int r;

  for (b = rc->nr_entries; b > 0; --b) {
    if (rc->table[b-1] == 0)
      continue;
    idx = b << rc->geo->refblock_bits;
    while (idx > (b - 1) << rc->geo->refblock_bits) {
      if (++tries > MAX_EMPTY_SLICES) {
        nbdkit_debug ("%s: the refcount table has too many empty blocks to "
                      "look for the end of what is in use", rc->file->name);
        return -EIO;
      }
      idx -= refcount_slice_span (rc);
      r = refcount_copy_slice_locked (rc, idx, buf);
      if (r < 0)
        return r;
      found = refcount_entry_find_last_nonzero (buf, refcount_slice_span (rc),
                                                rc->geo->refcount_order);
      if (found > 0) {
        *end_idx = idx + found;
        return 0;
      }
    }
  }
  *end_idx = 0;
  return 0;
}
