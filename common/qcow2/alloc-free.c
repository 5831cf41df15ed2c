/* SPDX-License-Identifier: BSD-3-Clause */
/* How space comes back.
 *
 * Invariants:
 *  - A cluster keeps its refcount until its last stage is over, so the scan
 *    of refcount.c cannot find it before: pending, committing, limbo (I1,
 *    I4).
 *  - The hole is punched before the refcount goes down: no new owner can
 *    lose data to it.
 *
 * Locks: LOCK_META protects the lists.  alloc_reclaim takes it shortly for
 * each batch, and punches without it.
 *
 * Losing a range for lack of memory only leaks space, which a check finds;
 * so nothing here fails.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "alloc.h"

#define PRESSURE_CLUSTERS (UINT64_C (1) << 16)
#define PRESSURE_RANGES 4096

/* Clusters whose state is decided under one hold of the lock. */
#define BATCH_CLUSTERS 4096
#define BATCH_RANGES 256

/* ------------------------------------------------------------------
 * Lists.
 */

static void
list_add (struct alloc *a, struct alloc_list *l, const struct alloc_range *r)
{
  struct alloc_range *last, *n;
  size_t cap;

  if (l->len > 0) {
    last = &l->ranges[l->len-1];
    if (last->idx + last->nr == r->idx && last->generation == r->generation) {
      last->nr += r->nr;
      l->clusters += r->nr;
      return;
    }
  }
  if (l->len == l->cap) {
    cap = l->cap ? l->cap * 2 : 64;
    n = realloc (l->ranges, cap * sizeof *n);
    if (n == NULL) {
      nbdkit_error ("%s: out of memory: %" PRIu64 " clusters at offset 0x%"
                    PRIx64 " are leaked; qemu-img check -r leaks finds them",
                    a->file->name, r->nr, r->idx << a->geo->cluster_bits);
      return;
    }
    l->ranges = n;
    l->cap = cap;
  }
  l->ranges[l->len++] = *r;
  l->clusters += r->nr;
}

/* Move all of FROM behind TO, as of GENERATION. */
static void
list_move (struct alloc *a, struct alloc_list *from, struct alloc_list *to,
           uint64_t generation)
{
  struct alloc_list tmp;
  size_t i;

  for (i = 0; i < from->len; ++i)
    from->ranges[i].generation = generation;
  if (to->len == 0) {
    tmp = *to;
    *to = *from;
    *from = tmp;
    return;
  }
  for (i = 0; i < from->len; ++i)
    list_add (a, to, &from->ranges[i]);
  from->len = 0;
  from->clusters = 0;
}

/* Take the first NR clusters off the list. */
static void
list_drop (struct alloc_list *l, uint64_t nr)
{
  size_t i = 0;

  if (nr == 0)
    return;
  l->clusters -= nr;
  while (nr > 0 && l->ranges[i].nr <= nr)
    nr -= l->ranges[i++].nr;
  if (nr > 0) {
    l->ranges[i].idx += nr;
    l->ranges[i].nr -= nr;
  }
  l->len -= i;
  memmove (l->ranges, l->ranges + i, l->len * sizeof l->ranges[0]);
}

static void
update_estimate (struct alloc *a)
{
  uint64_t waiting = a->pending.clusters;

  if (a->pending.len >= PRESSURE_RANGES)
    waiting = PRESSURE_CLUSTERS;
  atomic_store_explicit (&a->waiting, waiting, memory_order_relaxed);
}

bool
alloc_pressure (const struct alloc *a)
{
  return atomic_load_explicit (&a->waiting, memory_order_relaxed) >=
    PRESSURE_CLUSTERS;
}

bool
alloc_has_deferred (const struct alloc *a)
{
  return a->pending.len > 0 || a->committing.len > 0 || a->limbo.len > 0;
}

/* ------------------------------------------------------------------
 * The way from use to limbo.
 */

static uint64_t
clusters_touched (const struct alloc *a, uint64_t off, uint64_t len,
                  uint64_t *idx)
{
  *idx = off >> a->geo->cluster_bits;
  return ((off + len - 1) >> a->geo->cluster_bits) - *idx + 1;
}

/* Space that comes back may have been written to. */
static void
was_used (struct alloc *a, uint64_t end_idx)
{
  if (end_idx << a->geo->cluster_bits > a->virgin_off)
    a->virgin_off = end_idx << a->geo->cluster_bits;
}

void
alloc_defer_free_locked (struct alloc *a, uint64_t host_off, uint64_t nr)
{
  struct alloc_range r = { .idx = host_off >> a->geo->cluster_bits,
                           .nr = nr };

  if (nr == 0)
    return;
  was_used (a, r.idx + nr);
  list_add (a, &a->pending, &r);
  update_estimate (a);
}

void
alloc_defer_free_bytes_locked (struct alloc *a, uint64_t host_off,
                               uint64_t len)
{
  uint64_t idx, nr;

  if (len == 0)
    return;
  nr = clusters_touched (a, host_off, len, &idx);
  alloc_defer_free_locked (a, idx << a->geo->cluster_bits, nr);
}

void
alloc_freeze_locked (struct alloc *a)
{
  list_move (a, &a->pending, &a->committing, 0);
  update_estimate (a);
  alloc_reserved_freeze_locked (a);
}

void
alloc_retire_locked (struct alloc *a, bool committed)
{
  if (committed)
    list_move (a, &a->committing, &a->limbo, epoch_generation (a->epoch));
  else
    list_move (a, &a->committing, &a->pending, 0);
  update_estimate (a);
}

/* ------------------------------------------------------------------
 * The end of limbo.
 */

/* Drop one reference of each cluster, and let the scan find those that are
 * free now.
 */
static void
drop_references (struct alloc *a, uint64_t idx, uint64_t nr)
{
  int r = refcount_add_locked (a->refcount, idx, nr, -1);

  if (r < 0) {
    nbdkit_error ("%s: %" PRIu64 " clusters at offset 0x%" PRIx64 " could not "
                  "be freed: %s; qemu-img check -r leaks finds them",
                  a->file->name, nr, idx << a->geo->cluster_bits,
                  strerror (-r));
    return;
  }
  if (idx < a->cursor_idx)
    a->cursor_idx = idx;
}

static void
leave_packing_cluster (struct alloc *a, uint64_t idx, uint64_t nr)
{
  const uint64_t comp_idx = a->comp_off >> a->geo->cluster_bits;

  if (a->comp_off != 0 && comp_idx >= idx && comp_idx < idx + nr)
    a->comp_off = 0;
}

struct batch {
  struct alloc_range last[BATCH_RANGES]; /* nobody else refers to these */
  size_t len;
  uint64_t clusters;
};

static bool
batch_is_full (const struct batch *b)
{
  return b->len == BATCH_RANGES || b->clusters >= BATCH_CLUSTERS;
}

static void
batch_add (struct batch *b, uint64_t idx, uint64_t nr)
{
  struct alloc_range *prev = b->len > 0 ? &b->last[b->len-1] : NULL;

  b->clusters += nr;
  if (prev && prev->idx + prev->nr == idx) {
    prev->nr += nr;
    return;
  }
  b->last[b->len].idx = idx;
  b->last[b->len++].nr = nr;
}

static bool
batch_has (const struct batch *b, uint64_t idx, uint64_t nr)
{
  size_t i;

  for (i = 0; i < b->len; ++i) {
    if (b->last[i].idx < idx + nr && idx < b->last[i].idx + b->last[i].nr)
      return true;
  }
  return false;
}

/* Sort the clusters of one range: those that others refer to lose a
 * reference at once, the rest join the batch.  Returns how many clusters
 * were dealt with.
 */
static uint64_t
collect_range (struct alloc *a, const struct alloc_range *range,
               struct batch *b)
{
  uint64_t done = 0, value, nr;

  while (done < range->nr && !batch_is_full (b)) {
    nr = range->nr - done;
    if (nr > BATCH_CLUSTERS)
      nr = BATCH_CLUSTERS;
    if (refcount_run_locked (a->refcount, range->idx + done, nr,
                             &value, &nr) < 0)
      nr = 1;                   /* logged; the rest may be readable */
    else if (value == 1) {
      /* A cluster of compressed data can be twice in the list: only if
       * its refcount is wrong, once it is the last reference.
       */
      if (batch_has (b, range->idx + done, nr))
        break;
      leave_packing_cluster (a, range->idx + done, nr);
      batch_add (b, range->idx + done, nr);
    }
    else
      drop_references (a, range->idx + done, nr);
    done += nr;
  }
  return done;
}

/* Fill a batch from the front of the list.  False: nothing there is ripe. */
static bool
collect_batch (struct alloc *a, bool all, struct batch *b)
{
  const uint64_t now = epoch_generation (a->epoch);
  struct alloc_list *l = &a->limbo;
  uint64_t done, total = 0;
  size_t i;

  b->len = 0;
  b->clusters = 0;

  WRITE_SCOPE (a->meta);
  if (!all && mcache_pressure (a->refcount->mcache))
    return false;
  for (i = 0; i < l->len && i < BATCH_RANGES && !batch_is_full (b); ++i) {
    if (!all && l->ranges[i].generation + 2 > now)
      break;
    done = collect_range (a, &l->ranges[i], b);
    total += done;
    if (done < l->ranges[i].nr)
      break;
  }
  list_drop (l, total);
  return total > 0;
}

static void
punch_batch (struct alloc *a, const struct batch *b)
{
  size_t i;
  int r;

  for (i = 0; i < b->len; ++i) {
    r = backend_punch (a->file, b->last[i].idx << a->geo->cluster_bits,
                       b->last[i].nr << a->geo->cluster_bits);
    if (r == -ENOTSUP)
      return;
  }
}

static void
free_batch (struct alloc *a, const struct batch *b)
{
  size_t i;

  WRITE_SCOPE (a->meta);
  for (i = 0; i < b->len; ++i)
    drop_references (a, b->last[i].idx, b->last[i].nr);
}

void
alloc_reclaim (struct alloc *a, bool all)
{
  struct batch b;

  /* Two steps where nobody is under way. */
  if (epoch_advance (a->epoch))
    epoch_advance (a->epoch);

  while (collect_batch (a, all, &b)) {
    if (a->discard)
      punch_batch (a, &b);
    free_batch (a, &b);
  }
}

/* ------------------------------------------------------------------
 * Other ways back.
 */

void
alloc_release_locked (struct alloc *a, uint64_t host_off, uint64_t nr)
{
  const uint64_t idx = host_off >> a->geo->cluster_bits;

  if (nr == 0)
    return;
  was_used (a, idx + nr);
  drop_references (a, idx, nr);
}

void
alloc_release_bytes_locked (struct alloc *a, uint64_t host_off, uint64_t len)
{
  uint64_t idx, nr, value;

  if (len == 0)
    return;
  nr = clusters_touched (a, host_off, len, &idx);
  was_used (a, idx + nr);
  drop_references (a, idx, nr);

  /* Go back behind the previous one, if that cluster is still in use. */
  if (a->comp_off == host_off + len)
    a->comp_off = geometry_in_cluster (a->geo, host_off) != 0 ? host_off : 0;
  for (; nr > 0; ++idx, --nr) {
    if (refcount_get_locked (a->refcount, idx, &value) < 0 || value == 0)
      leave_packing_cluster (a, idx, 1);
  }
}

/* The end of the last cluster in use; 0 = unknown. */
static uint64_t
used_end (struct alloc *a)
{
  uint64_t idx, end, known;

  if (refcount_end_locked (a->refcount, &idx) < 0)
    return 0;
  end = idx << a->geo->cluster_bits;
  /* Never cut off metadata, whatever the refcounts say. */
  known = a->refcount->overlap ? overlap_end (a->refcount->overlap) : 0;
  return end < known ? known : end;
}

/* What lies behind END and was there at open, in space that was free then:
 * is it nothing but a hole?  All else there was made, or freed, by us.
 */
static bool
is_empty_tail (const struct alloc *a, uint64_t end)
{
  if (end < a->lost_end)
    end = a->lost_end;
  return end >= a->open_len ||
    backend_hole_end (a->file, end, a->open_len) == a->open_len;
}

static void
cut_file (struct alloc *a, uint64_t end)
{
  int r = backend_truncate (a->file, end, false);

  if (r < 0) {
    nbdkit_debug ("%s: could not cut the file to %" PRIu64 " bytes: %s",
                  a->file->name, end, strerror (-r));
    return;
  }
  a->file_len = end;
  a->virgin_off = end;
  if (a->stable_len > end)
    a->stable_len = end;
}

void
alloc_trim_file (struct alloc *a, bool proven)
{
  uint64_t end;
  int64_t size;
  unsigned i;

  WRITE_SCOPE (a->meta);
  a->unproven = false;
  size = backend_size (a->file);
  end = used_end (a);
  if (size < 0 || end == 0)
    return;
  if (a->file->fixed_size) {
    alloc_ahead_give_back_locked (a, end);
    return;
  }
  if (!proven && !is_empty_tail (a, end)) {
    a->unproven = true;
    if (end < a->open_len)
      end = a->open_len;
  }
  if (end < (uint64_t) size)
    cut_file (a, end);
  for (i = 0; a->file->ops->unreserve && i < a->nr_grown; ++i) {
    const struct alloc_span *s = &a->grown[i];

    if (s->start < end)
      a->file->ops->unreserve (a->file, s->start,
                               (s->end < end ? s->end : end) - s->start);
  }
}
