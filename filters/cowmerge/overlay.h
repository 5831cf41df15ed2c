/* SPDX-License-Identifier: BSD-3-Clause */
/* An overlay: all that is buffered for one export, shared by all of the
 * connections to it.
 *
 * Names here that end in _locked want the overlay's lock held.
 */

#ifndef OVERLAY_H
#define OVERLAY_H

#include <stdbool.h>
#include <stdint.h>

#include <pthread.h>

#include <nbdkit-filter.h>

#include "block.h"
#include "claim.h"
#include "list.h"
#include "presence.h"

/* A connection that can write.  It lends its way down to the threads that
 * write out in the background, which have no connection of their own.
 */
struct lender {
  struct list link;
  nbdkit_next *next;
  unsigned users;               /* background threads that use NEXT now */
};

struct overlay {
  /* Protected by the lock of the registry in overlay.c. */
  struct list link;
  unsigned connections;         /* 0 = out of the registry */
  unsigned refs;                /* connections and background threads */

  /* Immutable. */
  struct overlay_key {
    const char *name;           /* of the export; owned by the overlay */
    uint64_t disk;              /* what the plugin calls it, or 0 */
  } key;
  uint64_t size;                /* bytes of the export */
  uint32_t cluster;             /* bytes, a power of 2 */
  uint32_t grain;               /* bytes a write copies as a whole: the same,
                                   or a power of 2 below it */
  unsigned shift;               /* log2 of it */
  uint64_t nr_clusters;

  pthread_mutex_t lock;         /* never held across I/O */

  /* Protected by LOCK. */
  struct claims claims;
  struct presence presence;
  struct block **buckets;       /* blocks by cluster number */
  size_t bucket_mask;
  struct list lru;              /* blocks, least recently used first */
  struct list age;              /* blocks, oldest first */
  size_t nr_blocks;             /* also read without LOCK: overlay_empty */
  unsigned nr_writing;          /* blocks being written out now */
  uint64_t ticks;               /* numbers for block.seq and block.failed */
  uint64_t drain;               /* blocks before this tick are wanted down */
  struct list lenders;
  int error;                    /* -errno of the last late write-out ... */
  unsigned error_gen;           /* ... and how many of them failed */
  bool failing;                 /* no write-out succeeded since it */
  struct overlay_counts {
    uint64_t merged;            /* pieces that went into blocks */
    uint64_t straight;          /* requests that passed straight through */
    uint64_t complete;          /* blocks written out without reading */
    uint64_t partial;           /* blocks written out by other causes */
    uint64_t queries;           /* questions about presence */
  } counts;
};

/* The lock that protects the overlay, held to the end of the block. */
#define OVERLAY_LOCK(ov) SCOPE_LOCK (&(ov)->lock)

/* Find or make the overlay of the disk that KEY tells, or without that of
 * the export it names, and count one connection more.  -EINVAL (with a
 * message) where others see it with another geometry, -ENOMEM.  The caller
 * owns the connection it stands for, until overlay_detach.
 */
extern int overlay_attach (const struct overlay_key *key, uint64_t size,
                           uint32_t cluster, uint32_t grain,
                           struct overlay **ret)
  __attribute__ ((__warn_unused_result__));

/* The connection ends.  With the last one the overlay and what could not
 * be written out end too (with a message).
 */
extern void overlay_detach (struct overlay *ov);

/* Call F on each overlay in turn, without locks but with a reference held,
 * until it returns true.  True if one did.
 */
extern bool overlay_each (bool (*f) (struct overlay *ov, void *opaque),
                          void *opaque);

/* Milliseconds of a clock that never goes back. */
extern int64_t overlay_now (void);

/* The length of a cluster, less than the cluster size for the last one. */
static inline uint32_t
overlay_cluster_len (const struct overlay *ov, uint64_t idx)
{
  uint64_t left = ov->size - (idx << ov->shift);

  return left < ov->cluster ? left : ov->cluster;
}

/* Is nothing buffered?  A write that was acknowledged before the question
 * was put is seen, so that a request of the same client may skip all the
 * rest.
 */
static inline bool
overlay_empty (const struct overlay *ov)
{
  return __atomic_load_n (&ov->nr_blocks, __ATOMIC_ACQUIRE) == 0;
}

extern struct block *overlay_find_locked (const struct overlay *ov,
                                          uint64_t idx);

/* Those of the clusters FIRST..LAST that have blocks.  The caller frees
 * ret->idx.  -ENOMEM, with a message.  Called without locks.
 */
struct overlay_blocks {
  uint64_t *idx;                /* in order */
  size_t nr;
};
extern int overlay_list_blocks (struct overlay *ov, uint64_t first,
                                uint64_t last, struct overlay_blocks *ret)
  __attribute__ ((__warn_unused_result__));

/* Make B, which the overlay then owns, the block of cluster IDX.  The
 * caller holds an exclusive claim on it.
 */
extern void overlay_insert_locked (struct overlay *ov, struct block *b,
                                   uint64_t idx);

/* B is needed no more.  It goes back to the pool as soon as no reader has
 * it pinned.  The caller holds an exclusive claim on its cluster.
 */
extern void overlay_remove_locked (struct overlay *ov, struct block *b);

/* B was used. */
extern void overlay_touch_locked (struct overlay *ov, struct block *b);

/* A pinned block keeps its content even if it is removed. */
extern void overlay_pin_locked (struct block *b);
extern void overlay_unpin_locked (struct overlay *ov, struct block *b);

#endif /* OVERLAY_H */
