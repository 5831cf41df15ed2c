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
 * that its missing bytes become known; over written ones up to GAP.
 */
static bool
next_read (const struct block *b, uint32_t from, uint32_t to, uint32_t gap,
           uint32_t *start, uint32_t *end)
{
  uint32_t s, e;

  if (!block_find (b, false, from, to, start, end))
    return false;
  while (block_find (b, false, *end, to, &s, &e) && s - *end <= gap)
    *end = e;
  return true;
}

/* Shall the bytes FROM..TO-1 be put together in a bounce buffer?  Reading
 * into the block saves to copy what was written, but must not touch it.
 * The bounce buffer is the better place if that is little, because it has
 * just been used, and is in the CPU's cache; the block is not.
 */
static bool
wants_bounce (const struct block *b, uint32_t from, uint32_t to)
{
  uint32_t s, e, s2, e2;

  if (b->dirty < b->len / 2)
    return true;
  for (uint32_t pos = from;
       next_read (b, pos, to, cowmerge_read_gap, &s, &e); pos = e)
    if (block_find (b, true, s, e, &s2, &e2))
      return true;
  return false;
}

/* Write the bytes FROM..TO-1 of a block over data.  The block itself changes
 * only where nothing was written.
 */
static int
write_over_data (struct overlay *ov, nbdkit_next *next, struct block *b,
                 uint32_t from, uint32_t to, uint32_t flags)
{
  const uint64_t start = b->idx << ov->shift;
  struct block *bounce = NULL;
  uint32_t gap = 0, s, e;
  uint8_t *data = b->data;
  int r = 0;

  if (!block_complete (b) && wants_bounce (b, from, to))
    bounce = block_get (ov->cluster, true);
  if (bounce) {
    gap = cowmerge_read_gap;
    data = bounce->data;
  }
  for (uint32_t pos = from; r == 0 && next_read (b, pos, to, gap, &s, &e);
       pos = e)
    r = below_pread (next, data + s, e - s, start + s);
  if (r == 0) {
    if (bounce)
      block_copy (b, from, to, data + from);
    r = below_pwrite (next, data + from, to - from, start + from, flags);
  }
  if (bounce)
    block_put (bounce);
  return r;
}

/* The same for one over zeroes: nothing has to be read. */
static int
write_over_zeroes (struct overlay *ov, nbdkit_next *next, struct block *b,
                   uint32_t from, uint32_t to, uint32_t flags)
{
  uint32_t s, e;

  for (uint32_t pos = from; block_find (b, false, pos, to, &s, &e); pos = e)
    memset (b->data + s, 0, e - s);
  return below_pwrite (next, b->data + from, to - from,
                       (b->idx << ov->shift) + from, flags);
}

static int
write_down (struct overlay *ov, nbdkit_next *next, struct block *b,
            uint32_t flags)
{
  const uint32_t gap = b->zero ? ZERO_GAP : cowmerge_read_gap;
  uint32_t grain = b->zero ? 1 : ov->grain;
  uint32_t s, e;
  int r = 0;

  if (layer_whole_clusters ())
    grain = ov->cluster;
  for (uint32_t pos = 0;
       r == 0 && next_stretch (b, pos, grain, gap, &s, &e); pos = e)
    r = b->zero ? write_over_zeroes (ov, next, b, s, e, flags)
                : write_over_data (ov, next, b, s, e, flags);
  return r;
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
