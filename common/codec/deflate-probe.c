/* SPDX-License-Identifier: BSD-3-Clause */
/* See deflate-probe.h.  Samples, so some repetitions of less than a
 * kilobyte in what else is noise stay unseen.
 */

#include <config.h>

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "deflate-probe.h"

#define MIN_LEN 16384

/*----------------------------------------------------------------------
 * Frequencies.  Deflate gains if some bytes are more frequent than others.
 * This is measured by the number of pairs of equal bytes in a sample.
 *
 * Of SAMPLE equally likely bytes it is 127.5 on average, with a standard
 * deviation of 11.3; text has about 2000, machine code 1000.  A code that
 * saves one percent needs 140 in all samples, or 200 in some.
 */

#define CHUNK 4096              /* one sample from each */
#define SAMPLE 256
#define GROUPS 4                /* of neighbouring bytes in a sample */
#define MAX_PAIRS 200           /* 6 standard deviations more */
#define MEAN_PAIRS 140          /* of 16 samples or more: 4 of them more */

static unsigned
equal_pairs (const uint8_t *chunk)
{
  uint8_t count[256] = { 0 };
  unsigned pairs = 0, i, j;

  for (i = 0; i < GROUPS; ++i)
    for (j = 0; j < SAMPLE / GROUPS; ++j)
      pairs += count[chunk[i * (CHUNK / GROUPS) + j]]++;
  return pairs;
}

static bool
is_flat (const uint8_t *in, size_t len)
{
  size_t i, sum = 0;

  for (i = 0; i + CHUNK <= len; i += CHUNK) {
    const unsigned pairs = equal_pairs (in + i);

    if (pairs > MAX_PAIRS)
      return false;
    sum += pairs;
  }
  return sum <= len / CHUNK * MEAN_PAIRS;
}

/*----------------------------------------------------------------------
 * Repetitions.  Each STRIDEth position is entered into a table.  STRIDE
 * positions in a row, once in each STEP, are looked up: whatever repeats
 * STEP + 2 * STRIDE bytes is found.
 */

#define STRIDE 32
#define STEP 1024
#define TABLE_BITS 11           /* twice the positions in a large window */

static inline uint32_t
load32 (const uint8_t *p)
{
  uint32_t v;

  memcpy (&v, p, sizeof v);
  return le32toh (v);
}

static inline unsigned
hash (uint32_t v)
{
  return v * 0x9e3779b1U >> (32 - TABLE_BITS);
}

static bool
has_repetitions (const uint8_t *in, size_t len, unsigned window)
{
  uint32_t table[1 << TABLE_BITS];
  size_t i, j;

  memset (table, 0, sizeof table);
  for (i = 0; i + STEP <= len; i += STEP) {
    for (j = i; j < i + STRIDE; ++j) {
      const uint32_t v = load32 (in + j);
      const size_t earlier = table[hash (v)];

      if (j - earlier - 1 < window && load32 (in + earlier) == v)
        return true;
    }
    for (j = i; j < i + STEP; j += STRIDE)
      table[hash (load32 (in + j))] = j;
  }
  return false;
}

bool
deflate_probe_is_noise (const uint8_t *in, size_t len, unsigned window)
{
  return len >= MIN_LEN && is_flat (in, len) &&
    !has_repetitions (in, len, window);
}
