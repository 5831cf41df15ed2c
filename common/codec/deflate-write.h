/* SPDX-License-Identifier: BSD-3-Clause */
/* Deflate blocks (RFC 1951) out of literals and matches that somebody
 * else has found: Huffman codes, block headers, bits.
 *
 * No memory is allocated, and no state outlives a block but the bits that
 * do not fill a byte yet.
 */

#ifndef DEFLATE_WRITE_H
#define DEFLATE_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEFLATE_WRITE_MIN_MATCH 3

/* Literals and matches of one block.  More make one code fit all of the
 * data less well, fewer make more headers.
 */
#define DEFLATE_WRITE_SYMBOLS 20000

/* LITERALS bytes as they are, then a match of LEN bytes (0 = none) that
 * begins DIST bytes before, which has the symbol DIST_SYM.
 */
struct deflate_write_seq {
  uint16_t literals, len, dist, dist_sym;
};

/* The sequences of one block, and how often each literal, length (less 3)
 * and distance symbol is in them.  Whoever adds a sequence counts.  Above
 * DEFLATE_WRITE_SYMBOLS there is room for the last bytes of a cluster.
 */
struct deflate_write_block {
  size_t nr;
  uint32_t literals[256], lengths[256], dists[30];
  struct deflate_write_seq seqs[DEFLATE_WRITE_SYMBOLS + 1];
};

/* Where the bits go.  Set NEXT and END, and zero the rest. */
struct deflate_write {
  uint8_t *next, *end;
  uint64_t bits;                /* not written yet, the first one lowest */
  unsigned nr_bits;             /* less than 8 between calls */
};

/* The symbol of distance DIST, 1 to 32768. */
static inline unsigned
deflate_write_dist_symbol (unsigned dist)
{
  const unsigned n = dist - 1;
  unsigned extra;

  if (n < 4)
    return n;
  extra = 30 - __builtin_clz (n);
  return 2 * extra + (n >> extra);
}

/* Append one block, of the cheapest kind.  It stands for the LEN bytes of
 * PLAIN.  After the last one the bits are filled up to a byte.  False: it
 * does not fit; what was written is undefined then.
 */
extern bool deflate_write_block (struct deflate_write *w,
                                 const struct deflate_write_block *block,
                                 const uint8_t *plain, size_t len, bool last)
  __attribute__ ((__warn_unused_result__));

#endif /* DEFLATE_WRITE_H */
