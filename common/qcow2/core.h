/* SPDX-License-Identifier: BSD-3-Clause */
/* One opened qcow2 file: every object of the engine, put together.
 *
 * Admin code (create, resize, snapshot, check, repair) works on it; image.c
 * adds the files, the backing chain and the options.
 */

#ifndef CORE_H
#define CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc.h"
#include "ccache.h"
#include "commit.h"
#include "epoch.h"
#include "geometry.h"
#include "header.h"
#include "inflight.h"
#include "io.h"
#include "locks.h"
#include "map.h"
#include "mcache.h"
#include "overlap.h"
#include "refcount.h"
#include "snapshot-table.h"

struct core {
  char *name;                   /* for messages */
  struct backend *file;         /* lent by the caller of core_open */
  struct backend *data_file;    /* lent; NULL = none */
  bool writable;
  struct header header;
  struct geometry geo;
  struct snapshot_table snapshots;

  struct ranked_rwlock meta;
  struct mcache *mcache;
  struct map map;               /* the active one */
  struct epoch epoch;
  struct inflight inflight;
  struct io io;                 /* the active guest disk; image.c sets
                                   backing and crypt */

  /* Writable images only: */
  struct overlap *overlap;
  struct refcount refcount;
  struct alloc alloc;
  struct commit commit;
  struct bitmaps *bitmaps;      /* NULL = none to keep up */
};

struct core_options {
  bool writable;
  bool discard;                 /* give freed space back to the host */
  bool detect_zeroes;
  uint64_t metadata_cache;      /* bytes */
  struct ccache *ccache;        /* shared by layers; lent */
};

/* Read and check the header alone.  H is freed with header_free.
 *
 * 0; -EINVAL, -ENOTSUP, -EIO, -ENOMEM, with one message.
 */
extern int core_read_header (struct backend *file, struct header *h)
  __attribute__ ((__warn_unused_result__));

/* Read and check the header and the tables that are always in memory.
 * Knows nothing of other files: CORE->header says what the image needs;
 * the caller sets core->io.backing, and calls core_set_data_file if the
 * image has one.
 *
 * FILE is lent until core_close.  An image that is marked corrupt opens
 * only read-only (-EROFS, with a message) unless ADMIN code asks by
 * core_open_admin; one that is marked dirty opens, but must be repaired
 * before the first change: core->header.incompatible & INCOMPAT_DIRTY.
 *
 * 0; -EINVAL, -ENOTSUP, -EROFS, -EIO, -ENOMEM, with one message.
 */
extern int core_open (struct backend *file, const struct core_options *opts,
                      struct core **core)
  __attribute__ ((__warn_unused_result__));
extern int core_open_admin (struct backend *file,
                            const struct core_options *opts,
                            struct core **core)
  __attribute__ ((__warn_unused_result__));

/* Guest clusters are in DATA, which is lent. */
extern void core_set_data_file (struct core *core, struct backend *data);

/* A guest disk for the internal snapshot S of CORE, read-only: fills MAP
 * and IO, which the caller closes with map_close.
 */
extern int core_open_snapshot (struct core *core,
                               const struct snapshot_entry *s,
                               struct map *map, struct io *io)
  __attribute__ ((__warn_unused_result__));

/* Make everything stable and clean (writable images; see commit_finish).
 * No request is being served.
 */
extern int core_finish (struct core *core)
  __attribute__ ((__warn_unused_result__));

/* Free everything; writes nothing. */
extern void core_close (struct core *core);

#endif /* CORE_H */
