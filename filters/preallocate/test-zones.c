/* SPDX-License-Identifier: BSD-3-Clause */
/* Random ranges added to and removed from a set of zones, against an array
 * of one byte for each block.
 */

#undef NDEBUG
#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zones.h"

#define BLOCK 4096
#define BLOCKS 150000           /* almost five zones */
#define BASE (UINT64_C (1) << 40)

static unsigned char model[BLOCKS];
static uint64_t seed = 1;

static uint64_t
rnd (uint64_t n)
{
  seed = seed * UINT64_C (6364136223846793005) + 1442695040888963407;
  return (seed >> 33) % n;
}

static void
compare (const struct zones *zs, uint64_t max)
{
  uint64_t from = 0, off, end, i = 0;

  while (zones_next (zs, from, max, &off, &end)) {
    assert (off >= from && end > off && end - off <= max);
    assert (off % BLOCK == 0 && end % BLOCK == 0);
    for (; i < (off - BASE) / BLOCK; ++i)
      assert (!model[i]);
    for (; i < (end - BASE) / BLOCK; ++i)
      assert (model[i]);
    from = end;
  }
  for (; i < BLOCKS; ++i)
    assert (!model[i]);
}

static void
change (struct zones *zs, uint64_t off, uint64_t end, bool add)
{
  uint64_t first, last;

  if (add) {
    first = (off + BLOCK - 1) / BLOCK;
    last = end / BLOCK;
    assert (zones_add (zs, BASE + off, BASE + end) == 0);
  }
  else {
    first = off / BLOCK;
    last = (end + BLOCK - 1) / BLOCK;
    zones_remove (zs, BASE + off, BASE + end);
  }
  for (; first < last; ++first)
    model[first] = add;
}

int
main (void)
{
  const uint64_t size = (uint64_t) BLOCKS * BLOCK;
  struct zones zs;
  uint64_t off, end;

  zones_init (&zs, BLOCK);
  assert (!zones_next (&zs, 0, size, &off, &end));
  zones_remove (&zs, 0, size);

  for (int i = 0; i < 3000; ++i) {
    const uint64_t len = 1 + rnd (rnd (4) == 0 ? size / 2 : 30 * BLOCK);

    off = rnd (size - len + 1);
    change (&zs, off, off + len, rnd (2));
    if (i % 100 == 0)
      compare (&zs, i % 200 ? size : 10 * BLOCK);
  }

  /* Runs go on over the borders of zones. */
  change (&zs, 0, size, true);
  assert (zones_next (&zs, 0, size, &off, &end));
  assert (off == BASE && end == BASE + size);

  /* Nothing is kept of what is removed. */
  change (&zs, 1, size - 1, false);
  assert (zs.len == 0);
  compare (&zs, size);
  zones_free (&zs);
  exit (EXIT_SUCCESS);
}
