/* SPDX-License-Identifier: BSD-3-Clause */
/* Decompressed clusters: a hash table of entries, least recently used
 * ones leave first.
 *
 * An entry is FILLING while its one filler runs, without the lock; then
 * READY, its first VALID bytes never changing again, or GONE.  A longer
 * prefix of the same cluster is another entry, which takes the place of
 * the shorter one.  So data is copied out without the lock, by whoever
 * has a reference.
 *
 * References: one for being in the table, one for the filler, one for
 * each reader that copies or waits.  They are taken under the lock, and
 * released without it.  Who releases the last one frees the entry; who
 * finds only the table's on an entry may take it over.  An entry that
 * was dropped is out of the table: whoever still waits for it is served,
 * and it is never found again.
 *
 * Whole clusters are filled into the reader's own buffer.  Their entries
 * have no DATA, they only make others wait, and get a copy of the data if
 * anybody does.
 *
 * Memory: `used' counts all entries that exist, whatever their state, and
 * an entry with data is created only if it fits below `max' after others
 * have been evicted.  A reader that gets none fills a private buffer, as
 * if there was no cache.
 *
 * Lock: `lock' (LOCK_CCACHE) protects all but the bytes of DATA, and is
 * never held while bytes are copied or filled.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "ccache-table.h"

#define BUCKETS_MIN 1024
#define BUCKETS_MAX 65536

int
ccache_create (uint64_t max_bytes, struct ccache **ret)
{
  struct ccache *cc;
  size_t nr = BUCKETS_MIN, i;

  while (nr < BUCKETS_MAX && nr < max_bytes / 4096)
    nr *= 2;
  cc = calloc (1, sizeof *cc + nr * sizeof cc->buckets[0]);
  if (cc == NULL)
    return -ENOMEM;
  cc->nr_buckets = nr;
  cc->max = max_bytes;
  for (i = 0; i < STREAMS; ++i)
    cc->streams[i].owner = UINT64_MAX;
  ranked_mutex_init (&cc->lock, LOCK_CCACHE);
  pthread_cond_init (&cc->filled, NULL);
  *ret = cc;
  return 0;
}

void
ccache_free (struct ccache *cc)
{
  size_t i;

  if (cc == NULL)
    return;
  for (i = 0; i < cc->nr_buckets; ++i)
    ccache_table_free_list (cc->buckets[i]);
  pthread_cond_destroy (&cc->filled);
  ranked_mutex_destroy (&cc->lock);
  free (cc);
}

/*----------------------------------------------------------------------
 * Reading.
 */

static size_t
request_end (const struct ccache_request *req)
{
  return req->offset + req->count;
}

/* Returns at least WANT, or -errno. */
static int64_t
call_fill (const struct ccache_request *req, void *out, size_t want,
           ccache_fill_fn *fill, void *opaque)
{
  const int64_t r = fill (opaque, out, req->cluster_size, want);

  assert (r < 0 || ((size_t) r >= want && (size_t) r <= req->cluster_size));
  return r;
}

static bool
is_whole (const struct ccache_request *req)
{
  return req->offset == 0 && req->count == req->cluster_size;
}

/* Was this guest cluster or a neighbour missed lately?  Remember it. */
static bool
is_sequential_locked (struct ccache *cc, const struct ccache_request *req)
{
  struct stream *s;
  unsigned i;

  for (i = 0; i < STREAMS; ++i) {
    s = &cc->streams[i];
    if (s->owner == req->key.owner &&
        req->cluster_idx + 1 - s->cluster_idx <= 2) {
      s->cluster_idx = req->cluster_idx;
      return true;
    }
  }
  s = &cc->streams[cc->next_stream];
  cc->next_stream = (cc->next_stream + 1) % STREAMS;
  s->owner = req->key.owner;
  s->cluster_idx = req->cluster_idx;
  return false;
}

/* Fill without the cache. */
static int
read_private (const struct ccache_request *req, size_t want,
              ccache_fill_fn *fill, void *opaque)
{
  uint8_t *tmp;
  int64_t r;

  if (is_whole (req))
    r = call_fill (req, req->buf, want, fill, opaque);
  else {
    tmp = malloc (req->cluster_size);
    if (tmp == NULL)
      return -ENOMEM;
    r = call_fill (req, tmp, want, fill, opaque);
    if (r >= 0)
      memcpy (req->buf, tmp + req->offset, req->count);
    free (tmp);
  }
  return r < 0 ? r : 0;
}

/* End the FILLING of an entry of which the caller has a reference. */
static void
settle_locked (struct ccache *cc, struct ccache_entry *e,
               enum entry_state state, size_t valid,
               struct ccache_entry **garbage)
{
  e->state = state;
  e->valid = valid;
  if (e->in_table) {
    if (state == READY)
      ccache_table_touch_locked (cc, e);
    else
      ccache_table_forget_locked (cc, e, garbage);
  }
  if (e->waiters)
    pthread_cond_broadcast (&cc->filled);
}

static void
settle (struct ccache *cc, struct ccache_entry *e, enum entry_state state,
        size_t valid)
{
  struct ccache_entry *garbage = NULL;

  {
    MUTEX_SCOPE (&cc->lock);
    settle_locked (cc, e, state, valid, &garbage);
  }
  ccache_table_free_list (garbage);
}

/* A whole cluster is in the reader's buffer.  Give it to those who wait
 * for it, if there are any, and room.
 */
static void
settle_whole (struct ccache *cc, struct ccache_entry *e,
              const struct ccache_request *req)
{
  struct ccache_entry *reuse = NULL, *garbage = NULL;
  uint8_t *data = NULL;
  bool share;

  {
    MUTEX_SCOPE (&cc->lock);
    share = e->waiters > 0 &&
      ccache_table_reserve_locked (cc, req->cluster_size, &reuse, &garbage);
    if (share)                  /* only the data goes into E */
      cc->stats.used -= ccache_table_entry_size (0);
    else
      settle_locked (cc, e, GONE, 0, &garbage);
  }
  ccache_table_free_list (garbage);
  if (!share)
    return;

  if (reuse) {
    data = reuse->data;
    free (reuse);
  }
  else
    data = malloc (req->cluster_size);
  if (data)
    memcpy (data, req->buf, req->cluster_size);
  garbage = NULL;
  {
    MUTEX_SCOPE (&cc->lock);
    if (data) {
      e->data = data;
      e->capacity = req->cluster_size;
    }
    else
      cc->stats.used -= req->cluster_size;
    settle_locked (cc, e, data ? READY : GONE, req->cluster_size, &garbage);
  }
  ccache_table_free_list (garbage);
}

/* Fill E, of which the caller is the filler, and serve the request. */
static int
read_filling (struct ccache *cc, struct ccache_entry *e,
              const struct ccache_request *req, size_t want,
              ccache_fill_fn *fill, void *opaque)
{
  int64_t r;

  if (e->data == NULL) {
    r = call_fill (req, req->buf, want, fill, opaque);
    if (r >= 0)
      settle_whole (cc, e, req);
  }
  else {
    r = call_fill (req, e->data, want, fill, opaque);
    if (r >= 0) {
      settle (cc, e, READY, r);
      memcpy (req->buf, e->data + req->offset, req->count);
    }
  }
  if (r < 0)
    settle (cc, e, GONE, 0);
  ccache_table_release (cc, e);
  return r < 0 ? r : 0;
}

/* Make the entry that will be filled for REQ, and the caller its filler.
 * SHORTER is what it replaces, if anything.  NULL: no room or memory.
 */
static struct ccache_entry *
begin_fill_locked (struct ccache *cc, const struct ccache_request *req,
                   struct ccache_entry *shorter, struct ccache_entry **garbage)
{
  size_t capacity = req->cluster_size;
  struct ccache_entry *e = NULL;

  if (shorter)
    ccache_table_forget_locked (cc, shorter, garbage);
  if (ccache_table_entry_size (capacity) > cc->max)
    return NULL;
  if (is_whole (req) &&
      cc->stats.used > cc->max - ccache_table_entry_size (capacity)) {
    /* Not worth the eviction of others, nor a copy. */
    capacity = 0;
    cc->stats.used += ccache_table_entry_size (0);
  }
  else if (!ccache_table_reserve_locked (cc, capacity, &e, garbage))
    return NULL;
  if (e == NULL) {
    e = calloc (1, sizeof *e);
    if (e && capacity > 0) {
      e->data = malloc (capacity);
      if (e->data == NULL) {
        free (e);
        e = NULL;
      }
    }
    if (e == NULL) {
      cc->stats.used -= ccache_table_entry_size (capacity);
      return NULL;
    }
    e->capacity = capacity;
  }
  e->key = req->key;
  e->state = FILLING;
  e->refs = 1;
  ccache_table_add_locked (cc, e);
  return e;
}

/* How a look into the table ends. */
enum found {
  HIT,                          /* the entry has the wanted bytes */
  MISS,                         /* no entry, or a READY one with less */
  WAITED,                       /* for a fill: look again */
  FAILED,                       /* for a fill that failed */
};

/* Except for MISS, *RET is referenced. */
static enum found
look_up_locked (struct ccache *cc, const struct ccache_request *req,
                struct ccache_entry **ret)
{
  struct ccache_entry *e = ccache_table_find_locked (cc, &req->key);

  *ret = e;
  if (e == NULL || (e->state == READY && e->valid < request_end (req)))
    return MISS;
  e->refs++;
  if (e->state == READY) {
    ccache_table_touch_locked (cc, e);
    cc->stats.hits++;
    return HIT;
  }
  e->waiters++;
  while (e->state == FILLING)
    ranked_mutex_wait (&cc->filled, &cc->lock);
  e->waiters--;
  if (e->state == GONE)
    return FAILED;
  if (e->valid < request_end (req))
    return WAITED;
  cc->stats.hits++;
  cc->stats.waits++;
  return HIT;
}

/* How many bytes to fill after a MISS. */
static size_t
choose_want_locked (struct ccache *cc, const struct ccache_request *req,
                    const struct ccache_entry *shorter)
{
  const bool sequential = is_sequential_locked (cc, req);

  return shorter || sequential ? req->cluster_size : request_end (req);
}

static void
count_fill_locked (struct ccache *cc, const struct ccache_request *req,
                   size_t want)
{
  if (want == req->cluster_size)
    cc->stats.fills_full++;
  else
    cc->stats.fills_part++;
}

/* Look, and after a MISS become the filler: then *RET is the entry to fill
 * with *WANT bytes, or NULL if there is no room for one.
 */
static enum found
look_up (struct ccache *cc, const struct ccache_request *req,
         struct ccache_entry **ret, size_t *want)
{
  struct ccache_entry *garbage = NULL;
  enum found found;

  *want = request_end (req);
  {
    MUTEX_SCOPE (&cc->lock);
    found = look_up_locked (cc, req, ret);
    if (found == MISS) {
      const size_t full = choose_want_locked (cc, req, *ret);

      *ret = begin_fill_locked (cc, req, *ret, &garbage);
      if (*ret)                 /* else nobody will get the rest */
        *want = full;
    }
    if (found == MISS || found == FAILED)
      count_fill_locked (cc, req, *want);
  }
  ccache_table_free_list (garbage);
  return found;
}

int
ccache_read (struct ccache *cc, const struct ccache_request *req,
             ccache_fill_fn *fill, void *opaque)
{
  struct ccache_entry *e;
  enum found found;
  size_t want;

  if (req->offset > req->cluster_size ||
      req->count > req->cluster_size - req->offset)
    return -EINVAL;
  if (req->count == 0)
    return 0;

  while ((found = look_up (cc, req, &e, &want)) == WAITED)
    ccache_table_release (cc, e);

  if (found == MISS && e)
    return read_filling (cc, e, req, want, fill, opaque);
  if (found == HIT)
    memcpy (req->buf, e->data + req->offset, req->count);
  if (e)
    ccache_table_release (cc, e);
  return found == HIT ? 0 : read_private (req, want, fill, opaque);
}

/*----------------------------------------------------------------------
 * Dropping.
 */

static void
drop_in_bucket_locked (struct ccache *cc, size_t bucket, uint64_t owner,
                       uint64_t first, uint64_t last,
                       struct ccache_entry **garbage)
{
  struct ccache_entry *e, *next;

  for (e = cc->buckets[bucket]; e != NULL; e = next) {
    next = e->next;
    if (e->key.owner == owner &&
        e->key.host_off >= first && e->key.host_off <= last)
      ccache_table_forget_locked (cc, e, garbage);
  }
}

void
ccache_drop (struct ccache *cc, uint64_t owner,
             uint64_t host_off, uint64_t len)
{
  struct ccache_entry *garbage = NULL;
  uint64_t last, region;
  size_t i;

  if (len == 0)
    return;
  last = len - 1 > UINT64_MAX - host_off ? UINT64_MAX : host_off + len - 1;
  {
    MUTEX_SCOPE (&cc->lock);
    region = host_off >> REGION_BITS;
    if ((last >> REGION_BITS) - region >= cc->nr_buckets) {
      for (i = 0; i < cc->nr_buckets; ++i)
        drop_in_bucket_locked (cc, i, owner, host_off, last, &garbage);
    }
    else {
      for (; region <= last >> REGION_BITS; ++region)
        drop_in_bucket_locked (cc, ccache_table_bucket (cc, owner,
                                              region << REGION_BITS),
                               owner, host_off, last, &garbage);
    }
  }
  ccache_table_free_list (garbage);
}

void
ccache_drop_owner (struct ccache *cc, uint64_t owner)
{
  ccache_drop (cc, owner, 0, UINT64_MAX);
}

void
ccache_get_stats (struct ccache *cc, struct ccache_stats *stats)
{
  MUTEX_SCOPE (&cc->lock);
  *stats = cc->stats;
}
