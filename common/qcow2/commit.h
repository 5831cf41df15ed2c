/* SPDX-License-Identifier: BSD-3-Clause */
/* When metadata reaches the disk, and in which order: the only code that
 * issues barriers.  The invariants are at the top of commit.c.
 */

#ifndef COMMIT_H
#define COMMIT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc.h"
#include "epoch.h"
#include "header.h"
#include "locks.h"
#include "map.h"
#include "mcache.h"
#include "refcount.h"

struct bitmaps;

struct commit {
  const char *name;             /* image, for messages */
  struct backend *file;
  struct backend *data_file;    /* NULL = guest data is in FILE */
  struct header *header;        /* LOCK_HEADER */
  struct mcache *mcache;
  struct refcount *refcount;
  struct alloc *alloc;
  struct map *map;              /* the active one */
  struct epoch *epoch;
  struct ranked_rwlock *meta;

  struct ranked_mutex lock;     /* LOCK_COMMIT: the fields below */
  pthread_cond_t ended;
  bool running;
  uint64_t started, finished;   /* numbers of commits */
  int result;                   /* of commit FINISHED */

  struct ranked_mutex header_lock;
  uint8_t header_buf[512];      /* the first sector as it is on disk */
  _Atomic bool announced;       /* the first change was announced (I6) */
  bool lazy;                    /* lazy refcounts are in force */
  uint64_t autoclear_kept;      /* autoclear bits whose promise we keep */
  struct bitmaps *bitmaps;      /* NULL = none to announce */
  int (*announce_bitmaps) (struct bitmaps *b, bool *changed);

  _Atomic bool data_dirty;      /* guest data was written since the last
                                   barrier began */
  _Atomic unsigned data_flushes;        /* barriers of data alone under way */
  _Atomic uint64_t stable;      /* map->changes that are stable */
  _Atomic bool failed;          /* sticky (I9) */
};

/* The caller has filled the first group of fields; all objects are open.
 * Reads the header sector again.  -EIO.
 */
extern int commit_open (struct commit *c)
  __attribute__ ((__warn_unused_result__));
extern void commit_close (struct commit *c);

/* To be called before each change of the image, without a lock: clears
 * autoclear bits, sets the dirty bit of lazy refcounts, marks bitmaps as in
 * use, once (I6).  Costs one load when that is done.  -EIO: the image has
 * failed, or the header cannot be written.
 */
extern int commit_announce (struct commit *c)
  __attribute__ ((__warn_unused_result__));

/* Guest data was written (before the request is acknowledged). */
static inline void
commit_data_written (struct commit *c)
{
  if (!c->data_dirty)
    c->data_dirty = true;
}

/* A write with BACKEND_FUA failed with R.  That is a barrier that failed:
 * the host may have reported with it, for the only time, that it lost an
 * earlier write.  So it is sticky (I9).  -EIO.
 */
extern int commit_fua_failed (struct commit *c, int r)
  __attribute__ ((__warn_unused_result__));

/* Everything that was acknowledged before is stable when this returns 0
 * (I7).  Calls that arrive together share one commit.  The caller holds no
 * lock.  -EIO: sticky failure; -ENOSPC, -ENOMEM: may be tried again.
 */
extern int commit_flush (struct commit *c)
  __attribute__ ((__warn_unused_result__));

/* Are there changes of the mapping that are not stable yet? */
static inline bool
commit_is_unstable (const struct commit *c)
{
  return c->stable != c->map->changes;
}

/* Has the image failed for good? */
static inline bool
commit_has_failed (const struct commit *c)
{
  return c->failed;
}

/* Should a commit come before more changes? No lock. */
extern bool commit_wanted (const struct commit *c);

/* After -EAGAIN from an allocation: a larger refcount table.  The caller
 * holds no lock.  -EFBIG as -ENOSPC, -EIO.
 */
extern int commit_grow_reftable (struct commit *c)
  __attribute__ ((__warn_unused_result__));

/* Metadata overlap was proven: set the corrupt bit, refuse further
 * changes.  The caller holds no lock.
 */
extern void commit_mark_corrupt (struct commit *c);

/* For admin code (no requests are being served): make everything written
 * so far stable, then write the header as it is in *c->header (its first
 * sector, or the whole first cluster: WHOLE), then make that stable (I5).
 */
extern int commit_header (struct commit *c, bool whole)
  __attribute__ ((__warn_unused_result__));

/* A bare barrier, for admin code that orders its own writes. */
extern int commit_barrier (struct commit *c)
  __attribute__ ((__warn_unused_result__));

/* Clean close: commit everything, give all deferred space back, clear the
 * dirty bit, cut the file.  0, or the error after which the image is as
 * after a crash.
 */
extern int commit_finish (struct commit *c)
  __attribute__ ((__warn_unused_result__));

#endif /* COMMIT_H */
