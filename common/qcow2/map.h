/* SPDX-License-Identifier: BSD-3-Clause */
/* Guest offset -> host offset: L1 and L2 tables.
 * Spec: "Cluster mapping", "Extended L2 Entries".
 *
 * A struct map is one L1 table: the active one, which may be writable, or
 * that of an internal snapshot, which is not.  Several maps of one image
 * share mcache, allocator and lock.
 *
 * The L1 table is in memory, L2 tables are slices in the mcache.  Changes
 * stay in memory until the commit writes them.
 *
 * "_locked": the caller holds LOCK_META exclusively, and owns the guest
 * range in the inflight set.
 */

#ifndef MAP_H
#define MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc.h"
#include "entry.h"
#include "geometry.h"
#include "locks.h"
#include "mcache.h"
#include "overlap.h"

struct map {
  const char *name;             /* image, for messages */
  const struct geometry *geo;
  struct backend *file;
  struct mcache *mcache;
  struct alloc *alloc;          /* NULL: read-only */
  struct overlap *overlap;      /* NULL: read-only */
  struct ranked_rwlock *meta;
  uint64_t size;                /* guest bytes */
  uint64_t l1_off;
  uint64_t nr_l1;               /* entries */
  struct l1_entry *l1;          /* host order; LOCK_META */
  uint8_t *l1_state;            /* per entry: MAP_L1_* ; writable only */
  uint64_t l1_dirty_lo, l1_dirty_hi;
  _Atomic uint64_t changes;     /* grows with every change of an entry */
  uint64_t ordered;             /* CHANGES after the last one that has to
                                   wait for a barrier; LOCK_META */
};

#define MAP_L1_DIRTY    1       /* changed since the last commit began */
#define MAP_L1_FROZEN   2       /* being written by the commit under way */

/* What a guest range is. */
struct map_run {
  enum entry_type type;
  uint64_t len;                 /* bytes, > 0: all of the same kind, and
                                   contiguous on the host */
  uint64_t host_off;            /* of the first byte; for COMPRESSED: of the
                                   compressed bytes of its cluster */
  uint64_t comp_len;            /* COMPRESSED: bytes to read, to the end of
                                   the last sector */
  bool copied;                  /* refcount is one: writable in place */
  enum overlap_kind overlap;    /* for writing, types with a host range:
                                   what metadata it overlaps, 0 = none */
};

/* Load the L1 table of NR_L1 entries at L1_OFF.  ALLOC and OVERLAP are
 * NULL for a map that is only read; else the L1 and the L2 tables are
 * registered as metadata.  NAME is kept.  -EIO, -EINVAL (message), -ENOMEM.
 */
extern int map_open (struct map *map, const char *name,
                     const struct geometry *geo, struct backend *file,
                     struct mcache *mcache, struct alloc *alloc,
                     struct overlap *overlap, struct ranked_rwlock *meta,
                     uint64_t size, uint64_t l1_off, uint64_t nr_l1)
  __attribute__ ((__warn_unused_result__));
extern void map_close (struct map *map);

/* The run that starts at GUEST_OFF, at most MAX_LEN (> 0) bytes.  The
 * caller holds no lock.  A table that cannot be used (broken entry,
 * unreadable) gives a run of type ENTRY_BROKEN, logged; a COMPRESSED run
 * never crosses the end of its cluster.  FOR_WRITE fills run->overlap.
 * 0 or -ENOMEM.
 */
extern int map_lookup (struct map *map, uint64_t guest_off, uint64_t max_len,
                       bool for_write, struct map_run *run)
  __attribute__ ((__warn_unused_result__));

/* Make the L2 tables that map [GUEST_OFF, GUEST_OFF + LEN) present and
 * writable (allocated, and not shared with a snapshot), so that the
 * map_set functions need no allocation.  -EAGAIN: refcount table full;
 * -EUCLEAN: a table overlaps other metadata (logged; the caller marks the
 * image corrupt); -ENOSPC, -EIO, -ENOMEM.  What was made stays, and is
 * harmless.
 */
extern int map_prepare_locked (struct map *map, uint64_t guest_off,
                               uint64_t len)
  __attribute__ ((__warn_unused_result__));

/* Change the mapping of [GUEST_OFF, GUEST_OFF + LEN), cluster-aligned
 * unless said otherwise; tables were prepared.  References that are
 * replaced are freed later (alloc_defer_free).  *DONE is how many bytes
 * from the start were changed, also on error: -EIO, -ENOMEM.
 *
 * data: HOST_OFF is the host cluster of the first guest cluster, the rest
 *   follows.  Where the entry has that host cluster already, it is kept.
 *   With extended L2, GUEST_OFF and LEN are multiples of the subcluster
 *   size, HOST_OFF still that of the cluster: those subclusters
 *   become data, the others of the cluster keep their state, unless they
 *   were in another host cluster: then the range must cover the cluster.
 *   SETTLED: the clusters are ALLOC_SETTLED, and the guest range read as
 *   zeroes before, so the entries need not wait for the data (I2).
 * zero: reads as zeroes; KEEP: host clusters stay allocated.  With
 *   extended L2 a multiple of the subcluster size, but a compressed
 *   cluster as a whole.
 * unmap: falls through to the backing file; cluster-aligned.
 * compressed: one cluster, LEN is that of the compressed bytes.
 */
extern int map_set_data_locked (struct map *map, uint64_t guest_off,
                                uint64_t len, uint64_t host_off,
                                bool settled, uint64_t *done)
  __attribute__ ((__warn_unused_result__));
extern int map_set_zero_locked (struct map *map, uint64_t guest_off,
                                uint64_t len, bool keep, uint64_t *done)
  __attribute__ ((__warn_unused_result__));
extern int map_unmap_locked (struct map *map, uint64_t guest_off,
                             uint64_t len, uint64_t *done)
  __attribute__ ((__warn_unused_result__));
extern int map_set_compressed_locked (struct map *map, uint64_t guest_off,
                                      uint64_t host_off, uint64_t len)
  __attribute__ ((__warn_unused_result__));

/* For commit.c.  take: the bytes of the dirty part of the L1 table, in disk
 * order, *BUF allocated (the caller frees it), NULL if nothing is dirty;
 * it covers entries [*LO, *HI), which are frozen from now on (unchanged
 * ones in between as well).
 * release: the commit ended; if it failed they are dirty again.
 * is_frozen: does entry L1_IDX wait for its first write (so its L2 table
 * is not yet reachable)?  Needs no lock: only the committer changes it.
 */
extern int map_take_dirty_locked (struct map *map, uint8_t **buf,
                                  uint64_t *lo, uint64_t *hi)
  __attribute__ ((__warn_unused_result__));
extern void map_release_locked (struct map *map, uint64_t lo, uint64_t hi,
                                bool committed);
extern bool map_is_frozen (const struct map *map, uint64_t l1_idx);

/* Does an entry in one of the last few L2 tables refer to the host cluster at
 * HOST_OFF?  A quick look: false says nothing about the other tables.
 */
extern bool map_refers_near_end_locked (struct map *map, uint64_t host_off);

#endif /* MAP_H */
