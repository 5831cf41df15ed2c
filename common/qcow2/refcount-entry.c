/* SPDX-License-Identifier: BSD-3-Clause */
/* Entries of a refcount block, 1 to 64 bits wide.
 *
 * The searches look at 64 bits at a time: whether an entry is zero does not
 * depend on the byte order.  P is followed by whole words.
 *
 * Locks: none; pure functions.
 */

#include <config.h>

#include <string.h>

#include "ondisk.h"
#include "refcount.h"

uint64_t
refcount_entry_get (const uint8_t *p, uint64_t i, unsigned order)
{
  unsigned per_byte_bits;

  switch (order) {
  case 3: return p[i];
  case 4: return get_be16 (p + i * 2);
  case 5: return get_be32 (p + i * 4);
  case 6: return get_be64 (p + i * 8);
  default:
    per_byte_bits = 3 - order;
    return p[i >> per_byte_bits] >>
      ((i & ((1U << per_byte_bits) - 1)) << order) &
      ((1U << (1U << order)) - 1);
  }
}

void
refcount_entry_set (uint8_t *p, uint64_t i, unsigned order, uint64_t value)
{
  unsigned per_byte_bits, shift, mask;

  switch (order) {
  case 3: p[i] = value; break;
  case 4: put_be16 (p + i * 2, value); break;
  case 5: put_be32 (p + i * 4, value); break;
  case 6: put_be64 (p + i * 8, value); break;
  default:
    per_byte_bits = 3 - order;
    shift = (i & ((1U << per_byte_bits) - 1)) << order;
    mask = ((1U << (1U << order)) - 1) << shift;
    p[i >> per_byte_bits] =
      (p[i >> per_byte_bits] & ~mask) | ((value << shift) & mask);
  }
}

static uint64_t
load_word (const uint8_t *p, uint64_t word)
{
  uint64_t v;
  memcpy (&v, p + word * 8, sizeof v);
  return v;
}

/* One bit in the lowest place of each entry of a word. */
static uint64_t
lowest_bits (unsigned order)
{
  return order == 6 ? 1 : UINT64_MAX / ((UINT64_C (1) << (1U << order)) - 1);
}

uint64_t
refcount_entry_find_zero (const uint8_t *p, uint64_t i, uint64_t end,
                          unsigned order)
{
  const unsigned per_word_bits = 6 - order;
  const uint64_t per_word = UINT64_C (1) << per_word_bits;
  const uint64_t low = lowest_bits (order);
  const uint64_t high = low << ((1U << order) - 1);
  uint64_t v;

  while (i < end) {
    if ((i & (per_word - 1)) == 0 && end - i >= per_word) {
      v = load_word (p, i >> per_word_bits);
      if (((v - low) & ~v & high) == 0) { /* no entry is zero */
        i += per_word;
        continue;
      }
    }
    if (refcount_entry_get (p, i, order) == 0)
      return i;
    ++i;
  }
  return end;
}

uint64_t
refcount_entry_find_nonzero (const uint8_t *p, uint64_t i, uint64_t end,
                             unsigned order)
{
  const unsigned per_word_bits = 6 - order;
  const uint64_t per_word = UINT64_C (1) << per_word_bits;

  while (i < end) {
    if ((i & (per_word - 1)) == 0 && end - i >= per_word &&
        load_word (p, i >> per_word_bits) == 0) {
      i += per_word;
      continue;
    }
    if (refcount_entry_get (p, i, order) != 0)
      return i;
    ++i;
  }
  return end;
}

uint64_t
refcount_entry_find_last_nonzero (const uint8_t *p, uint64_t end,
                                  unsigned order)
{
  const unsigned per_word_bits = 6 - order;
  const uint64_t per_word = UINT64_C (1) << per_word_bits;

  while (end > 0) {
    if ((end & (per_word - 1)) == 0 &&
        load_word (p, (end >> per_word_bits) - 1) == 0) {
      end -= per_word;
      continue;
    }
    if (refcount_entry_get (p, end - 1, order) != 0)
      return end;
    --end;
  }
  return 0;
}
