/* SPDX-License-Identifier: BSD-3-Clause */
/* See zones.h.
 *
 * Invariant: zones are in order of their numbers, and none is empty, so
 * that memory follows what is to be given back, not the size of the disk.
 * Bits are handled in words: a zone is cleared in at most 512 steps.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "zones.h"

#define ZONE_BLOCKS 32768
#define WORD_BITS 64
#define ZONE_WORDS (ZONE_BLOCKS / WORD_BITS)

struct zone {
  uint64_t nr;                  /* of the zone: first block / ZONE_BLOCKS */
  unsigned count;               /* bits set */
  uint64_t words[ZONE_WORDS];
};

void
zones_init (struct zones *zs, uint64_t block)
{
  *zs = (struct zones) { .block = block };
}

void
zones_free (struct zones *zs)
{
  for (size_t i = 0; i < zs->len; ++i)
    free (zs->ptr[i]);
  free (zs->ptr);
  zones_init (zs, zs->block);
}

/* The index of the first zone whose number is >= NR. */
static size_t
find (const struct zones *zs, uint64_t nr)
{
  size_t low = 0, high = zs->len;

  while (low < high) {
    const size_t mid = low + (high - low) / 2;

    if (zs->ptr[mid]->nr < nr)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

static struct zone *
insert (struct zones *zs, size_t i, uint64_t nr)
{
  struct zone *z;

  if (zs->len == zs->cap) {
    const size_t cap = zs->cap ? zs->cap * 2 : 8;
    struct zone **ptr = realloc (zs->ptr, cap * sizeof *ptr);

    if (ptr == NULL)
      return NULL;
    zs->ptr = ptr;
    zs->cap = cap;
  }
  z = calloc (1, sizeof *z);
  if (z == NULL)
    return NULL;
  z->nr = nr;
  memmove (&zs->ptr[i+1], &zs->ptr[i], (zs->len - i) * sizeof *zs->ptr);
  zs->ptr[i] = z;
  zs->len++;
  return z;
}

static void
drop (struct zones *zs, size_t i)
{
  free (zs->ptr[i]);
  zs->len--;
  memmove (&zs->ptr[i], &zs->ptr[i+1], (zs->len - i) * sizeof *zs->ptr);
}

/* Set or clear bits [FIRST, LAST) of a zone. */
static void
change (struct zone *z, unsigned first, unsigned last, bool set)
{
  while (first < last) {
    const unsigned w = first / WORD_BITS, bit = first % WORD_BITS;
    const unsigned n =
      last - first < WORD_BITS - bit ? last - first : WORD_BITS - bit;
    const uint64_t mask =
      (n == WORD_BITS ? UINT64_MAX : (UINT64_C (1) << n) - 1) << bit;

    if (set) {
      z->count += __builtin_popcountll (mask & ~z->words[w]);
      z->words[w] |= mask;
    }
    else {
      z->count -= __builtin_popcountll (mask & z->words[w]);
      z->words[w] &= ~mask;
    }
    first += n;
  }
}

int
zones_add (struct zones *zs, uint64_t off, uint64_t end)
{
  uint64_t b = off / zs->block + (off % zs->block != 0);
  const uint64_t last = end / zs->block;

  while (b < last) {
    const uint64_t nr = b / ZONE_BLOCKS;
    const uint64_t stop =
      last < (nr + 1) * ZONE_BLOCKS ? last : (nr + 1) * ZONE_BLOCKS;
    const size_t i = find (zs, nr);
    struct zone *z;

    if (i < zs->len && zs->ptr[i]->nr == nr)
      z = zs->ptr[i];
    else {
      z = insert (zs, i, nr);
      if (z == NULL)
        return -ENOMEM;
    }
    change (z, b - nr * ZONE_BLOCKS, stop - nr * ZONE_BLOCKS, true);
    b = stop;
  }
  return 0;
}

void
zones_remove (struct zones *zs, uint64_t off, uint64_t end)
{
  const uint64_t first = off / zs->block;
  const uint64_t last = end / zs->block + (end % zs->block != 0);
  size_t i = find (zs, first / ZONE_BLOCKS);

  while (i < zs->len && zs->ptr[i]->nr * ZONE_BLOCKS < last) {
    struct zone *z = zs->ptr[i];
    const uint64_t start = z->nr * ZONE_BLOCKS;
    const uint64_t from = first > start ? first - start : 0;
    const uint64_t to = last - start < ZONE_BLOCKS ? last - start : ZONE_BLOCKS;

    change (z, from, to, false);
    if (z->count == 0)
      drop (zs, i);
    else
      i++;
  }
}

/* The first bit at or after BIT that is set (or clear), or ZONE_BLOCKS. */
static unsigned
next_bit (const struct zone *z, unsigned bit, bool set)
{
  while (bit < ZONE_BLOCKS) {
    uint64_t w = z->words[bit / WORD_BITS];

    if (!set)
      w = ~w;
    w >>= bit % WORD_BITS;
    if (w)
      return bit + __builtin_ctzll (w);
    bit = (bit / WORD_BITS + 1) * WORD_BITS;
  }
  return ZONE_BLOCKS;
}

bool
zones_next (const struct zones *zs, uint64_t from, uint64_t max,
            uint64_t *off, uint64_t *end)
{
  const uint64_t b = from / zs->block;
  size_t i = find (zs, b / ZONE_BLOCKS);
  unsigned first = ZONE_BLOCKS, last;
  uint64_t start = 0;

  for (; i < zs->len && first == ZONE_BLOCKS; ++i) {
    start = zs->ptr[i]->nr * ZONE_BLOCKS;
    first = next_bit (zs->ptr[i], b > start ? b - start : 0, true);
  }
  if (first == ZONE_BLOCKS)
    return false;

  last = next_bit (zs->ptr[i-1], first, false);
  *off = (start + first) * zs->block;
  *end = (start + last) * zs->block;

  /* A run may go on in the zones that follow. */
  while (last == ZONE_BLOCKS && *end - *off < max && i < zs->len &&
         zs->ptr[i]->nr * ZONE_BLOCKS * zs->block == *end) {
    last = next_bit (zs->ptr[i++], 0, false);
    *end += last * zs->block;
  }
  if (*end - *off > max)
    *end = *off + max;
  return true;
}
