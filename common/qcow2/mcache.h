/* SPDX-License-Identifier: BSD-3-Clause */
/* Write-back cache of metadata table slices (L2 tables, refcount blocks).
 *
 * A block is one slice: 1 << slice_bits bytes of the image file at an
 * offset that is a multiple of that.  Its content is in disk order.
 * The cache does not know what is in a block.
 *
 * Everything is protected by LOCK_META of the image, which the caller
 * holds: shared to look, exclusively to change.  A pointer into a block is
 * valid only until the lock is released.
 *
 * Life of a block:
 *
 *   absent -> clean -> dirty -> frozen -> clean
 *                        ^________|   (changed again meanwhile, or the
 *                                      write failed)
 *
 * mcache_freeze_locked makes the current content of every dirty block the
 * content to be written.  A block that is changed while it is frozen gets
 * a private copy first, so the committer writes without a lock exactly
 * what was there at the freeze.  It is clean again only if its write
 * succeeded and it was not changed since (I8).
 *
 * Only clean blocks are evicted (second chance order).  When too many are
 * dirty, mcache_pressure says so, and whoever wants to change metadata
 * commits first; so the cache needs no way back up to commit.c.
 * Memory: at most MAX_BYTES, plus a few blocks per thread that passed the
 * pressure check, plus copies of frozen blocks during a commit.
 */

#ifndef MCACHE_H
#define MCACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "locks.h"

/* What a dirty block holds: decides when the commit writes it. */
enum mcache_kind {
  MCACHE_REFBLOCK,
  MCACHE_L2,
};

struct mcache;
struct mcache_block;

/* META is the image's lock.  MAX_BYTES is raised to a minimum that works.
 * -ENOMEM.
 */
extern int mcache_create (struct backend *file, unsigned slice_bits,
                          uint64_t max_bytes, struct ranked_rwlock *meta,
                          struct mcache **mc)
  __attribute__ ((__warn_unused_result__));
extern void mcache_free (struct mcache *mc);

/* The slice at HOST_OFF, or NULL if it is not in the cache.  META is held
 * at least shared.  Allocates nothing, writes at most one reference flag.
 */
extern const uint8_t *mcache_peek (struct mcache *mc, uint64_t host_off);

/* Bring the slice at HOST_OFF into the cache.  The caller holds no lock:
 * the read happens without one.  It may be evicted again before the caller
 * looks: callers loop.  0, -EIO (logged; also for a slice that lies beyond
 * the end of the file), -ENOMEM.
 */
extern int mcache_load (struct mcache *mc, uint64_t host_off)
  __attribute__ ((__warn_unused_result__));

/* The same with META held exclusively; reads under the lock on a miss.
 * The block is valid until the lock is released, or 64 more blocks were
 * got.
 */
extern int mcache_get_locked (struct mcache *mc, uint64_t host_off,
                              struct mcache_block **block)
  __attribute__ ((__warn_unused_result__));

/* The same for walks over many blocks: a clean block is valid only until
 * the next call that brings a block in.
 */
extern int mcache_visit_locked (struct mcache *mc, uint64_t host_off,
                                struct mcache_block **block)
  __attribute__ ((__warn_unused_result__));

/* Make the block known without reading it: all zero, clean (the caller
 * has written zeroes there, or knows that the storage reads as zero).
 */
extern int mcache_new_locked (struct mcache *mc, uint64_t host_off,
                              struct mcache_block **block)
  __attribute__ ((__warn_unused_result__));

extern const uint8_t *mcache_data (const struct mcache_block *block);

/* The block is about to be changed: marks it dirty, copies it if it is
 * frozen, returns the bytes to change, or NULL if there is no memory (the
 * block is then unchanged).  OWNER is kept for mcache_write_frozen: for
 * MCACHE_L2 the index in the L1 table.  META is held exclusively.
 */
extern uint8_t *mcache_dirty_locked (struct mcache *mc,
                                     struct mcache_block *block,
                                     enum mcache_kind kind, uint64_t owner);

/* Drop the blocks of [OFF, OFF + LEN), dirty or not, since that space no
 * longer holds metadata.  META is held exclusively.  A frozen block is
 * still written by the commit under way, and dropped when that has ended:
 * so the space of a block that may be frozen is given back by
 * alloc_defer_free_locked, not by alloc_release_locked.
 */
extern void mcache_forget_locked (struct mcache *mc,
                                  uint64_t off, uint64_t len);

/* Freeze all dirty blocks.  META is held exclusively.  One committer. */
extern void mcache_freeze_locked (struct mcache *mc);

/* Write the frozen blocks of KIND for which SELECT (OWNER, OPAQUE) is true
 * (NULL = all), ordered by offset, neighbours in one call.  META is
 * neither held nor needed.  A block that was written is not
 * written again before the next freeze.  0 or the first error: then
 * nothing more is written.
 */
extern int mcache_write_frozen (struct mcache *mc, enum mcache_kind kind,
                                bool (*select) (uint64_t owner,
                                                void *opaque),
                                void *opaque)
  __attribute__ ((__warn_unused_result__));

/* The same for all of KIND, with META held exclusively by the caller. */
extern int mcache_write_frozen_locked (struct mcache *mc,
                                       enum mcache_kind kind)
  __attribute__ ((__warn_unused_result__));

/* End of the commit: blocks that were written and not changed since are
 * clean, all others are dirty.  META is held exclusively.
 */
extern void mcache_thaw_locked (struct mcache *mc);

/* Is any block dirty (or frozen)?  META is held at least shared. */
extern bool mcache_is_dirty (const struct mcache *mc);

/* So many blocks are dirty that a commit should come first.  No lock
 * needed: an estimate.
 */
extern bool mcache_pressure (const struct mcache *mc);

/* Bytes in use, for tests and debug messages. */
extern uint64_t mcache_memory (const struct mcache *mc);

#endif /* MCACHE_H */
