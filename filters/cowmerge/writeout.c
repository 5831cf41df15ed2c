/* SPDX-License-Identifier: BSD-3-Clause */
/* Writing blocks out.
 *
 * A complete block is one write.  Of another one, what is missing depends
 * on what is below:
 *
 *  - Data (of a backing file): the missing parts are read, those at most
 *    cowmerge-read-gap apart together, and the whole cluster is written.
 *    So the plugin has nothing to copy.  Of an image that has subclusters
 *    it is whole subclusters.
 *  - Zeroes: the plugin fills new clusters with zeroes by itself and at no
 *    cost, so only the pieces that were written go down, near ones as one.
 *    But if only whole clusters are compressed, whole clusters are made.
 *
 * A block whose write fails keeps its data.  It is tried again by the next
 * flush, when the connection closes, when a client writes to it, and from
 * time to time.  The error is counted in the overlay, and each connection
 * reports it in its next flush (cowmerge.c), even if the data is safe by
 * then.
 *
 * Invariant: blocks are written out, and their content is changed, only
 * with an exclusive claim on the cluster; so two writes of one cluster are
 * never on their way at once, and what was read as missing does not change
 * before it is written.
 *
 * Locks: the overlay's, released during I/O.
 */

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "scope-lock.h"

#include "below.h"
#include "cowmerge.h"
#include "layer.h"
#include "writeout.h"
#include "writer.h"

/* Pieces in a cluster of zeroes which are no farther apart than this are
 * written together.  Writing that many zeroes costs less than a request.
 */
#define ZERO_GAP 65536

/* When a background thread finds a block busy it comes back after so many
 * ms.  When a write-out failed, it comes back after so many, and the delay.
 */
#define BUSY_DELAY 50
#define RETRY_DELAY 1000

/* A flush of more blocks than this gets help by the background threads. */
#define FLUSH_ALONE 2

/* The next stretch of B that shall be written with one request, from POS
 * on: grown to whole multiples of GRAIN, and over gaps up to GAP.
 */
static bool
next_stretch (const struct block *b, uint32_t pos, uint32_t grain,
              uint32_t gap, uint32_t *start, uint32_t *end)
{
  uint32_t s, e;

  if (!block_find (b, true, pos, b->len, start, end))
    return false;
  *start -= *start % grain;
  for (;;) {
    *end += (grain - *end % grain) % grain;
    if (*end >= b->len) {
      *end = b->len;
      return true;
    }
    if (!block_find (b, true, *end, b->len, &s, &e) || s - *end > gap)
      return true;
    *end = e;
  }
}

/* The next range in FROM..TO-1 that shall be read with one request, so
 * that its missing bytes become known.
 */
static bool
next_read (const struct block *b, uint32_t from, uint32_t to,
           uint32_t *start, uint32_t *end)
{
  uint32_t s, e;

  if (!block_find (b, false, from, to, start, end))
    return false;
  while (block_find (b, false, *end, to, &s, &e) &&
         s - *end <= cowmerge_read_gap)
    *end = e;
  return true;
}

/* BOUNCE has the bytes S..E-1 as they are below.  Take over those which
 * the client did not write.
 */
static void
take_missing (struct block *b, const struct block *bounce,
              uint32_t s, uint32_t e)
{
  uint32_t from, to;

  for (uint32_t pos = s; block_find (b, false, pos, e, &from, &to); pos = to)
    memcpy (b->data + from, bounce->data + from, to - from);
}

/* The same where BOUNCE has all that is missing, and the client wrote
 * little: the bounce buffer becomes the block's.  Readers may look at it
 * all the time.
 */
static void
swap_data (struct overlay *ov, struct block *b, struct block *bounce)
{
  uint8_t *data = bounce->data;

  block_copy (b, 0, b->len, data);
  OVERLAY_LOCK (ov);
  bounce->data = b->data;
  b->data = data;
}

/* Read the bytes S..E-1 of B's cluster, some of which are missing. */
static int
read_range (struct overlay *ov, nbdkit_next *next, struct block *b,
            uint32_t s, uint32_t e)
{
  const uint64_t start = b->idx << ov->shift;
  struct block *bounce;
  uint32_t from, to;
  int r;

  /* Nothing in it was written: no need for a bounce buffer. */
  if (!block_find (b, true, s, e, &from, &to))
    return below_pread (next, b->data + s, e - s, start + s);

  bounce = block_get (ov->cluster, true);
  if (bounce == NULL) {
    for (uint32_t pos = s; block_find (b, false, pos, e, &from, &to);
         pos = to) {
      r = below_pread (next, b->data + from, to - from, start + from);
      if (r < 0)
        return r;
    }
    return 0;
  }

  r = below_pread (next, bounce->data + s, e - s, start + s);
  if (r == 0) {
    bool all = !block_find (b, false, 0, s, &from, &to) &&
               !block_find (b, false, e, b->len, &from, &to);

    if (all && b->dirty < b->len / 2)
      swap_data (ov, b, bounce);
    else
      take_missing (b, bounce, s, e);
  }
  block_put (bounce);
  return r;
}

/* Make the bytes S..E-1 of the block known, for writing them. */
static int
fill_stretch (struct overlay *ov, nbdkit_next *next, struct block *b,
              uint32_t s, uint32_t e)
{
  uint32_t from, to, pos;
  int r;

  if (b->zero) {
    for (pos = s; block_find (b, false, pos, e, &from, &to); pos = to)
      memset (b->data + from, 0, to - from);
    return 0;
  }
  for (pos = s; next_read (b, pos, e, &from, &to); pos = to) {
    r = read_range (ov, next, b, from, to);
    if (r < 0)
      return r;
  }
  return 0;
}

static int
write_down (struct overlay *ov, nbdkit_next *next, struct block *b,
            uint32_t flags)
{
  const uint64_t start = b->idx << ov->shift;
  const uint32_t gap = b->zero ? ZERO_GAP : cowmerge_read_gap;
  uint32_t grain = b->zero ? 1 : ov->grain;
  uint32_t s, e;
  int r;

  if (layer_whole_clusters ())
    grain = ov->cluster;
  for (uint32_t pos = 0; next_stretch (b, pos, grain, gap, &s, &e); pos = e) {
    r = fill_stretch (ov, next, b, s, e);
    if (r == 0)
      r = below_pwrite (next, b->data + s, e - s, start + s, flags);
    if (r < 0)
      return r;
  }
  return 0;
}

static void
failed_locked (struct overlay *ov, struct block *b, int r)
{
  b->failed = ++ov->ticks;
  b->retry = overlay_now () + cowmerge_delay + RETRY_DELAY;
  ov->error = r;
  ov->error_gen++;
  /* One message, not one for each block of a full disk. */
  if (!ov->failing) {
    errno = -r;
    nbdkit_error ("cowmerge: export \"%s\": writing out the cluster at "
                  "offset %" PRIu64 " failed: %m: it stays buffered, and is "
                  "tried again with the next flush",
                  ov->key.name, b->idx << ov->shift);
  }
  ov->failing = true;
}

int
writeout_locked (struct overlay *ov, nbdkit_next *next, struct block *b,
                 uint32_t flags)
{
  const bool complete = block_complete (b);
  int r;

  ov->nr_writing++;
  pthread_mutex_unlock (&ov->lock);
  r = write_down (ov, next, b, flags);
  pthread_mutex_lock (&ov->lock);
  ov->nr_writing--;

  if (r < 0) {
    failed_locked (ov, b, r);
    return r;
  }
  if (complete)
    ov->counts.complete++;
  else
    ov->counts.partial++;
  ov->failing = false;
  presence_set_locked (&ov->presence, b->idx, b->idx, layer_state_written ());
  overlay_remove_locked (ov, b);
  return 0;
}

/* Claim the oldest block that came before the tick BEFORE and did not fail
 * after SINCE.  *PENDING tells if some such block is another thread's now.
 */
static struct block *
oldest_locked (struct overlay *ov, uint64_t before, uint64_t since,
               struct claim *claim, bool *pending)
{
  *pending = false;
  list_for_each (e, &ov->age) {
    struct block *b = list_entry (e, struct block, age);

    if (b->seq >= before)
      break;
    if (b->failed > since)
      continue;
    if (claim_try_locked (&ov->claims, claim, b->idx))
      return b;
    *pending = true;
  }
  return NULL;
}

int
writeout_all (struct overlay *ov, nbdkit_next *next)
{
  struct claim claim;
  struct block *b;
  uint64_t start;
  bool pending;
  int r = 0;

  OVERLAY_LOCK (ov);
  start = ++ov->ticks;
  ov->drain = start;
  if (ov->nr_blocks > FLUSH_ALONE)
    writer_kick_all ();
  for (;;) {
    b = oldest_locked (ov, start, start, &claim, &pending);
    if (b) {
      writeout_locked (ov, next, b, 0);
      claim_end_locked (&ov->claims, &claim);
    }
    else if (pending)
      claim_wait_locked (&ov->claims, &ov->lock);
    else
      break;
  }

  /* Those which this thread or another tried in vain. */
  list_for_each (e, &ov->age)
    if (list_entry (e, struct block, age)->seq < start)
      r = ov->error;
  return r;
}

/* Claim the block that was used least recently. */
static struct block *
victim_locked (struct overlay *ov, int64_t now, struct claim *claim)
{
  list_for_each (e, &ov->lru) {
    struct block *b = list_entry (e, struct block, lru);

    if (b->retry <= now && claim_try_locked (&ov->claims, claim, b->idx))
      return b;
  }
  return NULL;
}

bool
writeout_victim (struct overlay *ov, nbdkit_next *next)
{
  const int64_t now = overlay_now ();
  struct claim claim;
  struct block *b;

  OVERLAY_LOCK (ov);
  b = victim_locked (ov, now, &claim);
  if (b) {
    writeout_locked (ov, next, b, 0);
    claim_end_locked (&ov->claims, &claim);
    return true;
  }
  if (ov->nr_writing == 0)
    return false;
  claim_wait_locked (&ov->claims, &ov->lock);
  return true;
}

/* Claim a block that is due.  Else see when one will be. */
static struct block *
due_locked (struct overlay *ov, struct claim *claim, int64_t *wake)
{
  const int64_t now = overlay_now ();

  list_for_each (e, &ov->age) {
    struct block *b = list_entry (e, struct block, age);
    int64_t due = b->seq < ov->drain ? 0 : b->born + cowmerge_delay;

    if (b->retry > due)
      due = b->retry;
    if (due > now) {
      if (due < *wake)
        *wake = due;
      /* Those that come later are due later, but for failed ones. */
      if (b->retry == 0)
        break;
    }
    else if (claim_try_locked (&ov->claims, claim, b->idx))
      return b;
    else if (now + BUSY_DELAY < *wake)
      *wake = now + BUSY_DELAY;
  }
  return block_pool_above (POOL_LOW) ? victim_locked (ov, now, claim) : NULL;
}

bool
writeout_due (struct overlay *ov, nbdkit_next *next, int64_t *wake)
{
  struct lender *lender = NULL;
  struct claim claim;
  struct block *b;

  if (overlay_empty (ov))
    return false;

  OVERLAY_LOCK (ov);
  if (next == NULL) {
    if (list_empty (&ov->lenders))
      return false;
    lender = list_entry (ov->lenders.next, struct lender, link);
    next = lender->next;
  }
  b = due_locked (ov, &claim, wake);
  if (b == NULL)
    return false;
  if (lender)
    lender->users++;
  writeout_locked (ov, next, b, 0);
  claim_end_locked (&ov->claims, &claim);
  if (lender && --lender->users == 0)
    claim_wake_locked (&ov->claims);
  return true;
}
