/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocks and the pool they come from.
 *
 * What was written is kept as one bit for each byte, not as a list of
 * pieces: so a block has the same small cost (an eighth of its size)
 * whatever clients do, and merging, overlap and completeness need no case
 * distinction.  A count of the set bits tells a complete block.
 *
 * Invariant: the memory of all blocks, in use or free, with their bits and
 * the structs themselves, is at most the limit.  Free blocks are kept,
 * since getting the pages of a large block from the system costs as much
 * as writing it.  Blocks of another size give way when room is needed.
 *
 * Locks: one for the pool, a leaf, never held across I/O.  The content of
 * a block is protected as block.h says.
 *
 * Does not wait for memory: what to do when there is none is known
 * elsewhere (merge.c).
 */

#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include "scope-lock.h"

#include "block.h"

/* Blocks that are kept for the short use as bounce buffers: an eighth of
 * those that fit, and no more than this.
 */
#define MAX_BOUNCE 16

static struct {
  pthread_mutex_t lock;
  uint64_t max, used;           /* bytes */
  uint64_t idle;                /* bytes of USED in the free list */
  /* By block.lru, the last freed last; [1] were bounce buffers.  These are
   * kept apart, since they are few and what they had is still in the CPU's
   * cache.
   */
  struct list free[2];
} pool = {
  .lock = PTHREAD_MUTEX_INITIALIZER,
  .free = {
    { .next = &pool.free[0], .prev = &pool.free[0] },
    { .next = &pool.free[1], .prev = &pool.free[1] },
  },
};

static size_t
nr_words (uint32_t size)
{
  return ((size_t) size + 63) / 64;
}

uint64_t
block_cost (uint32_t size)
{
  return sizeof (struct block) + nr_words (size) * sizeof (uint64_t) + size;
}

void
block_pool_init (uint64_t max)
{
  SCOPE_LOCK (&pool.lock);
  pool.max = max;
}

bool
block_pool_above (unsigned level)
{
  SCOPE_LOCK (&pool.lock);
  return pool.used - pool.idle > pool.max / 16 * level;
}

static void
destroy (struct block *b)
{
  free (b->data);
  free (b->bits);
  free (b);
}

static struct block *
create (uint32_t size)
{
  struct block *b = calloc (1, sizeof *b);

  if (b == NULL)
    return NULL;
  b->size = size;
  b->data = malloc (size);
  b->bits = malloc (nr_words (size) * sizeof (uint64_t));
  if (b->data == NULL || b->bits == NULL) {
    destroy (b);
    return NULL;
  }
  return b;
}

static void
discard_free_locked (struct block *b)
{
  list_remove (&b->lru);
  pool.used -= block_cost (b->size);
  pool.idle -= block_cost (b->size);
  destroy (b);
}

/* Give back free blocks until NEEDED bytes fit in LIMIT. */
static void
shrink_locked (uint64_t needed, uint64_t limit)
{
  for (int i = 0; i <= 1; ++i)
    while (pool.used + needed > limit && !list_empty (&pool.free[i]))
      discard_free_locked (list_entry (pool.free[i].next, struct block, lru));
}

void
block_pool_drain (void)
{
  SCOPE_LOCK (&pool.lock);
  shrink_locked (1, pool.used - pool.idle);
}

/* What of the pool a block of this size must leave alone. */
static uint64_t
reserve (uint64_t cost, bool bounce)
{
  uint64_t nr = pool.max / cost / 8;

  if (bounce)
    return 0;
  return (nr < MAX_BOUNCE ? nr : MAX_BOUNCE) * cost;
}

static struct block *
get_locked (uint32_t size, bool bounce)
{
  const uint64_t cost = block_cost (size);
  const uint64_t limit = pool.max - reserve (cost, bounce);
  struct list *list = &pool.free[bounce];
  struct block *b;

  if (pool.used - pool.idle + cost > limit)
    return NULL;

  if (!list_empty (list)) {
    b = list_entry (list->prev, struct block, lru);
    if (b->size == size) {
      list_remove (&b->lru);
      pool.idle -= cost;
      return b;
    }
  }
  shrink_locked (cost, limit);

  b = create (size);
  if (b != NULL)
    pool.used += cost;
  return b;
}

struct block *
block_get (uint32_t size, bool bounce)
{
  struct block *b;

  {
    SCOPE_LOCK (&pool.lock);
    b = get_locked (size, bounce);
  }
  if (b == NULL)
    return NULL;

  b->hash_next = NULL;
  list_init (&b->lru);
  list_init (&b->age);
  b->idx = b->seq = b->failed = 0;
  b->born = b->retry = 0;
  b->pins = 0;
  b->indexed = b->zero = false;
  b->bounce = bounce;
  b->len = size;
  b->dirty = 0;
  b->low = UINT32_MAX;
  b->high = 0;
  if (!bounce)
    memset (b->bits, 0, nr_words (size) * sizeof (uint64_t));
  return b;
}

void
block_put (struct block *b)
{
  SCOPE_LOCK (&pool.lock);
  list_append (&pool.free[b->bounce], &b->lru);
  pool.idle += block_cost (b->size);
}

/* The bits of the word W that lie in FROM..TO-1; some do. */
static uint64_t
mask (size_t w, uint32_t from, uint32_t to)
{
  uint64_t m = ~UINT64_C (0);

  if (w == from / 64)
    m &= ~UINT64_C (0) << (from % 64);
  if (w == (to - 1) / 64)
    m &= ~UINT64_C (0) >> (63 - (to - 1) % 64);
  return m;
}

void
block_fill (struct block *b, const void *buf, uint32_t count, uint32_t off)
{
  const uint32_t to = off + count;

  if (count == 0)
    return;
  if (buf)
    memcpy (b->data + off, buf, count);
  else
    memset (b->data + off, 0, count);

  if (off < b->low)
    b->low = off;
  if (to > b->high)
    b->high = to;

  for (size_t w = off / 64; w <= (to - 1) / 64; ++w) {
    uint64_t m = mask (w, off, to);

    b->dirty += __builtin_popcountll (m & ~b->bits[w]);
    b->bits[w] |= m;
  }
}

/* The first byte in FROM..TO-1 whose bit is DIRTY, or TO. */
static uint32_t
find_first (const struct block *b, bool dirty, uint32_t from, uint32_t to)
{
  uint32_t end = to;

  if (dirty) {
    /* There is none outside. */
    if (from < b->low)
      from = b->low;
    if (end > b->high)
      end = b->high;
  }
  if (from >= end)
    return to;
  for (size_t w = from / 64; w <= (end - 1) / 64; ++w) {
    uint64_t v = (dirty ? b->bits[w] : ~b->bits[w]) & mask (w, from, end);

    if (v)
      return w * 64 + __builtin_ctzll (v);
  }
  return to;
}

bool
block_find (const struct block *b, bool dirty, uint32_t from, uint32_t to,
            uint32_t *start, uint32_t *end)
{
  *start = find_first (b, dirty, from, to);
  *end = find_first (b, !dirty, *start, to);
  return *start < to;
}

void
block_copy (const struct block *b, uint32_t from, uint32_t to, void *buf)
{
  uint32_t s, e;

  for (uint32_t pos = from; block_find (b, true, pos, to, &s, &e); pos = e)
    memcpy ((uint8_t *) buf + (s - from), b->data + s, e - s);
}
