/* SPDX-License-Identifier: BSD-3-Clause */
/* Random numbers that are the same everywhere (splitmix64). */

#ifndef CRASH_RANDOM_H
#define CRASH_RANDOM_H

#include <stdint.h>

static inline uint64_t
crash_random_next (uint64_t *seed)
{
  uint64_t z = (*seed += UINT64_C (0x9e3779b97f4a7c15));

  z = (z ^ (z >> 30)) * UINT64_C (0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C (0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static inline void
crash_random_bytes (uint64_t *seed, uint8_t *p, uint64_t len)
{
  uint64_t i, v = 0;

  for (i = 0; i < len; ++i) {
    if (i % 8 == 0)
      v = crash_random_next (seed);
    p[i] = v >> (i % 8 * 8);
  }
}

#endif /* CRASH_RANDOM_H */
