/* SPDX-License-Identifier: BSD-3-Clause */
/* References to host clusters, counted.
 *
 * Two hash tables: of pieces (PIECE clusters each, one byte a cluster), and
 * of the few clusters whose count does not fit into a byte.  The pieces are
 * sorted when they are walked for the first time after a new one came.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "check-count.h"

#define PIECE_BITS 12
#define PIECE (1U << PIECE_BITS)
#define MANY 255                /* the byte says: look in the other table */

struct piece {
  uint64_t idx;                 /* first cluster >> PIECE_BITS */
  uint8_t counts[PIECE];
};

struct many {
  uint64_t idx;                 /* cluster + 1; 0 = empty slot */
  uint64_t count;
};

struct check_count {
  uint64_t max_pieces;
  struct piece **slots;         /* open addressing; NULL = empty */
  size_t nr_slots, nr_pieces;
  struct piece *last;           /* that was asked for */
  struct piece **sorted;        /* room for nr_slots / 2 */
  bool is_sorted;
  struct many *many;
  size_t nr_many_slots, nr_many;
};

static size_t
slot_of (uint64_t key, size_t nr_slots)
{
  return (key * UINT64_C (0x9e3779b97f4a7c15) >> 20) & (nr_slots - 1);
}

static int
no_memory (void)
{
  nbdkit_error ("the image has too many clusters in use to be checked with "
                "the memory there is");
  return -ENOMEM;
}

int
check_count_create (uint64_t max_bytes, struct check_count **cc)
{
  struct check_count *n = calloc (1, sizeof *n);

  if (n == NULL)
    return no_memory ();
  n->max_pieces = max_bytes / sizeof (struct piece);
  n->nr_slots = 64;
  n->slots = calloc (n->nr_slots, sizeof *n->slots);
  n->sorted = calloc (n->nr_slots / 2, sizeof *n->sorted);
  n->nr_many_slots = 64;
  n->many = calloc (n->nr_many_slots, sizeof *n->many);
  if (n->slots == NULL || n->sorted == NULL || n->many == NULL) {
    check_count_free (n);
    return no_memory ();
  }
  *cc = n;
  return 0;
}

void
check_count_free (struct check_count *cc)
{
  size_t i;

  if (cc == NULL)
    return;
  for (i = 0; cc->slots && i < cc->nr_slots; ++i)
    free (cc->slots[i]);
  free (cc->slots);
  free (cc->sorted);
  free (cc->many);
  free (cc);
}

static struct piece **
find_piece (struct piece **slots, size_t nr_slots, uint64_t idx)
{
  size_t i = slot_of (idx, nr_slots);

  while (slots[i] != NULL && slots[i]->idx != idx)
    i = (i + 1) & (nr_slots - 1);
  return &slots[i];
}

static int
grow_slots (struct check_count *cc)
{
  struct piece **slots = calloc (cc->nr_slots * 2, sizeof *slots);
  struct piece **sorted = calloc (cc->nr_slots, sizeof *sorted);
  size_t i;

  if (slots == NULL || sorted == NULL) {
    free (slots);
    free (sorted);
    return no_memory ();
  }
  free (cc->sorted);
  cc->sorted = sorted;
  for (i = 0; i < cc->nr_slots; ++i) {
    if (cc->slots[i])
      *find_piece (slots, cc->nr_slots * 2, cc->slots[i]->idx) = cc->slots[i];
  }
  free (cc->slots);
  cc->slots = slots;
  cc->nr_slots *= 2;
  return 0;
}

/* The piece that has the cluster; NULL = none is needed. */
static struct piece *
get_piece (struct check_count *cc, uint64_t cluster_idx)
{
  const uint64_t idx = cluster_idx >> PIECE_BITS;
  struct piece *p = cc->last;

  if (p && p->idx == idx)
    return p;
  p = *find_piece (cc->slots, cc->nr_slots, idx);
  if (p)
    cc->last = p;
  return p;
}

static int
make_piece (struct check_count *cc, uint64_t cluster_idx, struct piece **ret)
{
  struct piece *p;
  int r;

  if (cc->nr_pieces >= cc->max_pieces)
    return no_memory ();
  if (cc->nr_pieces >= cc->nr_slots / 2) {
    r = grow_slots (cc);
    if (r < 0)
      return r;
  }
  p = calloc (1, sizeof *p);
  if (p == NULL)
    return no_memory ();
  p->idx = cluster_idx >> PIECE_BITS;
  *find_piece (cc->slots, cc->nr_slots, p->idx) = p;
  cc->nr_pieces++;
  cc->is_sorted = false;
  cc->last = p;
  *ret = p;
  return 0;
}

static struct many *
find_many (struct many *many, size_t nr_slots, uint64_t cluster_idx)
{
  size_t i = slot_of (cluster_idx, nr_slots);

  while (many[i].idx != 0 && many[i].idx != cluster_idx + 1)
    i = (i + 1) & (nr_slots - 1);
  return &many[i];
}

static int
grow_many (struct check_count *cc)
{
  struct many *many = calloc (cc->nr_many_slots * 2, sizeof *many);
  size_t i;

  if (many == NULL)
    return no_memory ();
  for (i = 0; i < cc->nr_many_slots; ++i) {
    if (cc->many[i].idx)
      *find_many (many, cc->nr_many_slots * 2, cc->many[i].idx - 1) =
        cc->many[i];
  }
  free (cc->many);
  cc->many = many;
  cc->nr_many_slots *= 2;
  return 0;
}

int
check_count_add (struct check_count *cc, uint64_t cluster_idx,
                 uint64_t times, uint64_t limit, uint64_t *excess)
{
  struct piece *p = get_piece (cc, cluster_idx);
  uint64_t count, n;
  struct many *m;
  uint8_t *c;
  int r;

  if (p == NULL) {
    r = make_piece (cc, cluster_idx, &p);
    if (r < 0)
      return r;
  }
  count = check_count_get (cc, cluster_idx);
  n = limit > count ? limit - count : 0;
  if (n > times)
    n = times;
  *excess = times - n;
  if (n == 0)
    return 0;
  c = &p->counts[cluster_idx & (PIECE - 1)];
  if (count + n < MANY) {
    *c = count + n;
    return 0;
  }
  if (cc->nr_many >= cc->nr_many_slots / 2) {
    r = grow_many (cc);
    if (r < 0)
      return r;
  }
  m = find_many (cc->many, cc->nr_many_slots, cluster_idx);
  if (*c < MANY) {
    m->idx = cluster_idx + 1;
    cc->nr_many++;
    *c = MANY;
  }
  m->count = count + n;
  return 0;
}

uint64_t
check_count_get (struct check_count *cc, uint64_t cluster_idx)
{
  struct piece *p = get_piece (cc, cluster_idx);
  uint8_t c = p ? p->counts[cluster_idx & (PIECE - 1)] : 0;

  if (c < MANY)
    return c;
  return find_many (cc->many, cc->nr_many_slots, cluster_idx)->count;
}

static int
compare_pieces (const void *a, const void *b)
{
  const struct piece *x = *(struct piece *const *) a;
  const struct piece *y = *(struct piece *const *) b;

  return x->idx < y->idx ? -1 : x->idx > y->idx;
}

static void
sort_pieces (struct check_count *cc)
{
  size_t i, n = 0;

  if (cc->is_sorted)
    return;
  for (i = 0; i < cc->nr_slots; ++i) {
    if (cc->slots[i])
      cc->sorted[n++] = cc->slots[i];
  }
  qsort (cc->sorted, n, sizeof *cc->sorted, compare_pieces);
  cc->is_sorted = true;
}

/* The first piece in order whose index is at least IDX. */
static size_t
search_piece (const struct check_count *cc, uint64_t idx)
{
  size_t lo = 0, hi = cc->nr_pieces, mid;

  while (lo < hi) {
    mid = lo + (hi - lo) / 2;
    if (cc->sorted[mid]->idx < idx)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

uint64_t
check_count_next (struct check_count *cc, uint64_t cluster_idx)
{
  uint64_t first = cluster_idx & (PIECE - 1), i;
  struct piece *p;
  size_t n;

  sort_pieces (cc);
  for (n = search_piece (cc, cluster_idx >> PIECE_BITS);
       n < cc->nr_pieces; ++n) {
    p = cc->sorted[n];
    if (p->idx != cluster_idx >> PIECE_BITS)
      first = 0;
    for (i = first; i < PIECE; ++i) {
      if (p->counts[i] != 0)
        return (p->idx << PIECE_BITS) + i;
    }
    first = 0;
  }
  return UINT64_MAX;
}

uint64_t
check_count_end (struct check_count *cc)
{
  struct piece *p;
  uint64_t i;
  size_t n;

  sort_pieces (cc);
  for (n = cc->nr_pieces; n > 0; --n) {
    p = cc->sorted[n-1];
    for (i = PIECE; i > 0; --i) {
      if (p->counts[i-1] != 0)
        return (p->idx << PIECE_BITS) + i;
    }
  }
  return 0;
}
