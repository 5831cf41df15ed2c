/* SPDX-License-Identifier: BSD-3-Clause */
/* A larger refcount table.
 *
 * The new table, and the blocks that describe it and themselves, lie in one
 * piece at the end of what the old table covers: nothing is in use there,
 * since what has no refcount is free.  So growing needs no allocator.
 *
 *     old coverage | block block ... | new table ........ | free
 *                  ^ start_off                            ^ end_off
 *
 * All of it is written before the header names the new table, so a crash
 * before that leaves the old table valid, and some bytes beyond its
 * coverage that nobody knows.
 *
 * Lock: LOCK_META, exclusively.  The order of writes is commit.c's.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "ondisk.h"
#include "refcount.h"

struct layout {
  uint64_t start_idx;           /* the first block */
  uint64_t blocks;
  uint64_t clusters;            /* of the table */
};

static uint64_t
div_round_up (uint64_t a, uint64_t b)
{
  return a / b + (a % b != 0);
}

/* The smallest table that is twice as large as the present one, and covers
 * NEED_IDX and itself.
 */
static int
choose_layout (const struct refcount *rc, uint64_t need_idx,
               struct layout *l)
{
  const uint64_t span = refcount_block_span (rc);
  const uint64_t per_cluster = rc->geo->cluster_size / 8;
  const uint64_t max_clusters = MAX_REFTABLE_SIZE >> rc->geo->cluster_bits;
  uint64_t need_entries = rc->nr_entries * 2;
  uint64_t end;

  l->start_idx = refcount_table_span (rc);
  if (need_idx / span >= need_entries)
    need_entries = need_idx / span + 1;
  if (need_entries > MAX_REFTABLE_SIZE / 8 &&
      need_idx / span < MAX_REFTABLE_SIZE / 8)
    need_entries = MAX_REFTABLE_SIZE / 8;

  for (;;) {
    l->clusters = div_round_up (need_entries, per_cluster);
    /* Each block describes itself and SPAN - 1 others. */
    l->blocks = div_round_up (l->clusters, span - 1);
    end = l->start_idx + l->blocks + l->clusters;
    if (l->clusters > max_clusters || end > refcount_limit (rc)) {
      nbdkit_error ("%s: the refcount table cannot grow beyond %" PRIu64
                    " entries: the image has reached the largest size that "
                    "its cluster size and refcount width allow",
                    rc->file->name, rc->nr_entries);
      return -EFBIG;
    }
    if (end <= l->clusters * per_cluster * span)
      return 0;
    need_entries = div_round_up (end, span);
  }
}

/* One block: the clusters up to USED_IDX are in use once. */
static int
write_block (struct refcount *rc, uint8_t *buf, uint64_t block_idx,
             uint64_t used_idx, uint64_t off)
{
  const uint64_t first = block_idx << rc->geo->refblock_bits;
  uint64_t i;

  memset (buf, 0, rc->geo->cluster_size);
  for (i = 0; i < refcount_block_span (rc) && first + i < used_idx; ++i)
    refcount_entry_set (buf, i, rc->geo->refcount_order, 1);
  return backend_pwrite (rc->file, buf, rc->geo->cluster_size, off, 0);
}

static int
write_all (struct refcount *rc, const struct layout *l,
           const struct refcount_growth *g)
{
  const uint64_t bytes = l->clusters << rc->geo->cluster_bits;
  const uint64_t end_idx = l->start_idx + l->blocks + l->clusters;
  uint8_t *buf = malloc (bytes);
  uint64_t i, b;
  int r = 0;

  if (buf == NULL) {
    nbdkit_error ("%s: out of memory for a larger refcount table",
                  rc->file->name);
    return -ENOMEM;
  }
  b = l->start_idx >> rc->geo->refblock_bits;
  for (i = 0; r == 0 && i < l->blocks; ++i)
    r = write_block (rc, buf, b + i, end_idx, g->table[b + i]);
  for (i = 0; i < g->nr_entries; ++i)
    put_be64 (buf + i * 8, g->table[i]);
  if (r == 0)
    r = backend_pwrite (rc->file, buf, bytes, g->table_off, 0);
  free (buf);
  return r;
}

/* The space is free by its refcounts.  Is it, really? */
static int
claim_space (struct refcount *rc, struct refcount_growth *g)
{
  const uint64_t blocks_len = g->table_off - g->start_off;
  enum overlap_kind kind;
  int r;

  if (rc->overlap == NULL)
    return 0;
  kind = overlap_find (rc->overlap, g->start_off, g->end_off - g->start_off);
  if (kind != 0) {
    nbdkit_error ("%s: the image is corrupt: the %s lies where no refcount "
                  "is, behind offset 0x%" PRIx64 "; repair it with "
                  "qemu-img check -r all",
                  rc->file->name, overlap_kind_name (kind), g->start_off);
    return -EUCLEAN;
  }
  g->overlap = rc->overlap;
  r = overlap_add_locked (rc->overlap, g->start_off, blocks_len,
                          OVERLAP_REFBLOCK);
  if (r == 0)
    r = overlap_add_locked (rc->overlap, g->table_off,
                            g->end_off - g->table_off, OVERLAP_REFTABLE);
  return r;
}

int
refcount_prepare_grow_locked (struct refcount *rc, uint64_t need_idx,
                              struct refcount_growth *g)
{
  struct layout l;
  uint64_t b, i;
  int r;

  memset (g, 0, sizeof *g);
  r = choose_layout (rc, need_idx, &l);
  if (r < 0)
    return r;
  g->start_off = l.start_idx << rc->geo->cluster_bits;
  g->table_off = (l.start_idx + l.blocks) << rc->geo->cluster_bits;
  g->nr_clusters = l.clusters;
  g->end_off = g->table_off + (l.clusters << rc->geo->cluster_bits);
  g->nr_entries = (l.clusters << rc->geo->cluster_bits) / 8;
  g->table = calloc (g->nr_entries, sizeof *g->table);
  g->complained = calloc (g->nr_entries / 8 + 1, 1);
  if (g->table == NULL || g->complained == NULL) {
    nbdkit_error ("%s: out of memory for a larger refcount table",
                  rc->file->name);
    r = -ENOMEM;
    goto fail;
  }
  memcpy (g->table, rc->table, rc->nr_entries * sizeof *g->table);
  b = l.start_idx >> rc->geo->refblock_bits;
  for (i = 0; i < l.blocks; ++i)
    g->table[b + i] = g->start_off + (i << rc->geo->cluster_bits);

  r = claim_space (rc, g);
  if (r < 0)
    goto fail;
  r = refcount_extend_file (rc, g->end_off);
  if (r < 0)
    goto fail;
  mcache_forget_locked (rc->mcache, g->start_off, g->end_off - g->start_off);
  r = write_all (rc, &l, g);
  if (r < 0)
    goto fail;
  return 0;

 fail:
  refcount_abandon_grow (g);
  return r;
}

void
refcount_switch_locked (struct refcount *rc, struct refcount_growth *g,
                        uint64_t *old_off, uint64_t *old_clusters)
{
  uint64_t *old = rc->table;
  uint64_t i;

  *old_off = rc->table_off;
  *old_clusters = rc->nr_entries * 8 >> rc->geo->cluster_bits;

  /* Blocks made since the new table was written. */
  rc->dirty_lo = rc->dirty_hi = 0;
  for (i = 0; i < rc->nr_entries; ++i) {
    if (g->table[i] != old[i]) {
      g->table[i] = old[i];
      refcount_redirty_locked (rc, i, i + 1);
    }
  }
  memcpy (g->complained, rc->complained, rc->nr_entries / 8);
  if (rc->overlap)
    overlap_remove_locked (rc->overlap, rc->table_off, rc->nr_entries * 8);
  rc->table_off = g->table_off;
  rc->nr_entries = g->nr_entries;
  rc->table = g->table;
  free (rc->complained);
  rc->complained = g->complained;
  free (old);
  memset (g, 0, sizeof *g);
}

void
refcount_abandon_grow (struct refcount_growth *g)
{
  if (g->overlap)
    overlap_remove_locked (g->overlap, g->start_off,
                           g->end_off - g->start_off);
  free (g->table);
  free (g->complained);
  memset (g, 0, sizeof *g);
}
