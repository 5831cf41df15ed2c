/* SPDX-License-Identifier: BSD-3-Clause */
/* Tables of 64-bit entries that may overlap: see the header.
 *
 * Invariant: each part of the file is read once, however many tables it is
 * part of, and counts as often as it is used (check-ranges.h).
 *
 * Locks: none needed, nobody else uses the image.
 *
 * This does not know what entries mean.
 */

#include <config.h>

#include "check-tables.h"
#include "geometry.h"
#include "ondisk.h"

int
check_tables_add (struct check_tables *t, uint64_t off, uint64_t nr)
{
  struct check *k = t->k;
  const struct geometry *geo = &k->core->geo;
  uint64_t len = nr * 8;
  int r = 0;

  if (nr == 0)
    return 0;
  if (check_walk_can_count (k, off, len, 1, t->what))
    r = check_ranges_add (&t->clusters, off >> geo->cluster_bits,
                          geometry_clusters (geo, off + len));
  if (r == 0 && off < k->file_len) {
    /* Whole entries, as far as they are in the file. */
    if (len > k->file_len - off)
      len = (k->file_len - off + 7) & ~UINT64_C (7);
    r = check_ranges_add (&t->bytes, off, off + len);
  }
  if (r < 0)
    k->res->check_errors++;
  return r;
}

static int
count_clusters (void *opaque, uint64_t start, uint64_t end, uint64_t times)
{
  struct check_tables *t = opaque;

  return check_walk_count (t->k, start, end, times);
}

/* Who gets the entries. */
struct reader {
  const struct check_tables *t;
  check_entry_fn *fn;
  void *opaque;
};

static int
read_entries (void *opaque, uint64_t start, uint64_t end, uint64_t times)
{
  const struct reader *reader = opaque;
  struct check *k = reader->t->k;
  uint64_t off, i, n;
  int r = 0;

  for (off = start; r == 0 && off < end; off += n) {
    n = end - off;
    if (n > k->core->geo.cluster_size)
      n = k->core->geo.cluster_size;
    r = check_walk_read (k, k->l2, n, off, reader->t->what);
    for (i = 0; r == 0 && i < n; i += 8)
      r = reader->fn (reader->opaque, off + i, get_be64 (k->l2 + i), times);
  }
  return r;
}

int
check_tables_each (struct check_tables *t, check_entry_fn *fn, void *opaque)
{
  struct reader reader = { .t = t, .fn = fn, .opaque = opaque };
  int r = check_ranges_each (&t->clusters, count_clusters, t);

  return r == 0 ? check_ranges_each (&t->bytes, read_entries, &reader) : r;
}

void
check_tables_free (struct check_tables *t)
{
  check_ranges_free (&t->clusters);
  check_ranges_free (&t->bytes);
}
