/* SPDX-License-Identifier: BSD-3-Clause */
/* Follow every reference of an image, and count.
 *
 * Invariant: nothing from the image is trusted.  A reference to what the
 * file does not have is a corruption, and is not counted.  Memory follows
 * what is referenced inside the file.
 *
 * What counts as a corruption is what `qemu-img check' counts, so that the
 * two agree.  But a table that is named N times is walked once, and each of
 * its references counts N times: what a walk costs follows the size of the
 * file, whatever the image says.
 *
 * Locks: none needed, nobody else uses the image.  The private cache for
 * refcount blocks has a lock only because mcache.c wants one; it is never
 * taken, since there is one thread.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "check-walk.h"
#include "entry.h"
#include "ondisk.h"

#define MAX_COUNT_BYTES (UINT64_C (1) << 30)
#define BLOCK_CACHE_BYTES (UINT64_C (4) << 20)

/* ------------------------------------------------------------------
 * Small things.
 */

void
check_walk_problem (const struct check *k, const char *fmt, ...)
{
  char text[256];
  va_list args;

  if (k->opts == NULL || k->opts->problem == NULL)
    return;
  va_start (args, fmt);
  vsnprintf (text, sizeof text, fmt, args);
  va_end (args);
  k->opts->problem (k->opts->opaque, text);
}

void
check_walk_progress (struct check *k, uint64_t n)
{
  k->work_done += n;
  if (k->opts == NULL || k->opts->progress == NULL)
    return;
  if (k->work_done - k->work_shown < k->work_total / 1000 + 1)
    return;
  k->work_shown = k->work_done;
  if (k->work_total < k->work_done)
    k->work_total = k->work_done;
  k->opts->progress (k->opts->opaque, k->work_done, k->work_total);
}

int
check_walk_read (struct check *k, void *buf, uint64_t len, uint64_t off,
                 const char *what)
{
  int r = backend_pread (&k->view.b, buf, len, off);

  if (r < 0) {
    k->res->check_errors++;
    check_walk_problem (k, "cannot read the %s at offset 0x%" PRIx64 ": %s",
                        what, off, strerror (-r));
  }
  return r;
}

enum check_kind
check_walk_kind (const struct geometry *geo, uint64_t entry)
{
  const bool has_offset = (entry & L2E_OFFSET_MASK) != 0;

  if (entry & L2E_COMPRESSED)
    return CHECK_COMPRESSED;
  if ((entry & L2E_ZERO) && !geo->extended_l2)
    return has_offset ? CHECK_ZERO_ALLOC : CHECK_ZERO;
  if (has_offset || (geo->has_data_file && (entry & ENTRY_COPIED)))
    return CHECK_DATA;
  return CHECK_NOTHING;
}

/* ------------------------------------------------------------------
 * The file, followed by zeroes.
 */

static int
view_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  return backend_pread_padded (((struct check_view *) b)->file,
                               buf, len, off);
}

static int64_t
view_size (struct backend *b)
{
  (void) b;
  return INT64_MAX;
}

static void
view_init (struct check_view *v, struct backend *file)
{
  static const struct backend_ops ops = {
    .pread = view_pread, .size = view_size,
  };

  v->b.ops = &ops;
  v->b.name = file->name;
  v->b.min_io = 1;
  v->file = file;
}

/* ------------------------------------------------------------------
 * Open and close.
 */

static int
open_parts (struct check *k)
{
  const struct geometry *geo = &k->core->geo;
  int64_t size = backend_size (k->core->file);
  size_t i;
  int r;

  if (size < 0)
    return size;
  k->file_len = size;
  k->nr_clusters = geometry_clusters (geo, size);
  view_init (&k->view, k->core->file);
  r = check_count_create (MAX_COUNT_BYTES, &k->counts);
  if (r == 0)
    r = mcache_create (&k->view.b, geo->slice_bits, BLOCK_CACHE_BYTES,
                       &k->lock, &k->mcache);
  if (r == 0)
    r = refcount_open (&k->refcount, geo, &k->core->header, &k->view.b,
                       k->mcache, NULL);
  if (r < 0)
    return r;
  k->broken_blocks = calloc (k->refcount.nr_entries / 8 + 1, 1);
  k->l2 = malloc (geo->cluster_size);
  if (k->broken_blocks == NULL || k->l2 == NULL) {
    nbdkit_error ("%s: out of memory for the check", k->core->name);
    return -ENOMEM;
  }
  k->work_total = 2 * (uint64_t) k->core->header.l1_size +
    k->refcount.nr_entries;
  for (i = 0; i < k->core->snapshots.nr; ++i)
    k->work_total += k->core->snapshots.entries[i].l1_size;
  return 0;
}

int
check_walk_open (struct check *k, struct core *core,
                 const struct check_options *opts, struct check_result *res)
{
  int r;

  memset (k, 0, sizeof *k);
  memset (res, 0, sizeof *res);
  k->core = core;
  k->opts = opts;
  k->res = res;
  ranked_rwlock_init (&k->lock, LOCK_META);
  res->total_clusters = geometry_clusters (&core->geo, core->header.size);
  r = open_parts (k);
  if (r < 0) {
    res->check_errors++;
    check_walk_close (k);
  }
  return r;
}

void
check_walk_close (struct check *k)
{
  free (k->broken_blocks);
  free (k->l2);
  if (k->refcount.file)
    refcount_close (&k->refcount);
  mcache_free (k->mcache);
  check_count_free (k->counts);
  ranked_rwlock_destroy (&k->lock);
}

/* ------------------------------------------------------------------
 * Counting.
 */

int
check_walk_count (struct check *k, uint64_t first, uint64_t end,
                  uint64_t times)
{
  uint64_t c, excess;
  int r;

  for (c = first; c < end; ++c) {
    r = check_count_add (k->counts, c, times, k->core->geo.refcount_max,
                         &excess);
    if (r < 0) {
      k->res->check_errors++;
      return r;
    }
    if (excess) {
      k->res->corruptions += excess;
      check_walk_problem (k, "cluster %" PRIu64 ": has more references than "
                          "its refcount can hold", c);
    }
    if (c >= k->nr_clusters)
      k->nr_clusters = c + 1;
  }
  return 0;
}

bool
check_walk_can_count (struct check *k, uint64_t off, uint64_t len,
                      uint64_t times, const char *what)
{
  uint64_t end;

  if (!__builtin_add_overflow (off, len, &end) &&
      end < k->file_len + k->core->geo.cluster_size)
    return true;
  k->res->corruptions += times;
  check_walk_problem (k, "%s at offset 0x%" PRIx64 ", %" PRIu64 " bytes: "
                      "lies beyond the end of the file", what, off, len);
  return end >= off && end <= k->count_beyond;
}

int
check_walk_add (struct check *k, uint64_t off, uint64_t len, uint64_t times,
                const char *what)
{
  const struct geometry *geo = &k->core->geo;

  if (len == 0 || !check_walk_can_count (k, off, len, times, what))
    return 0;
  return check_walk_count (k, off >> geo->cluster_bits,
                           geometry_clusters (geo, off + len), times);
}

/* ------------------------------------------------------------------
 * L2 tables.
 */

struct l2_walk {
  uint64_t off;                 /* of the table */
  uint64_t times;               /* how often it is named */
  bool active;
  uint64_t next_off;            /* where the next cluster would continue */
  uint64_t changed_lo, changed_hi; /* bytes of the table, if lo < hi */
};

static void
put_entry (struct check *k, struct l2_walk *w, uint64_t i,
           uint64_t entry, uint64_t bitmap)
{
  const uint64_t size = k->core->geo.l2_entry_size;

  put_be64 (k->l2 + i * size, entry);
  if (size > 8)
    put_be64 (k->l2 + i * size + 8, bitmap);
  if (w->changed_lo >= w->changed_hi)
    w->changed_lo = i * size;
  w->changed_hi = (i + 1) * size;
  k->res->corruptions_fixed++;
  k->entries_changed = true;
}

static int
walk_compressed (struct check *k, struct l2_walk *w, uint64_t i,
                 struct l2_entry e)
{
  const struct geometry *geo = &k->core->geo;

  if ((e.v & ENTRY_COPIED) || e.bitmap) {
    check_walk_problem (k, "L2 table at offset 0x%" PRIx64 ", entry %" PRIu64
                        ": COPIED flag or subclusters of a compressed "
                        "cluster", w->off, i);
    if (k->fix_entries)
      put_entry (k, w, i, e.v & ~ENTRY_COPIED, 0);
    else
      k->res->corruptions +=
        w->times * (!!(e.v & ENTRY_COPIED) + !!e.bitmap);
  }
  if (geo->has_data_file) {
    k->res->corruptions += w->times;
    check_walk_problem (k, "L2 table at offset 0x%" PRIx64 ", entry %" PRIu64
                        ": compressed, but the image has an external data "
                        "file", w->off, i);
    return 0;
  }
  if (e.bitmap && !k->fix_entries)
    return 0;
  if (w->active) {
    k->res->allocated_clusters += w->times;
    k->res->compressed_clusters += w->times;
    k->res->fragmented_clusters += w->times;
  }
  return check_walk_add (k, l2_entry_comp_off (geo, e),
                         l2_entry_comp_len (geo, e), w->times,
                         "compressed cluster");
}

/* Does the entry say that data is in the cluster? */
static bool
has_data (const struct geometry *geo, struct l2_entry e)
{
  return geo->extended_l2 ? (e.bitmap & UINT32_MAX) != 0 :
    (e.v & L2E_ZERO) == 0;
}

static int
walk_allocated (struct check *k, struct l2_walk *w, uint64_t i,
                struct l2_entry e)
{
  const struct geometry *geo = &k->core->geo;
  const uint64_t off = l2_entry_off (e);

  if ((e.bitmap >> 32) & e.bitmap) {
    k->res->corruptions += w->times;
    check_walk_problem (k, "L2 table at offset 0x%" PRIx64 ", entry %" PRIu64
                        ": subclusters are both allocated and zero",
                        w->off, i);
  }
  if (geometry_in_cluster (geo, off) != 0) {
    check_walk_problem (k, "L2 table at offset 0x%" PRIx64 ", entry %" PRIu64
                        ": offset 0x%" PRIx64 " is not the start of a "
                        "cluster", w->off, i, off);
    if (k->fix_entries && !has_data (geo, e)) {
      /* What it reads as does not depend on the offset. */
      put_entry (k, w, i, geo->extended_l2 ? 0 : L2E_ZERO, e.bitmap);
      return 0;
    }
    k->res->corruptions += w->times;
  }
  if (w->active) {
    k->res->allocated_clusters += w->times;
    if (w->next_off != 0 && off != w->next_off)
      k->res->fragmented_clusters += w->times;
    w->next_off = off + geo->cluster_size;
  }
  return geo->has_data_file ? 0 :
    check_walk_add (k, off, geo->cluster_size, w->times, "guest cluster");
}

static int
walk_entry (struct check *k, struct l2_walk *w, uint64_t i,
            struct l2_entry e)
{
  const enum check_kind kind = check_walk_kind (&k->core->geo, e.v);

  if (kind != CHECK_COMPRESSED && (e.v & L2E_RESERVED_MASK)) {
    k->res->corruptions += w->times;
    check_walk_problem (k, "L2 table at offset 0x%" PRIx64 ", entry %" PRIu64
                        ": 0x%" PRIx64 " has reserved bits set",
                        w->off, i, e.v);
  }
  switch (kind) {
  case CHECK_COMPRESSED:
    return walk_compressed (k, w, i, e);
  case CHECK_ZERO_ALLOC:
  case CHECK_DATA:
    return walk_allocated (k, w, i, e);
  case CHECK_NOTHING:
    if (e.bitmap & UINT32_MAX) {
      k->res->corruptions += w->times;
      check_walk_problem (k, "L2 table at offset 0x%" PRIx64 ", entry %" PRIu64
                          ": subclusters are allocated, but there is no "
                          "cluster", w->off, i);
    }
    return 0;
  case CHECK_ZERO:
    return 0;
  }
  return 0;
}

int
check_walk_l2 (struct check *k, uint64_t off, uint64_t times, bool active)
{
  const struct geometry *geo = &k->core->geo;
  const uint64_t nr = UINT64_C (1) << geo->l2_bits;
  struct l2_walk w = { .off = off, .times = times, .active = active };
  struct l2_entry e = { 0 };
  uint64_t i;
  int r;

  if (off >= k->file_len)       /* all zero */
    return 0;
  r = check_walk_read (k, k->l2, geo->cluster_size, off, "L2 table");
  for (i = 0; r == 0 && i < nr; ++i) {
    e.v = get_be64 (k->l2 + i * geo->l2_entry_size);
    if (geo->extended_l2)
      e.bitmap = get_be64 (k->l2 + i * 16 + 8);
    if (e.v != 0 || e.bitmap != 0)
      r = walk_entry (k, &w, i, e);
  }
  if (r == 0 && w.changed_lo < w.changed_hi)
    r = backend_pwrite (k->core->file, k->l2 + w.changed_lo,
                        w.changed_hi - w.changed_lo, off + w.changed_lo, 0);
  return r;
}

/* ------------------------------------------------------------------
 * The refcount structure itself.
 */

/* Make the table entry in memory one that refcount.c can use: what is beyond
 * the end of the file reads as zeroes.
 */
static void
tame_refblock (struct check *k, uint64_t i)
{
  uint64_t *entry = &k->refcount.table[i];

  *entry &= REFTABLE_OFFSET_MASK;
  if (*entry > INT64_MAX || geometry_in_cluster (&k->core->geo, *entry) != 0)
    k->broken_blocks[i / 8] |= 1U << i % 8;
  else if (*entry >> k->core->geo.cluster_bits >= k->nr_clusters)
    *entry = 0;
}

static int
walk_refblock (struct check *k, uint64_t i)
{
  const struct geometry *geo = &k->core->geo;
  const uint64_t v = k->refcount.table[i];
  const char *what;
  int r;

  if (v == 0)
    return 0;
  tame_refblock (k, i);
  if (v & ~REFTABLE_OFFSET_MASK)
    what = "has reserved bits set";
  else if (geometry_in_cluster (geo, v) != 0)
    what = "is not the start of a cluster";
  else if (v >> geo->cluster_bits >= k->nr_clusters)
    what = "lies beyond the end of the file";
  else {
    r = check_walk_add (k, v, geo->cluster_size, 1, "refcount block");
    if (r < 0)
      return r;
    if (check_count_get (k->counts, v >> geo->cluster_bits) == 1)
      return 0;
    what = "is used for something else as well";
  }
  k->res->corruptions++;
  k->needs_rebuild = true;
  check_walk_problem (k, "refcount table entry %" PRIu64 ": 0x%" PRIx64 " %s",
                      i, v, what);
  return 0;
}

static int
walk_refblocks (struct check *k)
{
  uint64_t i;
  int r = 0;

  for (i = 0; r == 0 && i < k->refcount.nr_entries; ++i) {
    check_walk_progress (k, 1);
    r = walk_refblock (k, i);
  }
  return r;
}

int
check_walk_references (struct check *k)
{
  const struct header *h = &k->core->header;
  int r;

  r = check_walk_add (k, 0, k->core->geo.cluster_size, 1, "header");
  if (r == 0)
    r = check_l1_walk (k);
  if (r == 0)
    r = check_walk_add (k, h->snapshots_offset, k->core->snapshots.bytes, 1,
                        "snapshot table");
  if (r == 0 && !k->without_refcounts)
    r = check_walk_add (k, h->refcount_table_offset,
                        k->refcount.nr_entries * 8, 1, "refcount table");
  if (r == 0 && h->has_crypto)
    r = check_walk_add (k, h->crypto_offset, h->crypto_length, 1,
                        "encryption header");
  if (r == 0)
    r = check_bitmaps_walk (k);
  if (r == 0 && !k->without_refcounts)
    r = walk_refblocks (k);
  return r;
}
