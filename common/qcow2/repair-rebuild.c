/* SPDX-License-Identifier: BSD-3-Clause */
/* New refcount table and blocks, made from the references of an image.
 *
 * Invariant: until the header names the new table, nothing is written to a
 * cluster to which anything refers, the old table and blocks included.
 * Each new block, and the new table, counts itself.
 *
 * Locks: none needed, nobody else uses the image.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "ondisk.h"
#include "repair.h"

#define MAX_BEYOND (UINT64_C (1) << 30)

struct rebuild {
  struct core *core;
  struct check_count *counts;
  struct overlap *old;          /* clusters of the old structure */
  uint64_t *table;
  uint64_t nr_entries;
  uint64_t table_idx;           /* its first cluster */
  uint64_t end_idx;             /* of all that was placed */
  uint64_t full_idx, full_end_idx;      /* nothing is free in there */
};

static int
no_memory (const struct core *core)
{
  nbdkit_error ("%s: out of memory for new refcounts", core->name);
  return -ENOMEM;
}

static int
remember_old (struct rebuild *rb)
{
  const struct refcount *rc = &rb->core->refcount;
  uint64_t i, v;
  int r;

  r = overlap_create (rb->core->geo.cluster_bits, &rb->old);
  if (r == 0)
    r = overlap_add_locked (rb->old, rc->table_off, rc->nr_entries * 8,
                            OVERLAP_REFTABLE);
  for (i = 0; r == 0 && i < rc->nr_entries; ++i) {
    v = rc->table[i] & REFTABLE_OFFSET_MASK;
    if (v != 0 && v < MAX_HOST_OFFSET)
      r = overlap_add_locked (rb->old, v, rb->core->geo.cluster_size,
                              OVERLAP_REFBLOCK);
  }
  return r;
}

/* Enough entries for everything in use, and for the new structure if it all
 * has to go behind that.
 */
static int
make_table (struct rebuild *rb)
{
  const struct geometry *geo = &rb->core->geo;
  const uint64_t used = check_count_end (rb->counts);
  uint64_t entries = 1, clusters, need;

  for (;;) {
    clusters = geometry_clusters (geo, entries * 8);
    need = ((used + clusters + entries) >> geo->refblock_bits) + 1;
    if (need <= entries)
      break;
    entries = need;
  }
  entries = clusters * (geo->cluster_size / 8);
  if (entries * 8 > MAX_REFTABLE_SIZE) {
    nbdkit_error ("%s: the image is too large for a refcount table, given "
                  "its cluster size and refcount width", rb->core->name);
    return -EFBIG;
  }
  rb->table = calloc (entries, 8);
  if (rb->table == NULL)
    return no_memory (rb->core);
  rb->nr_entries = entries;
  return 0;
}

/* Take NR free clusters in one piece, at or behind START. */
static int
place (struct rebuild *rb, uint64_t start, uint64_t nr, uint64_t *idx)
{
  const unsigned bits = rb->core->geo.cluster_bits;
  const bool known = start >= rb->full_idx && start < rb->full_end_idx;
  uint64_t c = known ? rb->full_end_idx : start, next, i;
  uint64_t excess;
  int r;

  for (;;) {
    next = check_count_next (rb->counts, c);
    if (next - c < nr) {
      c = next + 1;
      continue;
    }
    for (i = nr; i > 0; --i) {
      if (overlap_find (rb->old, (c + i - 1) << bits, 1))
        break;
    }
    if (i == 0)
      break;
    c += i;
  }
  *idx = c;
  /* Many blocks may have to go behind the same long range. */
  if (nr == 1) {
    if (!known)
      rb->full_idx = start;
    rb->full_end_idx = c + 1;
  }
  for (i = 0; i < nr; ++i) {
    r = check_count_add (rb->counts, c + i, 1, 1, &excess);
    if (r < 0)
      return r;
  }
  if (rb->end_idx < c + nr)
    rb->end_idx = c + nr;
  return 0;
}

/* A block wherever something is in use.  Blocks are in use themselves, but
 * normally in their own range, so this ends soon.
 */
static int
place_blocks (struct rebuild *rb)
{
  const unsigned span_bits = rb->core->geo.refblock_bits;
  uint64_t b, c, idx;
  bool changed = true;
  int r;

  while (changed) {
    changed = false;
    for (b = 0; b < rb->nr_entries; ++b) {
      c = check_count_next (rb->counts, b << span_bits);
      if (c >> span_bits >= rb->nr_entries)
        break;
      b = c >> span_bits;
      if (rb->table[b] != 0)
        continue;
      r = place (rb, b << span_bits, 1, &idx);
      if (r < 0)
        return r;
      rb->table[b] = idx << rb->core->geo.cluster_bits;
      changed = true;
    }
  }
  return 0;
}

static int
write_block (struct rebuild *rb, uint64_t b, uint8_t *buf)
{
  const struct geometry *geo = &rb->core->geo;
  const uint64_t first = b << geo->refblock_bits;
  const uint64_t end = first + (UINT64_C (1) << geo->refblock_bits);
  uint64_t c;

  memset (buf, 0, geo->cluster_size);
  for (c = check_count_next (rb->counts, first); c < end;
       c = check_count_next (rb->counts, c + 1))
    refcount_entry_set (buf, c - first, geo->refcount_order,
                        check_count_get (rb->counts, c));
  return backend_pwrite (rb->core->file, buf, geo->cluster_size,
                         rb->table[b], 0);
}

static int
write_all (struct rebuild *rb)
{
  const struct geometry *geo = &rb->core->geo;
  uint8_t *buf = malloc (geo->cluster_size);
  uint64_t i;
  int r;

  if (buf == NULL)
    return no_memory (rb->core);
  r = refcount_extend_file (&rb->core->refcount,
                            rb->end_idx << geo->cluster_bits);
  if (r == -ENOSPC)
    nbdkit_error ("%s: no space for new refcounts", rb->core->name);
  for (i = 0; r == 0 && i < rb->nr_entries; ++i) {
    if (rb->table[i] != 0)
      r = write_block (rb, i, buf);
    rb->table[i] = htobe64 (rb->table[i]);
  }
  if (r == 0)
    r = backend_pwrite (rb->core->file, rb->table, rb->nr_entries * 8,
                        rb->table_idx << geo->cluster_bits, 0);
  free (buf);
  return r;
}

/* The header is written between two barriers. */
static int
switch_over (struct rebuild *rb)
{
  struct header *h = &rb->core->header;

  h->refcount_table_offset = rb->table_idx << rb->core->geo.cluster_bits;
  h->refcount_table_clusters =
    rb->nr_entries * 8 >> rb->core->geo.cluster_bits;
  return commit_header (&rb->core->commit, false);
}

int
repair_rebuild (struct core *core)
{
  struct rebuild rb = { .core = core };
  struct check_result ignored;
  struct check k;
  int r;

  r = check_walk_open (&k, core, NULL, &ignored);
  if (r < 0)
    return r;
  k.without_refcounts = true;
  /* What a truncated file has lost is still referred to: nothing else may
   * come there.
   */
  if (k.file_len < MAX_HOST_OFFSET)
    k.count_beyond = 4 * k.file_len + MAX_BEYOND;
  r = check_walk_references (&k);
  rb.counts = k.counts;
  if (r == 0)
    r = remember_old (&rb);
  if (r == 0)
    r = make_table (&rb);
  if (r == 0)
    r = place (&rb, 0, geometry_clusters (&core->geo, rb.nr_entries * 8),
               &rb.table_idx);
  if (r == 0)
    r = place_blocks (&rb);
  if (r == 0)
    r = write_all (&rb);
  if (r == 0)
    r = switch_over (&rb);
  overlap_free (rb.old);
  free (rb.table);
  check_walk_close (&k);
  return r;
}
