/* SPDX-License-Identifier: BSD-3-Clause */
/* A bounded cache of decompressed clusters, shared by all layers of all
 * chains of an image and by all threads.
 *
 * A compressed cluster is found by the layer it is in and by the host
 * offset of its compressed data.  The cache knows nothing of codecs or
 * files: what is missing is produced by the caller's fill function.
 */

#ifndef CCACHE_H
#define CCACHE_H

#include <stddef.h>
#include <stdint.h>

struct ccache;

/* Which compressed cluster. */
struct ccache_key {
  uint64_t owner;               /* unique per layer, never reused */
  uint64_t host_off;            /* of the first compressed byte */
};

/* Produce the cluster's bytes from the start on, at least WANT of them,
 * into OUT (OUT_LEN bytes, the cluster size).  WANT is 1 to OUT_LEN.
 * Called without any lock held by the cache; several threads call it at
 * once.  Returns how many bytes from the start are valid (WANT to
 * OUT_LEN), or -errno.
 */
typedef int64_t ccache_fill_fn (void *opaque,
                                void *out, size_t out_len, size_t want);

/* Counters since creation, and the present size. */
struct ccache_stats {
  uint64_t hits;                /* served from the cache */
  uint64_t waits;               /* of these: after waiting for a fill */
  uint64_t fills_full;          /* fills with WANT == OUT_LEN */
  uint64_t fills_part;          /* fills with less */
  uint64_t used;                /* bytes held now, in-flight fills too */
  uint64_t peak;                /* the highest USED ever */
};

/* Create a cache that holds at most MAX_BYTES, bookkeeping of entries
 * included.  On top come the empty table (1/512 of it, 8 to 512 KiB) and
 * about 100 bytes for each read of a whole cluster that is running.
 * 0 = cache nothing: each read fills.  Returns 0 or -ENOMEM.
 */
extern int ccache_create (uint64_t max_bytes, struct ccache **ret)
  __attribute__ ((__warn_unused_result__));

/* No call may be running.  NULL is allowed. */
extern void ccache_free (struct ccache *cc);

/* Copy COUNT bytes at OFFSET of the cluster KEY into BUF.
 *
 * CLUSTER_SIZE is that of the layer (any; one key always has the same).
 * CLUSTER_IDX is the guest cluster number; it only serves to recognise
 * sequential reading: clusters of which neighbours were read lately, and
 * those of which too little is cached, are decompressed entirely; of
 * others, just up to the last wanted byte.  A request for a whole cluster
 * is decompressed straight into BUF if keeping it would evict others, and
 * is then kept only if another thread waits for it.
 *
 * A thread that wants what another one is filling waits for it; if that
 * fails, it tries once for itself, so that each caller gets the result
 * of a fill of its own or of a successful one.
 *
 * Returns 0; the -errno of FILL; -ENOMEM; -EINVAL (OFFSET + COUNT beyond
 * the cluster).  BUF is undefined on error.  Takes LOCK_CCACHE; call
 * without locks of that rank or higher.
 */
struct ccache_request {
  struct ccache_key key;
  uint64_t cluster_idx;
  size_t cluster_size;
  size_t offset;
  size_t count;
  void *buf;
};

extern int ccache_read (struct ccache *cc, const struct ccache_request *req,
                        ccache_fill_fn *fill, void *opaque)
  __attribute__ ((__warn_unused_result__));

/* Forget all clusters of OWNER whose compressed data starts in
 * [HOST_OFF, HOST_OFF + LEN) (LEN == UINT64_MAX: to the end).  A fill that
 * is running meanwhile serves the readers that wait for it, and nobody
 * after this call.
 *
 * To be called after all requests that looked the old mapping up have
 * ended (I4), before the space is handed out again: a reader that still
 * holds an old table entry would otherwise bring the old cluster back.
 * May be called with any lock of a rank below LOCK_CCACHE held.
 */
extern void ccache_drop (struct ccache *cc, uint64_t owner,
                         uint64_t host_off, uint64_t len);

/* Forget everything of OWNER: a layer is closed. */
extern void ccache_drop_owner (struct ccache *cc, uint64_t owner);

extern void ccache_get_stats (struct ccache *cc, struct ccache_stats *stats);

#endif /* CCACHE_H */
