/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds matches; deflate-write.c makes bits of them.
 *
 * Every position is entered into two hash tables, of its next 4 and of its
 * next 3 bytes.  Earlier positions with the same hash of 4 bytes are
 * chained.  Of a position that has not been covered by a match, the
 * longest match is taken at once (greedy): trying the next position too
 * (lazy) saves one percent and takes half as long again.
 *
 * The loop over positions without a match decides by one look at each
 * table, for what costs time here is mispredicted branches.
 *
 * Tables are cleared for each cluster, and what they say is only believed
 * if the bytes agree, so an outdated or aliased entry does no harm.
 *
 * Invariant: all positions before the present one are in the tables,
 * except the last MIN_LEFT of the cluster.  So links of the chains that
 * are followed were all made in this cluster.
 */

#include <config.h>

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "deflate-match.h"
#include "deflate-write.h"

#define MAX_WINDOW 32768
#define MAX_HASH_BITS 14        /* for a large window */
#define HASH_BITS 13            /* for a small one: level 1 cache */
#define HASH3_BITS 11

/* A match of 3 bytes takes more bits than they do if it is farther. */
#define MAX_DIST3 1024

#define MAX_MATCH 258
#define NICE_MATCH 64           /* long enough to stop looking */

/* No matches begin in the last bytes, so that 8 can always be loaded. */
#define MIN_LEFT 12

#define MULTIPLIER 0x9e3779b1U

struct deflate_match {
  uint32_t head[1 << MAX_HASH_BITS];    /* the last position */
  uint32_t head3[1 << HASH3_BITS];
  uint16_t prev[MAX_WINDOW];            /* the one before, low bits */
  struct deflate_write_block block;
};

/* What stays the same for a cluster. */
struct scan {
  struct deflate_match *m;
  const uint8_t *in;
  size_t len, stop;             /* STOP: no matches begin from here on */
  unsigned window, shift;
  unsigned effort;
};

struct match {
  unsigned len, dist;
};

struct deflate_match *
deflate_match_create (void)
{
  return malloc (sizeof (struct deflate_match));
}

void
deflate_match_free (struct deflate_match *m)
{
  free (m);
}

static inline uint32_t
load32 (const uint8_t *p)
{
  uint32_t v;

  memcpy (&v, p, sizeof v);
  return le32toh (v);
}

static inline uint64_t
load64 (const uint8_t *p)
{
  uint64_t v;

  memcpy (&v, p, sizeof v);
  return le64toh (v);
}

/* The first 3 bytes only. */
static inline unsigned
hash3 (uint32_t v)
{
  return (v << 8) * MULTIPLIER >> (32 - HASH3_BITS);
}

/* Enter POS, whose bytes are V, and get the last positions that had the
 * same hashes (0 if there was none).
 */
static inline uint32_t
enter (const struct scan *s, size_t pos, uint32_t v, uint32_t *cand3)
{
  uint32_t *head = &s->m->head[v * MULTIPLIER >> s->shift];
  uint32_t *head3 = &s->m->head3[hash3 (v)];
  const uint32_t cand = *head;

  *cand3 = *head3;
  *head = *head3 = pos;
  s->m->prev[pos & (s->window - 1)] = cand;
  return cand;
}

/* How many bytes A and B have in common, MAX at the most. */
static unsigned
common_length (const uint8_t *a, const uint8_t *b, unsigned max)
{
  unsigned n = 0;

  while (n + 8 <= max) {
    const uint64_t diff = load64 (a + n) ^ load64 (b + n);

    if (diff)
      return n + (__builtin_ctzll (diff) >> 3);
    n += 8;
  }
  while (n < max && a[n] == b[n])
    n++;
  return n;
}

/* Follow the chain of POS from distance DIST on, where 4 bytes match, for
 * something better than *BEST.
 */
static inline void
follow_chain (const struct scan *s, size_t pos, unsigned dist,
              struct match *best)
{
  const uint8_t *p = s->in + pos;
  const unsigned max = s->len - pos < MAX_MATCH ? s->len - pos : MAX_MATCH;
  const unsigned nice = max < NICE_MATCH ? max : NICE_MATCH;
  const unsigned limit = pos < s->window ? pos : s->window;
  unsigned tries = s->effort, last, tail = 0, n;

  do {
    const uint8_t *q = p - dist;

    /* What is longer agrees in the last 4 of its first LEN + 1 bytes. */
    if (load32 (q + tail) == load32 (p + tail)) {
      const uint64_t diff = load64 (p) ^ load64 (q);

      if (diff)
        n = __builtin_ctzll (diff) >> 3;
      else
        n = 8 + common_length (p + 8, q + 8, max - 8);
      if (n > best->len && n > 3) {
        best->len = n;
        best->dist = dist;
        if (n >= nice)
          break;
        tail = n - 3;
      }
    }
    last = dist;
    dist = (uint16_t) (pos - s->m->prev[(pos - dist) & (s->window - 1)]);
  } while (dist > last && dist <= limit && --tries > 0);
}

/* Find the first match that begins from POS on, before END.  Returns its
 * position, or END.
 */
static inline size_t
find_match (const struct scan *s, size_t pos, size_t end, struct match *found)
{
  uint32_t *literals = s->m->block.literals;

  for (; pos < end; ++pos) {
    const uint8_t *p = s->in + pos;
    const uint32_t v = load32 (p);
    uint32_t cand, cand3;
    unsigned dist, dist3;
    bool match3;

    cand = enter (s, pos, v, &cand3);
    dist = pos - cand;
    dist3 = pos - cand3;
    match3 = ((load32 (s->in + cand3) ^ v) << 8 == 0) &
      (dist3 - 1 < s->window) & (dist3 <= MAX_DIST3);
    if (load32 (s->in + cand) == v && dist - 1 < s->window) {
      *found = (struct match) { match3 ? 3 : 0, dist3 };
      follow_chain (s, pos, dist, found);
      return pos;
    }
    if (match3) {
      *found = (struct match) { 3, dist3 };
      return pos;
    }
    literals[*p]++;
  }
  return end;
}

/* Add a sequence to the block, without its literals to the counts. */
static inline void
add (struct deflate_write_block *block, size_t literals,
     const struct match *match)
{
  struct deflate_write_seq *seq = &block->seqs[block->nr++];

  seq->literals = literals;
  seq->len = match->len;
  seq->dist = match->dist;
  if (match->len) {
    seq->dist_sym = deflate_write_dist_symbol (match->dist);
    block->lengths[match->len - DEFLATE_WRITE_MIN_MATCH]++;
    block->dists[seq->dist_sym]++;
  }
}

static void
begin_block (struct deflate_write_block *block)
{
  memset (block, 0, offsetof (struct deflate_write_block, seqs));
}

/* The first block of what begins at *POS, which is advanced. */
static bool
compress_block (const struct scan *s, size_t *pos, struct deflate_write *w)
{
  struct deflate_write_block *block = &s->m->block;
  const size_t start = *pos;
  size_t p = start, symbols = 0;
  struct match match = { 0, 0 };

  begin_block (block);
  while (p < s->stop && symbols < DEFLATE_WRITE_SYMBOLS) {
    const size_t left = DEFLATE_WRITE_SYMBOLS - symbols;
    const size_t end = s->stop - p < left ? s->stop : p + left;
    const size_t at = find_match (s, p, end, &match);
    uint32_t unused;

    symbols += at - p + 1;
    if (at == end)
      match.len = 0;
    add (block, at - p, &match);
    p = at + match.len;
    if (match.len) {
      size_t i;

      for (i = at + 1; i < p && i < s->stop; ++i)
        enter (s, i, load32 (s->in + i), &unused);
    }
  }

  if (p >= s->stop) {           /* the last few literals */
    const size_t n = s->len - p;

    match.len = 0;
    add (block, n, &match);
    for (; p < s->len; ++p)
      block->literals[s->in[p]]++;
  }
  *pos = p;
  return deflate_write_block (w, block, s->in + start, p - start,
                              p == s->len);
}

size_t
deflate_match_compress (struct deflate_match *m,
                        unsigned effort, unsigned window,
                        const void *in, size_t len, void *out, size_t out_len)
{
  const unsigned bits = window > 4096 ? MAX_HASH_BITS : HASH_BITS;
  const struct scan s = {
    .m = m, .in = in, .len = len, .stop = len > MIN_LEFT ? len - MIN_LEFT : 0,
    .window = window, .shift = 32 - bits, .effort = effort,
  };
  struct deflate_write w = { .next = out, .end = (uint8_t *) out + out_len };
  size_t pos = 0;

  memset (m->head, 0, sizeof m->head[0] << bits);
  memset (m->head3, 0, sizeof m->head3);
  do {
    if (!compress_block (&s, &pos, &w))
      return 0;
  } while (pos < len);
  return w.next - (uint8_t *) out;
}
