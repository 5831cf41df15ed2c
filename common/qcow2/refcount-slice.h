/* SPDX-License-Identifier: BSD-3-Clause */
/* Slices of refcount blocks, and new blocks: shared by the files of the
 * refcounts.
 */

#ifndef REFCOUNT_SLICE_H
#define REFCOUNT_SLICE_H

#include <stdint.h>

#include "mcache.h"
#include "refcount.h"

/* Index in the refcount table of the block that describes CLUSTER_IDX. */
static inline uint64_t
refcount_block_of (const struct refcount *rc, uint64_t cluster_idx)
{
  return cluster_idx >> rc->geo->refblock_bits;
}

/* Clusters described by one slice, and the first one of the slice that
 * describes CLUSTER_IDX.
 */
static inline uint64_t
refcount_slice_span (const struct refcount *rc)
{
  return UINT64_C (1) << (rc->geo->slice_bits + 3 - rc->geo->refcount_order);
}

static inline uint64_t
refcount_slice_start (const struct refcount *rc, uint64_t cluster_idx)
{
  return cluster_idx & ~(refcount_slice_span (rc) - 1);
}

/* The slice that describes CLUSTER_IDX, whose entry in the refcount table
 * is not 0.  *BLOCK is as good as one of mcache_visit_locked.  LOCK_META is
 * held exclusively.
 *
 * 0; -EIO (logged once for each block: misplaced, beyond the end of the
 * file, unreadable), -ENOMEM.
 */
extern int refcount_slice_locked (struct refcount *rc, uint64_t cluster_idx,
                                  struct mcache_block **block)
  __attribute__ ((__warn_unused_result__));

/* The same as a copy in BUF, of one slice's size, which takes no room in the
 * cache: for one look at many slices.
 */
extern int refcount_copy_slice_locked (struct refcount *rc,
                                       uint64_t cluster_idx, uint8_t *buf)
  __attribute__ ((__warn_unused_result__));

/* Clusters that must not be taken for a block: those that are about to be
 * allocated.
 */
struct refcount_wanted {
  uint64_t lo, hi;
};

/* Make block BLOCK_IDX, which is to describe some of the clusters W, if there
 * is none (refcount-make.c).  LOCK_META is held exclusively.
 *
 * -EAGAIN: the table is too small.  -EUCLEAN: the space holds metadata
 * (logged).  -ENOSPC, -EIO, -ENOMEM.
 */
extern int refcount_make_block_locked (struct refcount *rc,
                                       uint64_t block_idx,
                                       const struct refcount_wanted *w)
  __attribute__ ((__warn_unused_result__));

#endif /* REFCOUNT_SLICE_H */
