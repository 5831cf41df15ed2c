/* SPDX-License-Identifier: BSD-3-Clause */
/* Random numbers for tests, the same everywhere (xorshift64*). */

#ifndef TEST_RANDOM_H
#define TEST_RANDOM_H

#include <stdint.h>

/* STATE is not 0. */
static inline uint64_t
test_random (uint64_t *state)
{
  uint64_t x = *state;

  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  *state = x;
  return x * UINT64_C (0x2545f4914f6cdd1d);
}

#endif /* TEST_RANDOM_H */
