/* SPDX-License-Identifier: BSD-3-Clause */
/* Walks over the blocks of a disk, and a pattern for their content.
 *
 * A random walk is a permutation of the blocks: allocating writes must
 * meet each block once, or else the later ones are overwrites and
 * something else is measured.  The permutation is a Feistel network over
 * the next power of four, cycle-walked into the range, so that it needs
 * no memory and any connection can compute any position.
 */

#include <string.h>

#include "plan.h"

static inline uint64_t
mix (uint64_t x)
{
  x ^= x >> 32;
  x *= UINT64_C (0xd6e8feb86659fd93);
  x ^= x >> 32;
  x *= UINT64_C (0xd6e8feb86659fd93);
  x ^= x >> 32;
  return x;
}

static uint64_t
permute (uint64_t x, uint64_t nr, uint64_t seed)
{
  const unsigned bits = nr > 1 ? 64 - __builtin_clzll (nr - 1) : 1;
  const unsigned half = (bits + 1) / 2;
  const uint64_t mask = (UINT64_C (1) << half) - 1;

  do {
    uint64_t left = x >> half, right = x & mask;

    for (unsigned round = 0; round < 4; ++round) {
      uint64_t t = left ^ (mix (right + seed + ((uint64_t) round << 56))
                           & mask);
      left = right;
      right = t;
    }
    x = left << half | right;
  } while (x >= nr);
  return x;
}

uint64_t
plan_offset (const struct plan *plan, uint64_t idx)
{
  uint64_t pass = idx / plan->nr_blocks, block = idx % plan->nr_blocks;

  if (plan->random)
    block = permute (block, plan->nr_blocks, mix (plan->seed + pass));
  return plan->start + block * plan->block_size;
}

static inline uint64_t
word_at (uint64_t seed, uint64_t offset)
{
  return (offset + seed + 1) * UINT64_C (0x9e3779b97f4a7c15);
}

void
plan_fill (uint64_t seed, uint64_t offset, void *buf, size_t len)
{
  char *p = buf;

  for (size_t i = 0; i + 8 <= len; i += 8) {
    uint64_t w = word_at (seed, offset + i);
    memcpy (p + i, &w, 8);
  }
}

bool
plan_matches (uint64_t seed, uint64_t offset, const void *buf, size_t len)
{
  const char *p = buf;

  for (size_t i = 0; i + 8 <= len; i += 8) {
    uint64_t w = word_at (seed, offset + i);
    if (memcmp (p + i, &w, 8) != 0)
      return false;
  }
  return true;
}
