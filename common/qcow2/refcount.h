/* SPDX-License-Identifier: BSD-3-Clause */
/* Reference counts of host clusters: refcount table and refcount blocks.
 * Spec: "Host cluster management".
 *
 * The table is in memory; blocks are slices in the mcache.  Changes stay
 * in memory until the commit writes them (commit.c decides when).
 *
 * "_locked": the caller holds LOCK_META exclusively.
 * Cluster numbers are host clusters (_idx).
 */

#ifndef REFCOUNT_H
#define REFCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "geometry.h"
#include "mcache.h"
#include "overlap.h"

struct refcount {
  const struct geometry *geo;
  struct backend *file;
  struct mcache *mcache;
  struct overlap *overlap;
  uint64_t table_off;
  uint64_t nr_entries;          /* of the table */
  uint64_t *table;              /* host order; block offsets, 0 = none */
  uint8_t *complained;          /* bit set: its entry's block is broken,
                                   and that was logged */
  unsigned nr_complaints;       /* how often */
  uint8_t *twice;               /* bit set: an entry before it has the same
                                   block.  NULL = there are none */
  uint64_t nr_twice;            /* bits that it has */
  uint64_t dirty_lo, dirty_hi;  /* entries changed since the last commit;
                                   empty if lo >= hi */
};

/* Read the refcount table that H describes.  Registers table and blocks
 * with OVERLAP if that is not NULL.  -EINVAL (with a message: a table
 * beyond the end of the file), -EIO, -ENOMEM.  A broken table entry
 * (unaligned, reserved bits, beyond the file) is accepted here: it counts
 * as an error of its own range, found when it is used.
 */
extern int refcount_open (struct refcount *rc, const struct geometry *geo,
                          const struct header *h, struct backend *file,
                          struct mcache *mcache, struct overlap *overlap)
  __attribute__ ((__warn_unused_result__));
extern void refcount_close (struct refcount *rc);

/* Clusters covered by one block, by the whole table. */
extern uint64_t refcount_block_span (const struct refcount *rc);
extern uint64_t refcount_table_span (const struct refcount *rc);

/* No cluster at or beyond this can be addressed. */
extern uint64_t refcount_limit (const struct refcount *rc);

/* Refcount of a cluster: 0 where there is no block.  -EIO: broken or
 * unreadable block (logged).
 */
extern int refcount_get_locked (struct refcount *rc, uint64_t cluster_idx,
                                uint64_t *value)
  __attribute__ ((__warn_unused_result__));

/* Refcount of a cluster, and how many of the MAX_NR clusters from there on
 * are known to have the same one (at least one; to ask on is not an error).
 */
extern int refcount_run_locked (struct refcount *rc, uint64_t cluster_idx,
                                uint64_t max_nr, uint64_t *value,
                                uint64_t *nr)
  __attribute__ ((__warn_unused_result__));

/* Add DELTA (+1 or -1) to NR clusters: all or nothing.
 * Missing blocks are made on the way, and describe themselves: a new block
 * takes the first cluster of its own range that is not among the NR ones,
 * so making a block never needs the allocator.  (If all of its range is
 * wanted, it goes behind.)  The new block is all zero on disk, apart from
 * its dirty slices; its table entry is dirty.
 * -EAGAIN: the table is too small: commit_grow_reftable, then retry.
 * -EIO: broken block, or an underflow (logged: the image is corrupt).
 * -EUCLEAN: a new block would overlap metadata (logged; to be marked corrupt).
 * -ERANGE: an overflow of the refcount width; -ENOSPC, -ENOMEM.
 */
extern int refcount_add_locked (struct refcount *rc, uint64_t cluster_idx,
                                uint64_t nr, int delta)
  __attribute__ ((__warn_unused_result__));

/* Set the refcounts of NR clusters, all described by blocks that exist, to
 * VALUE.  For repair only.  -EIO, -ENOMEM: some may have been set.
 */
extern int refcount_set_locked (struct refcount *rc, uint64_t cluster_idx,
                                uint64_t nr, uint64_t value)
  __attribute__ ((__warn_unused_result__));

/* First run of free clusters (refcount 0) at or after START_IDX: its start
 * and its length, at most MAX_NR.  Space without a block is free, also
 * beyond the end of the table.  Ranges of broken blocks are passed over.
 * -EIO only if no block can be read; -EFBIG beyond MAX_HOST_OFFSET.
 */
extern int refcount_find_free_locked (struct refcount *rc,
                                      uint64_t start_idx, uint64_t max_nr,
                                      uint64_t *found_idx,
                                      uint64_t *found_nr)
  __attribute__ ((__warn_unused_result__));

/* How many clusters are free from CLUSTER_IDX on, at most MAX_NR.  0: it is
 * in use, cannot be addressed, or its block is broken.
 */
extern uint64_t refcount_free_run_locked (struct refcount *rc,
                                          uint64_t cluster_idx,
                                          uint64_t max_nr);

/* One more than the last cluster with a refcount > 0 (0 = none): where
 * the file could end.  -EIO also if so many blocks at the end of the table
 * are empty that it would take long.
 */
extern int refcount_end_locked (struct refcount *rc, uint64_t *end_idx)
  __attribute__ ((__warn_unused_result__));

/* The bytes of the dirty part of the table, for the commit: *BUF is
 * allocated (the caller frees it) and has the entries [*LO, *HI) in disk
 * order; the part counts as clean from now on.  Nothing dirty: *BUF =
 * NULL.  refcount_redirty_locked takes it back after a failure.
 */
extern int refcount_take_dirty_locked (struct refcount *rc, uint8_t **buf,
                                       uint64_t *lo, uint64_t *hi)
  __attribute__ ((__warn_unused_result__));
extern void refcount_redirty_locked (struct refcount *rc,
                                     uint64_t lo, uint64_t hi);

/* A larger table, described by itself, for commit.c.
 * refcount_prepare_grow_locked: choose space behind everything in use for
 * a table that covers at least twice the clusters (and NEED_IDX), write
 * new blocks that cover that space and the new table itself into it
 * (nothing refers to them yet).  -EFBIG beyond MAX_REFTABLE_SIZE,
 * -EUCLEAN as above, -ENOSPC, -EIO, -ENOMEM.
 * refcount_switch_locked: the header on disk now names the new table: use
 * it.  The clusters of the old one are returned for freeing.
 * refcount_abandon_grow: forget the new table.
 * Blocks that are dirty must have been written before the first of these
 * (the new table on disk names them).  LOCK_META may be released in between.
 */
struct refcount_growth {
  uint64_t table_off;
  uint64_t nr_entries;
  uint64_t nr_clusters;         /* of the new table */
  uint64_t *table;
  uint64_t end_off;             /* file must reach to here */

  uint8_t *complained;
  uint64_t start_off;           /* blocks first, then the table */
  struct overlap *overlap;      /* knows [start_off, end_off) */
};
extern int refcount_prepare_grow_locked (struct refcount *rc,
                                         uint64_t need_idx,
                                         struct refcount_growth *g)
  __attribute__ ((__warn_unused_result__));
extern void refcount_switch_locked (struct refcount *rc,
                                    struct refcount_growth *g,
                                    uint64_t *old_off,
                                    uint64_t *old_clusters);
extern void refcount_abandon_grow (struct refcount_growth *g);

/* The file reaches to END (bytes).  New space reads as zeroes.  -ENOSPC
 * also where the length is fixed, or limited.
 */
extern int refcount_extend_file (struct refcount *rc, uint64_t end)
  __attribute__ ((__warn_unused_result__));

/* The entry of cluster I in block bytes P: any width, 1 to 64 bits. */
extern uint64_t refcount_entry_get (const uint8_t *p, uint64_t i,
                                    unsigned order);
extern void refcount_entry_set (uint8_t *p, uint64_t i, unsigned order,
                                uint64_t value);

/* The first entry of [I, END) that is zero (not zero), or END; one more than
 * the last entry of [0, END) that is not zero, or 0.
 */
extern uint64_t refcount_entry_find_zero (const uint8_t *p, uint64_t i,
                                          uint64_t end, unsigned order);
extern uint64_t refcount_entry_find_nonzero (const uint8_t *p, uint64_t i,
                                             uint64_t end, unsigned order);
extern uint64_t refcount_entry_find_last_nonzero (const uint8_t *p,
                                                  uint64_t end,
                                                  unsigned order);

#endif /* REFCOUNT_H */
