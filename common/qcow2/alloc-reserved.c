/* SPDX-License-Identifier: BSD-3-Clause */
/* Clusters that are counted before they are handed out.
 *
 * Where a flush comes after every few allocations, each of them would write
 * refcounts, pass a barrier, write entries, and pass another one (I1).  So
 * some clusters behind the last one get their refcount ahead.  By the time
 * they are handed out it is stable, and if they read as zeroes, and so did
 * the guest before, the entries can be written together with the data:
 * they are "settled".
 *
 * Invariants:
 *  - [reserved.idx, reserved.end) have refcount one, nothing points to them,
 *    and they were never handed out: they read as zeroes.  The file reaches
 *    to their end.
 *  - Refcounts of reserved clusters below reserved.stable_end are stable, and
 *    so is a length of the file of at least stable_len.
 *
 * Locks: LOCK_META, exclusively, held by the caller.
 *
 * A server that is killed leaves the reservation behind as leaked clusters,
 * a few MiB at most, all holes.  alloc_open notices such a tail, and image.c
 * has it freed before anything is put behind it.
 */

#include <config.h>

#include <inttypes.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "alloc.h"

#define MAX_CLUSTERS 32
#define MAX_BYTES (UINT64_C (8) << 20)

static uint64_t
reservation_size (const struct alloc *a)
{
  const uint64_t nr = MAX_BYTES >> a->geo->cluster_bits;

  return nr < MAX_CLUSTERS ? nr : MAX_CLUSTERS;
}

/* How many clusters from START_IDX on can be reserved, at most MAX_NR. */
static uint64_t
find_room (struct alloc *a, uint64_t start_idx, uint64_t max_nr,
           const struct alloc_growth *growth)
{
  const unsigned bits = a->geo->cluster_bits;
  const uint64_t off = start_idx << bits, span =
    refcount_table_span (a->refcount);
  uint64_t nr;

  if (off < a->virgin_off || off < a->lost_end || start_idx >= span)
    return 0;
  nr = span - start_idx < max_nr ? span - start_idx : max_nr;
  nr = refcount_free_run_locked (a->refcount, start_idx, nr);
  if (a->refcount->overlap &&
      overlap_find (a->refcount->overlap, off, nr << bits) != 0)
    return 0;
  if (nr > 0 && alloc_grow_file_locked (a, off + (nr << bits), growth) < 0) {
    if (a->file_len <= off)
      return 0;
    nr = (a->file_len - off) >> bits;
  }
  return nr;
}

void
alloc_reserved_top_up_locked (struct alloc *a, uint64_t next_idx,
                              const struct alloc_growth *growth)
{
  struct alloc_reserved *res = &a->reserved;
  const uint64_t size = reservation_size (a), left = res->end - res->idx;
  uint64_t nr;
  int r;

  if (!res->wanted || left > size / 2)
    return;
  if (left > 0)
    next_idx = res->end;
  nr = find_room (a, next_idx, size - left, growth);
  if (nr == 0)
    return;
  r = refcount_add_locked (a->refcount, next_idx, nr, 1);
  if (r < 0) {
    nbdkit_debug ("%s: no clusters are reserved: %s",
                  a->file->name, strerror (-r));
    return;
  }
  if (left == 0)
    res->idx = next_idx;
  res->end = next_idx + nr;
  a->virgin_off = res->end << a->geo->cluster_bits;
}

void
alloc_reserved_give_back_locked (struct alloc *a)
{
  struct alloc_reserved *res = &a->reserved;
  const uint64_t idx = res->idx, nr = res->end - res->idx;

  res->wanted = false;
  res->idx = res->end;
  alloc_release_locked (a, idx << a->geo->cluster_bits, nr);
}

void
alloc_reserved_freeze_locked (struct alloc *a)
{
  struct alloc_reserved *res = &a->reserved;

  res->wanted = res->allowed && !a->lazy && !a->file->fixed_size &&
    res->taken > 0 && res->taken <= reservation_size (a) / 2;
  res->taken = 0;
  res->frozen_end = res->end;
  a->frozen_len = a->file_len;
}

void
alloc_reserved_stable_locked (struct alloc *a)
{
  a->reserved.stable_end = a->reserved.frozen_end;
  a->stable_len = a->frozen_len;
}
