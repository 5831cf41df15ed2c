/* SPDX-License-Identifier: BSD-3-Clause */
/* Reference counts of host clusters.
 *
 * Invariant: what is added to counts is added to all clusters, or to none.
 *
 * Locks: LOCK_META, held by the caller.  Reads of blocks that are not in
 * the cache happen under it.
 *
 * This does not order writes (commit.c), nor decide where clusters go
 * (alloc.c).  Looking for clusters: refcount-scan.c.  New blocks:
 * refcount-make.c.  A larger table: refcount-grow.c.
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
#include "refcount-slice.h"
#include "refcount.h"

/* Messages about broken blocks: a table can have a million of them. */
#define MAX_COMPLAINTS 16

/* ------------------------------------------------------------------
 * The table.
 */

uint64_t
refcount_block_span (const struct refcount *rc)
{
  return UINT64_C (1) << rc->geo->refblock_bits;
}

uint64_t
refcount_table_span (const struct refcount *rc)
{
  return rc->nr_entries << rc->geo->refblock_bits;
}

uint64_t
refcount_limit (const struct refcount *rc)
{
  return MAX_HOST_OFFSET >> rc->geo->cluster_bits;
}

static bool
table_entry_valid (const struct refcount *rc, uint64_t v)
{
  return (v & (rc->geo->cluster_size - 1)) == 0 &&
    v < MAX_HOST_OFFSET && v != 0;
}

/* Entry I has the block of an entry before it.  One of the two lies, and a
 * table that has one block a million times would take hours to look through.
 */
static int
note_twice (struct refcount *rc, uint64_t i)
{
  if (rc->twice == NULL) {
    rc->nr_twice = rc->nr_entries;
    rc->twice = calloc (rc->nr_twice / 8 + 1, 1);
    if (rc->twice == NULL) {
      nbdkit_error ("%s: out of memory for the refcount table",
                    rc->file->name);
      return -ENOMEM;
    }
  }
  rc->twice[i / 8] |= 1U << i % 8;
  return 0;
}

static bool
is_twice (const struct refcount *rc, uint64_t i)
{
  return i < rc->nr_twice && (rc->twice[i / 8] & 1U << i % 8);
}

/* Register the table and its valid blocks. */
static int
register_all (struct refcount *rc)
{
  const uint64_t cluster_size = rc->geo->cluster_size;
  uint64_t i;
  int r;

  if (rc->overlap == NULL)
    return 0;
  r = overlap_add_locked (rc->overlap, rc->table_off,
                          rc->nr_entries * 8, OVERLAP_REFTABLE);
  for (i = 0; r == 0 && i < rc->nr_entries; ++i) {
    if (!table_entry_valid (rc, rc->table[i]))
      continue;
    if (overlap_find (rc->overlap, rc->table[i], cluster_size) ==
        OVERLAP_REFBLOCK)
      r = note_twice (rc, i);
    else
      r = overlap_add_locked (rc->overlap, rc->table[i], cluster_size,
                              OVERLAP_REFBLOCK);
  }
  return r;
}

int
refcount_open (struct refcount *rc, const struct geometry *geo,
               const struct header *h, struct backend *file,
               struct mcache *mcache, struct overlap *overlap)
{
  uint64_t bytes, i;
  int r;

  memset (rc, 0, sizeof *rc);
  rc->geo = geo;
  rc->file = file;
  rc->mcache = mcache;
  rc->overlap = overlap;
  rc->table_off = h->refcount_table_offset;

  bytes = (uint64_t) h->refcount_table_clusters << geo->cluster_bits;
  if (bytes == 0 || bytes > MAX_REFTABLE_SIZE ||
      rc->table_off >= MAX_HOST_OFFSET ||
      geometry_in_cluster (geo, rc->table_off) != 0) {
    nbdkit_error ("%s: header field refcount_table_clusters (%" PRIu32 ") "
                  "or refcount_table_offset (0x%" PRIx64 ") is out of range",
                  file->name, h->refcount_table_clusters, rc->table_off);
    return -EINVAL;
  }
  rc->nr_entries = bytes / 8;
  rc->table = malloc (bytes);
  rc->complained = calloc (rc->nr_entries / 8 + 1, 1);
  if (rc->table == NULL || rc->complained == NULL) {
    nbdkit_error ("%s: out of memory for the refcount table", file->name);
    r = -ENOMEM;
    goto fail;
  }
  r = backend_pread (file, rc->table, bytes, rc->table_off);
  if (r == -ENODATA) {
    nbdkit_error ("%s: the refcount table at offset 0x%" PRIx64 " lies "
                  "beyond the end of the file: the file is truncated",
                  file->name, rc->table_off);
    r = -EINVAL;
  }
  if (r < 0)
    goto fail;
  for (i = 0; i < rc->nr_entries; ++i)
    rc->table[i] = be64toh (rc->table[i]);
  r = register_all (rc);
  if (r < 0)
    goto fail;
  return 0;

 fail:
  refcount_close (rc);
  return r;
}

void
refcount_close (struct refcount *rc)
{
  free (rc->table);
  free (rc->complained);
  free (rc->twice);
  rc->twice = NULL;
  rc->nr_twice = 0;
  rc->table = NULL;
  rc->complained = NULL;
  rc->nr_entries = 0;
}

void
refcount_redirty_locked (struct refcount *rc, uint64_t lo, uint64_t hi)
{
  if (lo >= hi)
    return;
  if (rc->dirty_lo >= rc->dirty_hi) {
    rc->dirty_lo = lo;
    rc->dirty_hi = hi;
    return;
  }
  if (lo < rc->dirty_lo)
    rc->dirty_lo = lo;
  if (hi > rc->dirty_hi)
    rc->dirty_hi = hi;
}

/* Whole sectors of the table, so that a write never reads. */
#define TABLE_SECTOR 64         /* entries */

int
refcount_take_dirty_locked (struct refcount *rc, uint8_t **buf,
                            uint64_t *lo, uint64_t *hi)
{
  uint64_t i;

  *buf = NULL;
  if (rc->dirty_lo >= rc->dirty_hi) {
    *lo = *hi = 0;
    return 0;
  }
  *lo = rc->dirty_lo & ~(uint64_t) (TABLE_SECTOR - 1);
  *hi = (rc->dirty_hi + TABLE_SECTOR - 1) & ~(uint64_t) (TABLE_SECTOR - 1);
  *buf = malloc ((*hi - *lo) * 8);
  if (*buf == NULL) {
    nbdkit_error ("%s: out of memory for writing the refcount table",
                  rc->file->name);
    return -ENOMEM;
  }
  for (i = *lo; i < *hi; ++i)
    put_be64 (*buf + (i - *lo) * 8, rc->table[i]);
  rc->dirty_lo = rc->dirty_hi = 0;
  return 0;
}

/* ------------------------------------------------------------------
 * Blocks.
 */

/* One message for each broken block, whoever meets it how often, and not
 * more than MAX_COMPLAINTS for an image.
 */
static void
complain (struct refcount *rc, uint64_t block_idx, const char *what)
{
  if (rc->complained[block_idx / 8] & 1U << block_idx % 8)
    return;
  rc->complained[block_idx / 8] |= 1U << block_idx % 8;
  if (rc->nr_complaints >= MAX_COMPLAINTS)
    return;
  if (++rc->nr_complaints == MAX_COMPLAINTS) {
    nbdkit_error ("%s: more refcount blocks are broken, and not reported one "
                  "by one: check the image with qemu-img check",
                  rc->file->name);
    return;
  }
  nbdkit_error ("%s: refcount block %" PRIu64 " at offset 0x%" PRIx64 " %s: "
                "no space can be allocated or freed in its range; "
                "check the image with qemu-img check",
                rc->file->name, block_idx, rc->table[block_idx], what);
}

/* Where the slice of CLUSTER_IDX is.  0; -EIO (logged once). */
static int
find_slice (struct refcount *rc, uint64_t cluster_idx, uint64_t *off)
{
  const uint64_t block_idx = refcount_block_of (rc, cluster_idx);
  const uint64_t v = rc->table[block_idx];
  uint64_t in_block;
  int64_t size;

  if (!table_entry_valid (rc, v) || is_twice (rc, block_idx)) {
    complain (rc, block_idx, "is misplaced (corrupt refcount table)");
    return -EIO;
  }
  in_block = refcount_slice_start (rc, cluster_idx) &
    (refcount_block_span (rc) - 1);
  *off = v + (in_block << rc->geo->refcount_order >> 3);
  if (rc->complained[block_idx / 8] & 1U << block_idx % 8) {
    /* Ask again only if the file has become long enough meanwhile. */
    size = backend_size (rc->file);
    if (size < 0 || *off + (UINT64_C (1) << rc->geo->slice_bits) >
        (uint64_t) size)
      return -EIO;
  }
  if (mcache_peek (rc->mcache, *off) == NULL) {
    size = backend_size (rc->file);
    if (size < 0)
      return size;
    if (*off + (UINT64_C (1) << rc->geo->slice_bits) > (uint64_t) size) {
      complain (rc, block_idx, "lies beyond the end of the file");
      return -EIO;
    }
  }
  return 0;
}

int
refcount_slice_locked (struct refcount *rc, uint64_t cluster_idx,
                       struct mcache_block **block)
{
  uint64_t off;
  int r = find_slice (rc, cluster_idx, &off);

  return r < 0 ? r : mcache_visit_locked (rc->mcache, off, block);
}

int
refcount_copy_slice_locked (struct refcount *rc, uint64_t cluster_idx,
                            uint8_t *buf)
{
  const size_t size = (size_t) 1 << rc->geo->slice_bits;
  struct mcache_block *block;
  const uint8_t *p;
  uint64_t off;
  int r = find_slice (rc, cluster_idx, &off);

  if (r < 0)
    return r;
  p = mcache_peek (rc->mcache, off);
  if (p == NULL) {
    if (backend_pread (rc->file, buf, size, off) == 0)
      return 0;
    r = mcache_visit_locked (rc->mcache, off, &block);
    if (r < 0)
      return r;                 /* logged */
    p = mcache_data (block);
  }
  memcpy (buf, p, size);
  return 0;
}

/* ------------------------------------------------------------------
 * Changing counts.
 */

/* Can DELTA be added to entries [I, END) of P?  CLUSTER_IDX is that of
 * entry 0, for the message.
 */
static int
check_slice (const struct refcount *rc, const uint8_t *p, uint64_t i,
             uint64_t end, uint64_t cluster_idx, int delta)
{
  const unsigned order = rc->geo->refcount_order;
  uint64_t v;

  for (; i < end; ++i) {
    v = refcount_entry_get (p, i, order);
    if (delta > 0 && v == rc->geo->refcount_max)
      return -ERANGE;
    if (delta < 0 && v == 0) {
      nbdkit_error ("%s: the image is corrupt: the space at offset 0x%" PRIx64
                    " was in use, but its refcount is 0; "
                    "repair it with qemu-img check -r all",
                    rc->file->name, (cluster_idx + i) << rc->geo->cluster_bits);
      return -EIO;
    }
  }
  return 0;
}

/* Add DELTA to those clusters of [IDX, END) that are in the first slice;
 * *DONE says how many.  All or nothing.
 */
static int
add_in_slice (struct refcount *rc, uint64_t idx, uint64_t end, int delta,
              uint64_t *done)
{
  const unsigned order = rc->geo->refcount_order;
  const uint64_t start = refcount_slice_start (rc, idx);
  struct mcache_block *block;
  uint64_t i, stop;
  uint8_t *p;
  int r;

  r = refcount_slice_locked (rc, idx, &block);
  if (r < 0)
    return r;
  stop = refcount_slice_span (rc);
  if (end - start < stop)
    stop = end - start;
  r = check_slice (rc, mcache_data (block), idx - start, stop, start, delta);
  if (r < 0)
    return r;
  p = mcache_dirty_locked (rc->mcache, block, MCACHE_REFBLOCK, 0);
  if (p == NULL)
    return -ENOMEM;
  for (i = idx - start; i < stop; ++i)
    refcount_entry_set (p, i, order,
                        refcount_entry_get (p, i, order) + delta);
  *done = stop - (idx - start);
  return 0;
}

/* All blocks that describe the wanted clusters are there. */
static int
ensure_blocks (struct refcount *rc, const struct refcount_wanted *w, int delta)
{
  uint64_t b;
  int r;

  for (b = refcount_block_of (rc, w->lo);
       b <= refcount_block_of (rc, w->hi - 1); ++b) {
    if (delta > 0) {
      r = refcount_make_block_locked (rc, b, w);
      if (r < 0)
        return r;
    }
    else if (b >= rc->nr_entries || rc->table[b] == 0) {
      nbdkit_error ("%s: the image is corrupt: the space at offset 0x%" PRIx64
                    " was in use, but has no refcount; "
                    "repair it with qemu-img check -r all",
                    rc->file->name,
                    (b << rc->geo->refblock_bits) << rc->geo->cluster_bits);
      return -EIO;
    }
  }
  return 0;
}

int
refcount_add_locked (struct refcount *rc, uint64_t cluster_idx,
                     uint64_t nr, int delta)
{
  struct refcount_wanted w = { .lo = cluster_idx, .hi = cluster_idx + nr };
  uint64_t idx, done = 0;
  int r;

  if (nr == 0)
    return 0;
  if (cluster_idx >= refcount_limit (rc) ||
      nr > refcount_limit (rc) - cluster_idx)
    return delta > 0 ? -ENOSPC : -EIO;
  r = ensure_blocks (rc, &w, delta);
  for (idx = w.lo; r == 0 && idx < w.hi; idx += done) {
    r = add_in_slice (rc, idx, w.hi, delta, &done);
    if (r < 0)
      break;
  }
  if (r == 0)
    return 0;

  /* Slices that were changed are dirty, so they are in memory, and taking
   * the change back cannot fail.
   */
  w.hi = idx;
  for (idx = w.lo; w.hi > w.lo && idx < w.hi; idx += done) {
    if (add_in_slice (rc, idx, w.hi, -delta, &done) < 0)
      break;
  }
  return r;
}

int
refcount_set_locked (struct refcount *rc, uint64_t cluster_idx,
                     uint64_t nr, uint64_t value)
{
  struct mcache_block *block;
  uint64_t start;
  uint8_t *p;
  int r;

  for (; nr > 0; ++cluster_idx, --nr) {
    if (refcount_block_of (rc, cluster_idx) >= rc->nr_entries ||
        rc->table[refcount_block_of (rc, cluster_idx)] == 0)
      return -EIO;
    r = refcount_slice_locked (rc, cluster_idx, &block);
    if (r < 0)
      return r;
    p = mcache_dirty_locked (rc->mcache, block, MCACHE_REFBLOCK, 0);
    if (p == NULL)
      return -ENOMEM;
    start = refcount_slice_start (rc, cluster_idx);
    refcount_entry_set (p, cluster_idx - start, rc->geo->refcount_order,
                        value);
  }
  return 0;
}
