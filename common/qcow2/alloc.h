/* SPDX-License-Identifier: BSD-3-Clause */
/* Where new clusters go, and when old ones come back.
 *
 * Policy over refcount.c's scan: a cursor, contiguous runs, byte-exact
 * packing of compressed clusters, growth of the file, and the three stages
 * of a cluster that lost its last reference (I1, I4):
 *
 *   pending     the entry is gone in memory, maybe not yet on disk
 *   committing  the commit under way makes its removal stable
 *   limbo       the removal is stable; requests that looked it up before
 *               may still be under way (epoch.h)
 *   free        the space was given back to the host, and the refcount
 *               went down: it may be allocated again
 *
 * "_locked": the caller holds LOCK_META exclusively.
 * Host offsets are bytes.
 */

#ifndef ALLOC_H
#define ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "epoch.h"
#include "geometry.h"
#include "locks.h"
#include "refcount.h"

struct alloc_range {
  uint64_t idx, nr;             /* host clusters */
  uint64_t generation;          /* limbo only: when it was retired */
};

struct alloc_span {             /* bytes */
  uint64_t start, end;
};

/* When there are more spans, the last one covers what is between. */
#define ALLOC_MAX_GROWN 32

struct alloc_list {
  struct alloc_range *ranges;
  size_t len, cap;
  uint64_t clusters;            /* sum of nr */
};

/* Clusters with a refcount that nothing points to yet (alloc-reserved.c). */
struct alloc_reserved {
  bool allowed;                 /* set once, after alloc_open */
  bool wanted;                  /* few clusters are taken for each commit */
  uint64_t idx, end;            /* empty if equal */
  uint64_t frozen_end;          /* END at the last freeze */
  uint64_t stable_end;          /* those below are counted on disk */
  uint64_t taken;               /* clusters handed out since the freeze */
};

struct alloc {
  const struct geometry *geo;
  struct backend *file;
  struct refcount *refcount;
  struct epoch *epoch;
  struct ranked_rwlock *meta;
  bool discard;                 /* punch holes for freed clusters */
  bool lazy;                    /* refcounts need not be stable: set once,
                                   after alloc_open */
  uint64_t cursor_idx;          /* where the next scan starts */
  uint64_t comp_off;            /* where the next compressed bytes go;
                                   0 = a new cluster is needed */
  uint64_t virgin_off, virgin_end;      /* space in here was never allocated
                                   in this session, and reads as zero */
  uint64_t file_len;            /* the file is at least so long */
  uint64_t open_len;            /* so long it was when it was opened */
  uint64_t frozen_len, stable_len;      /* FILE_LEN at the last freeze; what
                                   of it is stable */
  struct alloc_reserved reserved;
  uint64_t step_off;            /* start of the last step by the hint;
                                   UINT64_MAX = there was none */
  struct alloc_span grown[ALLOC_MAX_GROWN]; /* allocated by the hint */
  unsigned nr_grown;
  bool no_hint;                 /* the host cannot do what the hint asks */
  bool leaky;                   /* the last cluster in use at open is a
                                   hole: left over from a reservation? */
  bool unproven;                /* alloc_trim_file left something */
  /* Storage that cannot grow, see alloc-ahead.c. */
  bool ahead_probed;            /* zeroing is known to allocate */
  uint64_t ahead_max;           /* largest step, 0 = none any more */
  uint64_t ahead_resume;        /* nothing is tried before this offset */
  uint64_t lost_off, lost_end;  /* space beyond the end of the file at open
                                   that was marked as in use: what points
                                   there has lost its data; never handed
                                   out.  Empty if lost_off >= lost_end.
                                   LOST_END is the end of the last cluster
                                   in use at open, 0 = unknown */
  struct alloc_list pending, committing, limbo;
  _Atomic uint64_t waiting;     /* clusters in pending: an estimate */
};

extern int alloc_open (struct alloc *a, const struct geometry *geo,
                       struct backend *file, struct refcount *refcount,
                       struct epoch *epoch, struct ranked_rwlock *meta,
                       bool discard)
  __attribute__ ((__warn_unused_result__));
extern void alloc_close (struct alloc *a);

/* How the file should grow (hint of filter preallocate); NULL = a sparse
 * step of moderate size.
 */
struct alloc_growth {
  uint64_t size, align;
};

/* The space of a run [OFF, END) that is about to be handed out, and some
 * behind it, gets storage if it is virgin then.  For a file of fixed size;
 * best effort.  (alloc-ahead.c)
 */
extern void alloc_ahead_locked (struct alloc *a, uint64_t off, uint64_t end,
                                const struct alloc_growth *growth);

/* At clean close: give back what was not handed out, and lies behind
 * USED_END.
 */
extern void alloc_ahead_give_back_locked (struct alloc *a,
                                          uint64_t used_end);

/* What is known of a run that was allocated. */
#define ALLOC_VIRGIN    1       /* it reads as zeroes */
#define ALLOC_SETTLED   2       /* also after a power loss: its refcounts and
                                   the file's length are stable, so entries
                                   need not wait for a barrier (I1, I2) */

/* Allocate up to MAX_NR clusters in one contiguous run; *NR >= 1 says how
 * many.  Their refcounts are one (in memory).  *FLAGS: ALLOC_VIRGIN,
 * ALLOC_SETTLED.  The file reaches to the end of the run afterwards.
 * -EAGAIN: refcount table full: commit_grow_reftable, then retry;
 * -ENOSPC (also for EFBIG, EDQUOT); -EUCLEAN: what should be free holds
 * metadata (logged; the caller marks the image corrupt); -EIO, -ENOMEM.
 * alloc_exactly_locked: NR or nothing, with storage where the host can
 * reserve it (tables: the commit that writes them must not meet a full
 * disk, since what was acknowledged would be lost with them).  *VIRGIN: as
 * ALLOC_VIRGIN.
 */
extern int alloc_clusters_locked (struct alloc *a, uint64_t max_nr,
                                  const struct alloc_growth *growth,
                                  uint64_t *host_off, uint64_t *nr,
                                  unsigned *flags)
  __attribute__ ((__warn_unused_result__));
extern int alloc_exactly_locked (struct alloc *a, uint64_t nr,
                                 uint64_t *host_off, bool *virgin)
  __attribute__ ((__warn_unused_result__));

/* The file reaches to END (bytes), and further as GROWTH says.  -ENOSPC (also
 * for EFBIG, EDQUOT), -EIO.
 */
extern int alloc_grow_file_locked (struct alloc *a, uint64_t end,
                                   const struct alloc_growth *growth)
  __attribute__ ((__warn_unused_result__));

/* Reserve clusters where that pays (alloc-reserved.c).
 * top_up: clusters up to NEXT_IDX were handed out; best effort.
 * give_back: at close, or where there is no other space.
 * freeze: a commit begins.  stable: a barrier that began after the freeze
 * has succeeded, and the blocks that were frozen are written.
 */
extern void alloc_reserved_top_up_locked (struct alloc *a, uint64_t next_idx,
                                          const struct alloc_growth *growth);
extern void alloc_reserved_give_back_locked (struct alloc *a);
extern void alloc_reserved_freeze_locked (struct alloc *a);
extern void alloc_reserved_stable_locked (struct alloc *a);

/* Try to allocate up to MAX_NR clusters at exactly HOST_OFF; *NR may be 0
 * (they are in use).  To continue a run.
 */
extern int alloc_at_locked (struct alloc *a, uint64_t host_off,
                            uint64_t max_nr,
                            const struct alloc_growth *growth,
                            uint64_t *nr, bool *virgin)
  __attribute__ ((__warn_unused_result__));

/* Before the first change, when nothing else happens: storage for the parts
 * of L1 table, refcount table and refcount blocks that were never written,
 * so that no commit fails on a full disk for their sake.  Best effort.
 */
extern void alloc_reserve_tables (struct alloc *a, uint64_t l1_off,
                                  uint64_t l1_len);

/* LEN bytes (at most a cluster) for a compressed cluster, packed behind
 * the previous one.  Each host cluster touched has one more reference.
 * A shared host cluster whose refcount is at its maximum is left.
 * -EFBIG: the space is where a compressed descriptor cannot point to: store
 * the cluster plain.  (No message.)
 */
extern int alloc_bytes_locked (struct alloc *a, uint64_t len,
                               const struct alloc_growth *growth,
                               uint64_t *host_off)
  __attribute__ ((__warn_unused_result__));

/* Undo an allocation to which no entry ever pointed, and for which no
 * block in the mcache may be frozen.  An error is logged and leaks the
 * space.
 */
extern void alloc_release_locked (struct alloc *a,
                                  uint64_t host_off, uint64_t nr);
extern void alloc_release_bytes_locked (struct alloc *a,
                                        uint64_t host_off, uint64_t len);

/* The last reference from the active tables to these clusters (to these
 * compressed bytes) was removed in memory: one reference will be dropped
 * once that is stable.  Never fails: without memory the space leaks, which
 * is logged.
 */
extern void alloc_defer_free_locked (struct alloc *a,
                                     uint64_t host_off, uint64_t nr);
extern void alloc_defer_free_bytes_locked (struct alloc *a,
                                           uint64_t host_off, uint64_t len);

/* For commit.c.  freeze: pending -> committing.  retire: committing ->
 * limbo (the commit succeeded), or -> pending (it failed).
 */
extern void alloc_freeze_locked (struct alloc *a);
extern void alloc_retire_locked (struct alloc *a, bool committed);

/* Limbo ranges out of reach of every request -> free: first the punch
 * (without a lock, and only for clusters that nobody else refers to), then
 * the refcount.  ALL: at close, when no request is left.  Called by one
 * thread at a time, with no lock held.
 * The refcounts are dirty afterwards, so this stops when the mcache is
 * under pressure, and the next call after a commit goes on: at close,
 * repeat commit and reclaim until alloc_has_deferred is false.
 */
extern void alloc_reclaim (struct alloc *a, bool all);

/* Much is waiting to be freed: a commit would give it back.  Estimate,
 * needs no lock.
 */
extern bool alloc_pressure (const struct alloc *a);

/* Anything in pending, committing or limbo?  Caller holds LOCK_META. */
extern bool alloc_has_deferred (const struct alloc *a);

/* At clean close, when all is committed and no request is left: cut the file
 * after its last used cluster, and give back space that was allocated ahead
 * and not written.  Best effort.
 *
 * What an earlier server left behind the last used cluster goes too, but if
 * it is no hole, only with PROVEN: a check has shown that the refcounts are
 * right.  Else it stays, and a->unproven says so.
 */
extern void alloc_trim_file (struct alloc *a, bool proven);

#endif /* ALLOC_H */
