/* SPDX-License-Identifier: BSD-3-Clause */
/* Random pieces written to a block, against an array of bytes; and the
 * limit of the pool.
 */

#undef NDEBUG
#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"

#define SIZE 4096

static uint8_t data[SIZE];
static bool dirty[SIZE];
static uint64_t seed = 1;

static uint64_t
rnd (uint64_t n)
{
  seed = seed * UINT64_C (6364136223846793005) + 1442695040888963407;
  return (seed >> 33) % n;
}

/* All questions from FROM to TO have the answers of the arrays. */
static void
compare (const struct block *b, uint32_t from, uint32_t to)
{
  uint8_t got[SIZE];
  uint32_t s, e;

  for (int want = 0; want <= 1; ++want) {
    uint32_t pos = from;

    while (block_find (b, want, pos, to, &s, &e)) {
      assert (s >= pos && e > s && e <= to);
      for (; pos < s; ++pos)
        assert (dirty[pos] != want);
      for (; pos < e; ++pos)
        assert (dirty[pos] == want);
      assert (e == to || dirty[e] != want);
    }
    for (; pos < to; ++pos)
      assert (dirty[pos] != want);
  }

  memset (got, 0xee, sizeof got);
  block_copy (b, from, to, got + from);
  for (uint32_t i = 0; i < SIZE; ++i)
    if (i >= from && i < to && dirty[i])
      assert (got[i] == data[i]);
    else
      assert (got[i] == 0xee);
}

static void
test_content (void)
{
  struct block *b = block_get (SIZE, false);
  uint8_t piece[SIZE];
  uint32_t off, n, count = 0;

  assert (b && b->dirty == 0 && b->len == SIZE);
  memset (dirty, 0, sizeof dirty);
  compare (b, 0, SIZE);
  while (!block_complete (b)) {
    off = rnd (SIZE);
    n = 1 + rnd (rnd (4) ? 40 : 400);
    if (n > SIZE - off)
      n = SIZE - off;
    for (uint32_t i = 0; i < n; ++i)
      piece[i] = rnd (256);
    if (rnd (5) == 0) {
      memset (piece, 0, n);
      block_fill (b, NULL, n, off);
    }
    else
      block_fill (b, piece, n, off);
    memcpy (data + off, piece, n);
    for (uint32_t i = off; i < off + n; ++i) {
      count += !dirty[i];
      dirty[i] = true;
    }
    assert (b->dirty == count);
    off = rnd (SIZE);
    compare (b, off, off + 1 + rnd (SIZE - off));
  }
  compare (b, 0, SIZE);
  block_put (b);
}

static void
test_pool (void)
{
  const uint64_t cost = block_cost (SIZE);
  struct block *blocks[40], *b;
  unsigned n;

  /* Room for 32, of which 4 are kept for bounce buffers. */
  block_pool_drain ();
  block_pool_init (32 * cost + cost / 2);
  for (n = 0; (b = block_get (SIZE, false)) != NULL; ++n) {
    assert (n < 28);
    blocks[n] = b;
    assert (block_pool_above (POOL_HIGH) == (n >= 24));
  }
  assert (n == 28);
  for (; (b = block_get (SIZE, true)) != NULL; ++n) {
    assert (n < 32);
    blocks[n] = b;
  }
  assert (n == 32);

  /* One returned may be had again; one of another size only if it fits. */
  block_put (blocks[--n]);
  block_put (blocks[--n]);
  assert (block_get (3 * SIZE, true) == NULL);
  b = block_get (2 * SIZE - 1024, true);
  assert (b && b->size == 2 * SIZE - 1024);
  block_put (b);
  blocks[n] = block_get (SIZE, true);
  assert (blocks[n]);
  n++;
  while (n > 0)
    block_put (blocks[--n]);
  assert (!block_pool_above (0));
  block_pool_drain ();
  assert (block_get (64 * SIZE, false) == NULL);
}

int
main (void)
{
  block_pool_init (1024 * 1024);
  for (unsigned i = 0; i < 50; ++i)
    test_content ();
  test_pool ();
  return EXIT_SUCCESS;
}
