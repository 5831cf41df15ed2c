/* SPDX-License-Identifier: BSD-3-Clause */
/* See deflate-write.h.  RFC 1951 has the tables and the format.
 *
 * The size of a block is known exactly before its first bit is written,
 * so writing checks nothing but the room for its 8-byte stores.
 *
 * Not here: what to match with what (deflate-match.c).
 */

#include <config.h>

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "deflate-write.h"

#define NR_LITLEN 286
#define NR_DIST 30
#define NR_PRECODE 19
#define NR_MAX NR_LITLEN
#define END_OF_BLOCK 256
#define MAX_CODE_LEN 15
#define MAX_PRECODE_LEN 7
#define STORED_MAX 65535

/* Bits: in larger blocks than this the fixed codes are never the best. */
#define FIXED_MAX 16384

enum block_type { STORED, FIXED, DYNAMIC };

/* One alphabet of a block. */
struct code {
  uint32_t freq[NR_MAX];
  uint8_t len[NR_MAX];          /* bits; 0 = unused */
  uint16_t word[NR_MAX];        /* the first bit lowest */
};

/* The lengths of both codes, run-length encoded. */
struct header {
  unsigned nr_litlen, nr_dist, nr_precode;
  struct code precode;
  unsigned nr_items;
  struct { uint8_t sym, extra; } items[NR_LITLEN + NR_DIST];
};

static const uint8_t precode_order[NR_PRECODE] = {
  16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15
};

static const uint8_t precode_extra[NR_PRECODE] = {
  [16] = 2, [17] = 3, [18] = 7
};

/* Extra bits of length symbol 257 + I, of distance symbol I. */
static unsigned
length_extra (unsigned i)
{
  return i < 8 || i == 28 ? 0 : i / 4 - 1;
}

static unsigned
dist_extra (unsigned i)
{
  return i < 4 ? 0 : i / 2 - 1;
}

/* The symbol less 257 of a match of N + 3 bytes, and what its extra bits
 * say.
 */
static unsigned
length_symbol (unsigned n, unsigned *extra)
{
  unsigned e;

  *extra = 0;
  if (n < 8)
    return n;
  if (n == 255)
    return 28;
  e = 29 - __builtin_clz (n);   /* n has e + 3 bits */
  *extra = n & ((1U << e) - 1);
  return 4 * e + (n >> e);
}

/*----------------------------------------------------------------------
 * Huffman codes.
 */

/* Sort KEYS, which are at most 25 bits of frequency above 9 of symbol, by
 * frequency below 65536.
 */
static void
sort_keys (uint32_t *keys, size_t nr)
{
  uint32_t tmp[NR_MAX];
  uint16_t pos[2][256] = { { 0 } };
  unsigned sum[2] = { 0, 0 }, i, d;

  for (i = 0; i < nr; ++i) {
    pos[0][keys[i] >> 9 & 255]++;
    pos[1][keys[i] >> 17 & 255]++;
  }
  for (i = 0; i < 256; ++i)
    for (d = 0; d < 2; ++d) {
      const unsigned n = pos[d][i];

      pos[d][i] = sum[d];
      sum[d] += n;
    }
  for (i = 0; i < nr; ++i)
    tmp[pos[0][keys[i] >> 9 & 255]++] = keys[i];
  for (i = 0; i < nr; ++i)
    keys[pos[1][tmp[i] >> 17 & 255]++] = tmp[i];
}

/* A[] is NR frequencies in rising order; afterwards the depths of their
 * leaves in the Huffman tree, in falling order.  A. Moffat and J.
 * Katajainen, In-place calculation of minimum-redundancy codes (1995).
 */
static void
tree_depths (uint32_t *a, int nr)
{
  int root = 0, leaf = 2, next, avail = 1, used = 0, depth = 0;

  a[0] += a[1];
  for (next = 1; next < nr - 1; ++next) {
    if (leaf >= nr || a[root] < a[leaf]) {
      a[next] = a[root];
      a[root++] = next;
    }
    else
      a[next] = a[leaf++];
    if (leaf >= nr || (root < next && a[root] < a[leaf])) {
      a[next] += a[root];
      a[root++] = next;
    }
    else
      a[next] += a[leaf++];
  }
  a[nr - 2] = 0;
  for (next = nr - 3; next >= 0; --next)
    a[next] = a[a[next]] + 1;
  root = nr - 2;
  next = nr - 1;
  while (avail > 0) {
    while (root >= 0 && (int) a[root] == depth) {
      used++;
      root--;
    }
    while (avail > used) {
      a[next--] = depth;
      avail--;
    }
    avail = 2 * used;
    depth++;
    used = 0;
  }
}

/* How many codes of each length, none longer than MAX, from the depths. */
static void
limit_depths (const uint32_t *depth, unsigned nr, unsigned max,
              unsigned *count)
{
  uint32_t total = 0;
  unsigned i;

  memset (count, 0, (MAX_CODE_LEN + 1) * sizeof count[0]);
  for (i = 0; i < nr; ++i)
    count[depth[i] < max ? depth[i] : max]++;
  for (i = max; i > 0; --i)
    total += count[i] << (max - i);
  /* Too many short codes now: lengthen one, and pair a longest with it. */
  while (total > 1U << max) {
    count[max]--;
    for (i = max - 1; count[i] == 0; --i)
      ;
    count[i]--;
    count[i + 1] += 2;
    total--;
  }
}

static uint16_t
reverse (unsigned word, unsigned len)
{
  unsigned r = 0, i;

  for (i = 0; i < len; ++i)
    r |= (word >> i & 1) << (len - 1 - i);
  return r;
}

/* Words out of lengths. */
static void
assign_words (struct code *c, unsigned nr, const unsigned *count)
{
  unsigned next[MAX_CODE_LEN + 2], i;

  next[0] = next[1] = 0;
  for (i = 1; i <= MAX_CODE_LEN; ++i)
    next[i + 1] = (next[i] + count[i]) << 1;
  for (i = 0; i < nr; ++i)
    if (c->len[i])
      c->word[i] = reverse (next[c->len[i]]++, c->len[i]);
}

/* The best code of at most MAX bits for the frequencies of C. */
static void
build_code (struct code *c, unsigned nr, unsigned max)
{
  uint32_t keys[NR_MAX], depth[NR_MAX];
  unsigned count[MAX_CODE_LEN + 1], used = 0, i, len;

  for (i = 0; i < nr; ++i) {
    c->len[i] = 0;
    if (c->freq[i])
      keys[used++] = c->freq[i] << 9 | i;
  }
  /* A code of one word is legal but for lengths; decoders differ in how
   * they like it, so there are always two.
   */
  for (i = 0; used < 2; ++i)
    if (c->freq[i] == 0)
      keys[used++] = 1U << 9 | i;

  sort_keys (keys, used);
  for (i = 0; i < used; ++i)
    depth[i] = keys[i] >> 9;
  tree_depths (depth, used);
  limit_depths (depth, used, max, count);
  i = 0;
  for (len = max; len > 0; --len) {
    unsigned n;

    for (n = count[len]; n > 0; --n)
      c->len[keys[i++] & 511] = len;
  }
  assign_words (c, nr, count);
}

/* RFC 1951 section 3.2.6. */
static void
fixed_codes (struct code *litlen, struct code *dist)
{
  static const unsigned count[MAX_CODE_LEN + 1] = {
    [7] = 24, [8] = 152, [9] = 112
  }, dist_count[MAX_CODE_LEN + 1] = { [5] = 32 };
  unsigned i;

  for (i = 0; i < NR_LITLEN; ++i)
    litlen->len[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
  for (i = 0; i < NR_DIST; ++i)
    dist->len[i] = 5;
  assign_words (litlen, NR_LITLEN, count);
  assign_words (dist, NR_DIST, dist_count);
}

/*----------------------------------------------------------------------
 * What a block would look like.
 */

static void
count_symbols (const struct deflate_write_block *block,
               struct code *litlen, struct code *dist)
{
  unsigned extra, i;

  memset (litlen->freq, 0, sizeof litlen->freq);
  memcpy (litlen->freq, block->literals, sizeof block->literals);
  memcpy (dist->freq, block->dists, sizeof block->dists);
  for (i = 0; i < 256; ++i)
    litlen->freq[257 + length_symbol (i, &extra)] += block->lengths[i];
  litlen->freq[END_OF_BLOCK] = 1;
}

static uint64_t
tokens_bits (const struct code *litlen, const struct code *dist)
{
  uint64_t bits = 0;
  unsigned i;

  for (i = 0; i < NR_LITLEN; ++i)
    bits += (uint64_t) litlen->freq[i] *
      (litlen->len[i] + (i > END_OF_BLOCK ? length_extra (i - 257) : 0));
  for (i = 0; i < NR_DIST; ++i)
    bits += (uint64_t) dist->freq[i] * (dist->len[i] + dist_extra (i));
  return bits;
}

static unsigned
used_symbols (const struct code *c, unsigned nr, unsigned min)
{
  while (nr > min && c->len[nr - 1] == 0)
    nr--;
  return nr;
}

static void
add_item (struct header *h, unsigned sym, unsigned extra)
{
  h->items[h->nr_items].sym = sym;
  h->items[h->nr_items++].extra = extra;
  h->precode.freq[sym]++;
}

/* N times the length LEN. */
static void
add_run (struct header *h, unsigned len, unsigned n)
{
  unsigned max;

  if (len != 0) {
    add_item (h, len, 0);
    n--;
  }
  while (n >= 3) {
    max = len ? 6 : n > 10 ? 138 : 10;
    if (max > n)
      max = n;
    if (len)
      add_item (h, 16, max - 3);
    else if (max <= 10)
      add_item (h, 17, max - 3);
    else
      add_item (h, 18, max - 11);
    n -= max;
  }
  while (n-- > 0)
    add_item (h, len, 0);
}

/* Returns its length in bits. */
static uint64_t
make_header (struct header *h, const struct code *litlen,
             const struct code *dist)
{
  uint8_t lens[NR_LITLEN + NR_DIST];
  unsigned i, j, nr;
  uint64_t bits;

  h->nr_litlen = used_symbols (litlen, NR_LITLEN, 257);
  h->nr_dist = used_symbols (dist, NR_DIST, 1);
  memcpy (lens, litlen->len, h->nr_litlen);
  memcpy (lens + h->nr_litlen, dist->len, h->nr_dist);
  nr = h->nr_litlen + h->nr_dist;

  h->nr_items = 0;
  memset (h->precode.freq, 0, sizeof h->precode.freq);
  for (i = 0; i < nr; i = j) {
    for (j = i + 1; j < nr && lens[j] == lens[i]; ++j)
      ;
    add_run (h, lens[i], j - i);
  }
  build_code (&h->precode, NR_PRECODE, MAX_PRECODE_LEN);
  h->nr_precode = NR_PRECODE;
  while (h->nr_precode > 4 &&
         h->precode.len[precode_order[h->nr_precode - 1]] == 0)
    h->nr_precode--;

  bits = 5 + 5 + 4 + 3 * h->nr_precode;
  for (i = 0; i < NR_PRECODE; ++i)
    bits += h->precode.freq[i] * (h->precode.len[i] + precode_extra[i]);
  return bits;
}

/*----------------------------------------------------------------------
 * Bits.
 */

static inline void
put (struct deflate_write *w, uint64_t bits, unsigned nr)
{
  w->bits |= bits << w->nr_bits;
  w->nr_bits += nr;
}

/* Afterwards there is room for 56 bits.  What is stored beyond the bits
 * that are due is overwritten later.
 */
static inline void
drain (struct deflate_write *w)
{
  if (w->end - w->next >= 8) {
    const uint64_t le = htole64 (w->bits);

    memcpy (w->next, &le, 8);
    w->next += w->nr_bits >> 3;
    w->bits >>= w->nr_bits & ~7U;
    w->nr_bits &= 7;
    return;
  }
  while (w->nr_bits >= 8) {
    *w->next++ = w->bits;
    w->bits >>= 8;
    w->nr_bits -= 8;
  }
}

static void
put_header (struct deflate_write *w, const struct header *h)
{
  unsigned i;

  put (w, h->nr_litlen - 257, 5);
  put (w, h->nr_dist - 1, 5);
  put (w, h->nr_precode - 4, 4);
  for (i = 0; i < h->nr_precode; ++i) {
    drain (w);
    put (w, h->precode.len[precode_order[i]], 3);
  }
  for (i = 0; i < h->nr_items; ++i) {
    const unsigned sym = h->items[i].sym;

    drain (w);
    put (w, h->precode.word[sym], h->precode.len[sym]);
    put (w, h->items[i].extra, precode_extra[sym]);
  }
  drain (w);
}

/* A word and its length, in one load. */
static inline void
put_packed (struct deflate_write *w, uint32_t packed)
{
  put (w, packed >> 8, packed & 255);
}

static inline void
put_dist (struct deflate_write *w, const struct code *code,
          const struct deflate_write_seq *seq)
{
  const unsigned nr = dist_extra (seq->dist_sym);

  put (w, code->word[seq->dist_sym], code->len[seq->dist_sym]);
  put (w, (seq->dist - 1) & ((1U << nr) - 1), nr);
}

/* Words for all literals and, with their extra bits, lengths less 3. */
struct words {
  uint32_t literals[256], lengths[256];
};

static void
pack_words (struct words *words, const struct code *litlen)
{
  unsigned i, extra;

  for (i = 0; i < 256; ++i) {
    const unsigned sym = length_symbol (i, &extra);
    const unsigned n = litlen->len[257 + sym];

    words->literals[i] = (uint32_t) litlen->word[i] << 8 | litlen->len[i];
    words->lengths[i] = (litlen->word[257 + sym] | extra << n) << 8 |
      (n + length_extra (sym));
  }
}

/* Between two drains are at most 10 + 3 * 15 bits of literals, or 7 bits,
 * 2 * 15 of literals and 20 of a length, or 7 and 28 of a distance.
 */
static void
put_tokens (struct deflate_write *out,
            const struct deflate_write_block *block, const uint8_t *plain,
            const struct code *litlen, const struct code *dist)
{
  struct deflate_write w = *out;
  struct words words;
  size_t i;

  pack_words (&words, litlen);
  for (i = 0; i < block->nr; ++i) {
    const struct deflate_write_seq *seq = &block->seqs[i];
    unsigned n = seq->literals;

    for (; n >= 3; n -= 3) {
      put_packed (&w, words.literals[*plain++]);
      put_packed (&w, words.literals[*plain++]);
      put_packed (&w, words.literals[*plain++]);
      drain (&w);
    }
    if (seq->len) {
      /* Without branches, as nobody could predict them.  The match has
       * bytes that can be read instead.
       */
      put_packed (&w, words.literals[plain[0]] * (n > 0));
      put_packed (&w, words.literals[plain[1]] * (n > 1));
      put_packed (&w, words.lengths[seq->len - DEFLATE_WRITE_MIN_MATCH]);
      drain (&w);
      put_dist (&w, dist, seq);
      drain (&w);
      plain += n + seq->len;
    }
    else {
      for (; n > 0; --n)
        put_packed (&w, words.literals[*plain++]);
      drain (&w);
    }
  }
  put (&w, litlen->word[END_OF_BLOCK], litlen->len[END_OF_BLOCK]);
  drain (&w);
  *out = w;
}

static void
put_stored (struct deflate_write *w, const uint8_t *plain, size_t len)
{
  w->nr_bits = (w->nr_bits + 7) & ~7U;
  drain (w);
  put (w, len, 16);
  put (w, ~len & 0xffff, 16);
  drain (w);
  memcpy (w->next, plain, len);
  w->next += len;
}

/* Both codes of a block, and what it takes in bits with them. */
struct codes {
  struct code litlen, dist;
  uint64_t bits;
};

static void
make_dynamic (const struct deflate_write_block *block, struct codes *c,
              struct header *h)
{
  count_symbols (block, &c->litlen, &c->dist);
  build_code (&c->litlen, NR_LITLEN, MAX_CODE_LEN);
  build_code (&c->dist, NR_DIST, MAX_CODE_LEN);
  c->bits = 3 + make_header (h, &c->litlen, &c->dist) +
    tokens_bits (&c->litlen, &c->dist);
}

static void
make_fixed (const struct deflate_write_block *block, struct codes *c)
{
  count_symbols (block, &c->litlen, &c->dist);
  fixed_codes (&c->litlen, &c->dist);
  c->bits = 3 + tokens_bits (&c->litlen, &c->dist);
}

bool
deflate_write_block (struct deflate_write *w,
                     const struct deflate_write_block *block,
                     const uint8_t *plain, size_t len, bool last)
{
  const uint64_t room = (uint64_t) (w->end - w->next) * 8 - w->nr_bits;
  struct codes dynamic, fixed, *best = &dynamic;
  struct header header;
  uint64_t stored = UINT64_MAX;

  make_dynamic (block, &dynamic, &header);
  if (dynamic.bits < FIXED_MAX) {
    make_fixed (block, &fixed);
    if (fixed.bits <= dynamic.bits)
      best = &fixed;
  }
  if (len <= STORED_MAX)
    stored = 3 + (-(w->nr_bits + 3) & 7) + 32 + 8 * (uint64_t) len;
  if ((stored < best->bits ? stored : best->bits) > room)
    return false;

  put (w, last, 1);
  if (stored < best->bits) {
    put (w, STORED, 2);
    put_stored (w, plain, len);
  }
  else if (best == &fixed) {
    put (w, FIXED, 2);
    put_tokens (w, block, plain, &fixed.litlen, &fixed.dist);
  }
  else {
    put (w, DYNAMIC, 2);
    put_header (w, &header);
    put_tokens (w, block, plain, &dynamic.litlen, &dynamic.dist);
  }
  if (last) {
    w->nr_bits = (w->nr_bits + 7) & ~7U;
    drain (w);
  }
  return true;
}
