/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests that change data.
 *
 * A write is cut at its first and last cluster border.  A part of a
 * cluster which the layer lacks goes into the cluster's block.  All else
 * goes straight down, as one request as far as it is contiguous: whole
 * clusters, which need no copying and take the place of a block that there
 * may be; and parts of clusters which the layer has.
 *
 * What goes straight down holds a claim until it is done.  It is a shared
 * one if it changes nothing but bytes of clusters that are present and have
 * no block: such writes hinder nobody, as without the filter.  All else is
 * exclusive: it changes which clusters are present.
 *
 * Why whatever is interleaved comes out right: of a cluster with a block
 * all writes go to the block; the block is written with an exclusive claim,
 * so that no other write is below it on its way; and a block can only be
 * made while no write is on its way, since that takes an exclusive claim
 * too.  The presence map plays no part in this.
 *
 * Memory: a block is taken from the pool before anything is claimed.  If
 * there is none, this thread writes out the least recently used block, or
 * waits for others that do.  If that cannot help, because all is used by
 * other exports or cannot be written, the piece goes straight down: never
 * wrong, only slower.
 *
 * Zeroing and trimming take one exclusive claim on all of the range, parts
 * of clusters at its ends included.
 *
 * Locks: the overlay's, not across I/O.
 */

#include <errno.h>
#include <stdlib.h>

#include "scope-lock.h"

#include "below.h"
#include "cowmerge.h"
#include "layer.h"
#include "merge.h"
#include "writeout.h"
#include "writer.h"

enum route {
  ROUTE_STRAIGHT,
  ROUTE_BUFFER,
  ROUTE_LEARN,                  /* not known: ask the plugin first */
};

/* A stretch of a request that can go down as it is. */
struct stretch {
  uint32_t count;               /* bytes, from the request's offset on */
  uint64_t first, last;         /* clusters it touches */
  bool exclusive;               /* kind of claim it needs */
  enum route stop;              /* if COUNT is 0: the way to go instead */
};

/* The way of a write to cluster IDX. */
static enum route
route_locked (const struct merge_request *rq, uint64_t idx, bool whole,
              bool *exclusive)
{
  enum presence_state s = presence_get_locked (&rq->ov->presence, idx);

  *exclusive = s != PRESENCE_PRESENT || rq->ov->nr_blocks > 0;
  if (*exclusive) {
    bool has_block = overlay_find_locked (rq->ov, idx) != NULL;

    *exclusive = s != PRESENCE_PRESENT || has_block;
    if (has_block && !whole)
      return ROUTE_BUFFER;
  }
  if (whole || s == PRESENCE_PRESENT || rq->no_room)
    return ROUTE_STRAIGHT;
  if (s == PRESENCE_UNKNOWN)
    return ROUTE_LEARN;
  /* It has to be copied now, and the plugin can do that as well. */
  return rq->fua ? ROUTE_STRAIGHT : ROUTE_BUFFER;
}

static uint32_t
part_of_cluster (const struct overlay *ov, uint32_t count, uint64_t off,
                 bool *whole)
{
  uint64_t idx = off >> ov->shift;
  uint32_t len = overlay_cluster_len (ov, idx);
  uint32_t n = len - (off & (ov->cluster - 1));

  if (n > count)
    n = count;
  *whole = n == len;
  return n;
}

/* How much of COUNT bytes from OFF can go straight down. */
static struct stretch
stretch_locked (const struct merge_request *rq, uint32_t count, uint64_t off)
{
  struct stretch st = { .first = off >> rq->ov->shift };
  uint64_t idx = st.first;
  bool whole, exclusive;
  uint32_t n;

  while (count > 0) {
    n = part_of_cluster (rq->ov, count, off, &whole);
    st.stop = route_locked (rq, idx, whole, &exclusive);
    if (st.stop != ROUTE_STRAIGHT)
      break;
    st.exclusive |= exclusive;
    st.count += n;
    st.last = idx++;
    count -= n;
    off += n;
  }
  return st;
}

/* Find the stretch, and claim it. */
static struct stretch
claim_stretch (struct merge_request *rq, uint32_t count, uint64_t off,
               struct claim *claim)
{
  struct overlay *ov = rq->ov;
  struct stretch st, now;

  OVERLAY_LOCK (ov);
  st = stretch_locked (rq, count, off);
  while (st.count > 0) {
    if (!claim_begin_locked (&ov->claims, &ov->lock, claim,
                             st.first, st.last, st.exclusive))
      break;
    /* What it had to wait for may have changed the way. */
    now = stretch_locked (rq, count, off);
    if (now.count == st.count && now.exclusive <= st.exclusive)
      break;
    claim_end_locked (&ov->claims, claim);
    st = now;
  }
  ov->counts.straight += st.count > 0;
  return st;
}

/* Clusters of COUNT bytes from OFF that were replaced as a whole need
 * their blocks no more.
 */
static void
remove_replaced_locked (struct overlay *ov, uint32_t count, uint64_t off)
{
  const uint64_t end = off + count;
  /* Whole clusters FIRST..LAST-1. */
  const uint64_t first = (off + ov->cluster - 1) >> ov->shift;
  const uint64_t last = end == ov->size ? ov->nr_clusters : end >> ov->shift;
  struct list *e, *following;
  struct block *b;

  if (last <= first)
    return;
  if (last - first <= ov->nr_blocks) {
    for (uint64_t idx = first; idx < last; ++idx) {
      b = overlay_find_locked (ov, idx);
      if (b)
        overlay_remove_locked (ov, b);
    }
    return;
  }
  /* A trim of many gigabytes. */
  for (e = ov->lru.next; e != &ov->lru; e = following) {
    following = e->next;
    b = list_entry (e, struct block, lru);
    if (b->idx >= first && b->idx < last)
      overlay_remove_locked (ov, b);
  }
}

/* Write as much as can go straight down.  *DONE is 0 if that is nothing;
 * the way to go is returned then, or -errno.
 */
static int
write_straight (struct merge_request *rq, const void *buf, uint32_t count,
                uint64_t off, uint32_t *done)
{
  struct overlay *ov = rq->ov;
  struct claim claim;
  struct stretch st = claim_stretch (rq, count, off, &claim);
  int r;

  *done = st.count;
  if (st.count == 0)
    return st.stop;

  r = below_pwrite (rq->next, buf, st.count, off, rq->down_flags);

  OVERLAY_LOCK (ov);
  if (st.exclusive) {
    if (r == 0)
      remove_replaced_locked (ov, st.count, off);
    presence_set_locked (&ov->presence, st.first, st.last,
                         r == 0 ? layer_state_written () : PRESENCE_UNKNOWN);
  }
  claim_end_locked (&ov->claims, &claim);
  return r;
}

/* Get memory for a block, by writing out others if need be. */
static void
make_room (struct merge_request *rq)
{
  do
    rq->fresh = block_get (rq->ov->cluster, false);
  while (rq->fresh == NULL && writeout_victim (rq->ov, rq->next));

  if (rq->fresh == NULL)
    rq->no_room = true;
  else if (block_pool_above (POOL_HIGH))
    writer_kick ();
}

/* Make the request's memory the block of cluster IDX. */
static struct block *
new_block_locked (struct merge_request *rq, uint64_t idx)
{
  struct overlay *ov = rq->ov;
  struct block *b = rq->fresh;

  rq->fresh = NULL;
  b->zero = presence_get_locked (&ov->presence, idx) == PRESENCE_ABSENT_ZERO;
  overlay_insert_locked (ov, b, idx);
  writer_wake_by (b->born + cowmerge_delay);
  return b;
}

/* Write COUNT bytes, which lie in one cluster, to its block.  *DONE is 0
 * if the way has to be found anew.
 */
static int
write_buffered (struct merge_request *rq, const void *buf, uint32_t count,
                uint64_t off, uint32_t *done)
{
  struct overlay *ov = rq->ov;
  const uint64_t idx = off >> ov->shift;
  struct claim claim;
  struct block *b;
  bool exclusive, wanted = true;
  int r = 0;

  *done = 0;
  {
    OVERLAY_LOCK (ov);
    claim_begin_locked (&ov->claims, &ov->lock, &claim, idx, idx, true);
    b = overlay_find_locked (ov, idx);
    if (b == NULL) {
      wanted = route_locked (rq, idx, false, &exclusive) == ROUTE_BUFFER;
      if (wanted && rq->fresh)
        b = new_block_locked (rq, idx);
    }
    if (b) {
      block_fill (b, buf, count, off & (ov->cluster - 1));
      overlay_touch_locked (ov, b);
      ov->counts.merged++;
      *done = count;
      if (block_complete (b) || rq->fua)
        r = writeout_locked (ov, rq->next, b, rq->down_flags);
    }
    claim_end_locked (&ov->claims, &claim);
  }
  if (b == NULL && wanted)
    make_room (rq);
  return r;
}

/* A flush that makes up for the FUA which the layer below does not have. */
static int
finish (struct merge_request *rq)
{
  if (rq->fresh)
    block_put (rq->fresh);
  rq->fresh = NULL;
  if (rq->fua && !(rq->down_flags & NBDKIT_FLAG_FUA))
    return below_flush (rq->next);
  return 0;
}

int
merge_write (struct merge_request *rq, const void *buf, uint32_t count,
             uint64_t off)
{
  struct overlay *ov = rq->ov;
  int r = 0, r2;
  bool whole;
  uint32_t n;

  while (count > 0 && r >= 0) {
    r = write_straight (rq, buf, count, off, &n);
    if (r == ROUTE_LEARN && n == 0) {
      layer_learn (ov, rq->next, off >> ov->shift);
      OVERLAY_LOCK (ov);
      if (presence_get_locked (&ov->presence, off >> ov->shift) ==
          PRESENCE_UNKNOWN)
        rq->no_room = true;     /* not even for the answer */
    }
    else if (r == ROUTE_BUFFER && n == 0)
      r = write_buffered (rq, buf, part_of_cluster (ov, count, off, &whole),
                          off, &n);
    buf = (const uint8_t *) buf + n;
    count -= n;
    off += n;
  }

  r2 = finish (rq);
  return r < 0 ? r : r2;
}

/* Zeroing and trimming. */
struct discard {
  int (*below) (nbdkit_next *next, uint32_t count, uint64_t off,
                uint32_t flags);
  bool trim;
  uint32_t flags;
};

/* If the request covers only a part of cluster IDX, and that has a block,
 * return the block.
 */
static struct block *
partial_locked (const struct overlay *ov, uint64_t idx, uint64_t off,
                uint64_t end)
{
  uint64_t start = idx << ov->shift;

  if (off <= start && end >= start + overlay_cluster_len (ov, idx))
    return NULL;
  return overlay_find_locked (ov, idx);
}

/* Zero the bytes OFF..END-1 in the block, as far as they are in it. */
static int
fill_locked (struct merge_request *rq, struct block *b, uint64_t off,
             uint64_t end)
{
  uint64_t start = b->idx << rq->ov->shift;
  uint32_t from = off > start ? off - start : 0;
  uint32_t to = end < start + b->len ? end - start : b->len;
  int r;

  block_fill (b, NULL, to - from, from);
  rq->ov->counts.merged++;
  if (!block_complete (b) && !rq->fua)
    return 0;
  r = writeout_locked (rq->ov, rq->next, b, rq->down_flags);
  /* This would mean that nothing has changed. */
  return r == -ENOTSUP || r == -EOPNOTSUPP ? -EIO : r;
}

/* The range was trimmed below.  Where it has blocks that is not enough: the
 * plugin has nothing to trim there, and without the block what is below
 * would come back, which is neither of what may be read after a trim.  So
 * these clusters are zeroed, where that is possible; else nothing is done.
 */
static int
zero_blocks (struct merge_request *rq, uint64_t off, uint64_t end)
{
  struct overlay *ov = rq->ov;
  const uint64_t first = (off + ov->cluster - 1) >> ov->shift;
  const uint64_t last = end == ov->size ? ov->nr_clusters : end >> ov->shift;
  struct overlay_blocks bl;
  size_t i, j;
  uint64_t start, n;
  int r = 0;

  if (!rq->can_zero || overlay_empty (ov) || last <= first)
    return 0;
  r = overlay_list_blocks (ov, first, last - 1, &bl);
  for (i = 0; r == 0 && i < bl.nr; i = j) {
    for (j = i + 1; j < bl.nr && bl.idx[j] == bl.idx[j - 1] + 1; ++j)
      ;
    start = bl.idx[i] << ov->shift;
    n = ((bl.idx[j - 1] - bl.idx[i]) << ov->shift) +
        overlay_cluster_len (ov, bl.idx[j - 1]);
    r = below_zero (rq->next, n, start,
                    NBDKIT_FLAG_MAY_TRIM | rq->down_flags);
    OVERLAY_LOCK (ov);
    if (r == 0)
      remove_replaced_locked (ov, n, start);
  }
  free (bl.idx);
  return r;
}

/* What is straight goes down first, with one request: if that fails, no
 * buffered data was touched.  The claim covers all of it.
 */
static int
discard_claimed (struct merge_request *rq, const struct discard *d,
                 uint32_t count, uint64_t off)
{
  struct overlay *ov = rq->ov;
  const uint64_t first = off >> ov->shift;
  const uint64_t last = (off + count - 1) >> ov->shift;
  const uint64_t end = off + count;
  uint64_t from = off, to = end;
  struct block *head, *tail;
  int r = 0, r2 = 0;

  {
    OVERLAY_LOCK (ov);
    head = partial_locked (ov, first, off, end);
    tail = last > first ? partial_locked (ov, last, off, end) : NULL;
  }
  if (head)
    from = (first + 1) << ov->shift;
  if (tail)
    to = last << ov->shift;
  if (from < to)
    r = d->below (rq->next, to - from, from, d->flags | rq->down_flags);
  if (r == 0 && from < to && d->trim)
    r = zero_blocks (rq, from, to);

  OVERLAY_LOCK (ov);
  if (from < to)
    presence_set_locked (&ov->presence, from >> ov->shift,
                         (to - 1) >> ov->shift, PRESENCE_UNKNOWN);
  if (r < 0 || d->trim)
    return r;
  if (from < to)
    remove_replaced_locked (ov, to - from, from);
  if (head)
    r = fill_locked (rq, head, off, end);
  if (tail)
    r2 = fill_locked (rq, tail, off, end);
  return r < 0 ? r : r2;
}

static int
discard (struct merge_request *rq, const struct discard *d, uint32_t count,
         uint64_t off)
{
  struct overlay *ov = rq->ov;
  struct claim claim;
  int r, r2 = 0;

  {
    OVERLAY_LOCK (ov);
    claim_begin_locked (&ov->claims, &ov->lock, &claim, off >> ov->shift,
                        (off + count - 1) >> ov->shift, true);
  }
  r = discard_claimed (rq, d, count, off);
  {
    OVERLAY_LOCK (ov);
    claim_end_locked (&ov->claims, &claim);
  }
  if (r >= 0)
    r2 = finish (rq);
  return r < 0 ? r : r2;
}

int
merge_zero (struct merge_request *rq, uint32_t count, uint64_t off,
            uint32_t flags)
{
  const struct discard d = {
    .below = below_zero, .flags = flags
  };

  return discard (rq, &d, count, off);
}

int
merge_trim (struct merge_request *rq, uint32_t count, uint64_t off)
{
  const struct discard d = { .below = below_trim, .trim = true };

  return discard (rq, &d, count, off);
}
