/* SPDX-License-Identifier: BSD-3-Clause */
/* What clients see.
 *
 * The blocks must be looked at before what is below, not after: else a
 * block that is written out in between is seen neither here nor there.  So
 * a read first pins the blocks in its range, reads below what they have
 * not, and then copies what they have.  A pinned block keeps its content
 * when it is written out and removed, and while it is pinned its written
 * bytes only get more: so each byte comes from below or from a block.
 * (It may be older than a write which was sent straight down during the
 * read.  That is one of the two orders which such a pair may have.)
 *
 * Locks: the overlay's, to look and to copy, not across I/O.  No claims:
 * reads wait for no writes.
 */

#include <errno.h>
#include <stdlib.h>

#include "scope-lock.h"

#include "below.h"
#include "cowmerge.h"
#include "view.h"

/* A read that meets more blocks than this is cut in pieces. */
#define MAX_PINS 64

/* A piece of a read. */
struct piece {
  struct overlay *ov;
  uint64_t off, end;
  struct block *pins[MAX_PINS]; /* blocks in it, in order */
  unsigned nr_pins;
  unsigned passed;              /* of these, found to be before the position
                                   that read_missing has reached */
};

/* Pin the blocks from p->off to END at most, which sets p->end. */
static void
pin (struct piece *p, uint64_t end)
{
  struct overlay *ov = p->ov;
  struct block *b;

  p->nr_pins = p->passed = 0;
  p->end = end;
  OVERLAY_LOCK (ov);
  if (ov->nr_blocks == 0)
    return;
  for (uint64_t idx = p->off >> ov->shift; idx <= (end - 1) >> ov->shift;
       ++idx) {
    b = overlay_find_locked (ov, idx);
    if (b == NULL)
      continue;
    if (p->nr_pins == MAX_PINS) {
      p->end = idx << ov->shift;
      return;
    }
    overlay_pin_locked (b);
    p->pins[p->nr_pins++] = b;
  }
}

/* Where does the run of bytes end that starts at POS and is in a block all
 * over (*BUFFERED), or not at all?
 */
static uint64_t
run_end_locked (struct piece *p, uint64_t pos, bool *buffered)
{
  const struct overlay *ov = p->ov;
  struct block *b;
  uint64_t start;
  uint32_t s, e;

  *buffered = false;
  for (; p->passed < p->nr_pins; p->passed++) {
    b = p->pins[p->passed];
    start = b->idx << ov->shift;
    if (start + b->len <= pos)
      continue;
    if (start > pos)
      return start < p->end ? start : p->end;
    if (!block_find (b, true, pos - start, b->len, &s, &e))
      s = e = b->len;
    *buffered = start + s == pos;
    pos = start + (*buffered ? e : s);
    return pos < p->end ? pos : p->end;
  }
  return p->end;
}

/* The next range from POS on that shall be read below with one request:
 * over what is buffered in it too, if that is little.
 */
static bool
next_read (struct piece *p, uint64_t pos, uint64_t *start,
           uint64_t *end)
{
  uint64_t run;
  bool buffered;

  *start = *end = 0;
  OVERLAY_LOCK (p->ov);
  while (pos < p->end) {
    run = run_end_locked (p, pos, &buffered);
    if (!buffered) {
      if (*end == 0)
        *start = pos;
      *end = run;
    }
    else if (*end != 0 && run - *end > cowmerge_read_gap)
      break;
    pos = run;
  }
  return *end != 0;
}

/* Read what the blocks have not. */
static int
read_missing (struct piece *p, nbdkit_next *next, uint8_t *buf)
{
  uint64_t start, end;
  int r;

  for (uint64_t pos = p->off; next_read (p, pos, &start, &end); pos = end) {
    r = below_pread (next, buf + (start - p->off), end - start, start);
    if (r < 0)
      return r;
  }
  return 0;
}

/* Copy what they have, and let them go. */
static void
copy_buffered (struct piece *p, uint8_t *buf)
{
  struct overlay *ov = p->ov;

  for (unsigned i = 0; i < p->nr_pins; ++i) {
    struct block *b = p->pins[i];
    uint64_t start = b->idx << ov->shift;
    uint64_t from = p->off > start ? p->off : start;
    uint64_t to = p->end < start + b->len ? p->end : start + b->len;

    OVERLAY_LOCK (ov);
    block_copy (b, from - start, to - start, buf + (from - p->off));
    overlay_unpin_locked (ov, b);
  }
}

int
view_read (struct overlay *ov, nbdkit_next *next, void *buf, uint32_t count,
           uint64_t off)
{
  struct piece p = { .ov = ov, .off = off };
  const uint64_t end = off + count;
  uint8_t *dest = buf;
  int r = 0;

  if (overlay_empty (ov))
    return below_pread (next, buf, count, off);

  while (p.off < end && r == 0) {
    pin (&p, end);
    r = read_missing (&p, next, dest);
    copy_buffered (&p, dest);
    dest += p.end - p.off;
    p.off = p.end;
  }
  return r;
}

/* Add the extents of EXTS, with buffered clusters as data. */
static int
overlay_extents (const struct overlay *ov, const struct nbdkit_extents *exts,
                 const struct overlay_blocks *bf, struct nbdkit_extents *ret)
{
  const size_t nr = nbdkit_extents_count (exts);
  size_t k = 0;

  for (size_t i = 0; i < nr; ++i) {
    const struct nbdkit_extent e = nbdkit_get_extent (exts, i);
    const uint64_t end = e.offset + e.length;
    uint64_t pos = e.offset, to, start;
    bool data;

    while (pos < end) {
      while (k < bf->nr && (bf->idx[k] + 1) << ov->shift <= pos)
        k++;
      start = k < bf->nr ? bf->idx[k] << ov->shift : UINT64_MAX;
      data = start <= pos;
      to = data ? start + ov->cluster : start;
      if (to > end)
        to = end;
      if (nbdkit_add_extent (ret, pos, to - pos, data ? 0 : e.type) == -1)
        return errno ? -errno : -ENOMEM;
      pos = to;
    }
  }
  return 0;
}

int
view_extents (struct overlay *ov, nbdkit_next *next, uint32_t count,
              uint64_t off, uint32_t flags, struct nbdkit_extents *extents)
{
  struct nbdkit_extents *exts;
  struct overlay_blocks bf;
  int r;

  if (overlay_empty (ov))
    return below_extents (next, count, off, flags, extents);

  r = overlay_list_blocks (ov, off >> ov->shift,
                           (off + count - 1) >> ov->shift, &bf);
  if (r < 0)
    return r;
  exts = nbdkit_extents_new (off, off + count);
  if (exts == NULL)
    r = errno ? -errno : -ENOMEM;
  else
    r = below_extents (next, count, off, flags, exts);
  if (r == 0)
    r = overlay_extents (ov, exts, &bf, extents);
  nbdkit_extents_free (exts);
  free (bf.idx);
  return r;
}
