/* SPDX-License-Identifier: BSD-3-Clause */
/* Space ahead on storage that cannot grow: an export of an NBD server.
 *
 * To grow means here to give storage to holes behind the last cluster that
 * was ever used, by zeroing them, in steps of the size that filter
 * preallocate asks for.
 *
 * Invariants:
 *  - Zeroed is only what the storage calls a hole that reads as zeroes, and
 *    what is free by the refcounts, at or behind virgin_off: nobody may
 *    write there, since LOCK_META is held.  So nothing that is read changes.
 *  - [virgin_off, virgin_end) was zeroed here, and never handed out since.
 *
 * The first step is small, and its extents are looked at before and after
 * it: a hole that became data tells that the storage writes zeroes, for
 * which this must not be the reason.
 *
 * Locks: LOCK_META, exclusively, held by the caller; I/O happens under it,
 * as it does when a file grows.
 *
 * Does not go back to gaps below virgin_off.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "alloc.h"

/* One request to zero.  Not larger than the largest write: servers that have
 * to fall back to writing do it well up to there.
 */
#define ZERO_MAX (UINT64_C (32) << 20)

static uint64_t
min (uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

static uint64_t
max (uint64_t a, uint64_t b)
{
  return a > b ? a : b;
}

static void
give_back (struct alloc *a, uint64_t from, uint64_t to)
{
  int r;

  if (from >= to)
    return;
  r = backend_punch (a->file, from, to - from);
  if (r < 0)
    nbdkit_debug ("%s: could not give back %" PRIu64 " bytes that were "
                  "allocated ahead: %s", a->file->name, to - from,
                  strerror (-r));
}

/* Zero [FROM, TO), which is a hole.  0 or -errno; then nothing is left. */
static int
zero_hole (struct alloc *a, uint64_t from, uint64_t to)
{
  uint64_t off, n;
  int r = 0;

  for (off = from; r == 0 && off < to; off += n) {
    n = min (to - off, ZERO_MAX);
    r = a->file->ops->zero (a->file, off, n);
  }
  if (r == -ENOTSUP)
    return r;                   /* nothing was done */
  if (r == 0 && !a->ahead_probed) {
    a->ahead_probed = backend_hole_end (a->file, from, to) == to;
    if (!a->ahead_probed)
      r = -ENOTSUP;
  }
  if (r < 0)
    give_back (a, from, to);
  return r;
}

/* What a failed step means for the next one. */
static void
step_failed (struct alloc *a, uint64_t size, uint64_t align, int r)
{
  a->ahead_max = r == -ENOSPC && size / 4 >= align ? size / 4 : 0;
  nbdkit_debug ("%s: could not allocate %" PRIu64 " bytes ahead: %s%s",
                a->file->name, size, strerror (-r),
                a->ahead_max == 0 ? "; nothing is allocated ahead from now on"
                : "");
}

/* Can the storage do at all what is needed here?  LEN 0 asks. */
static bool
is_able (struct alloc *a)
{
  if (backend_punch (a->file, 0, 0) == 0)
    return true;
  nbdkit_debug ("%s: nothing is allocated ahead: the storage cannot give "
                "space back", a->file->name);
  a->ahead_max = 0;
  return false;
}

/* The end of a step for [OFF, END), which is as the hint says unless the
 * file, the refcount table, or a cluster in use ends it earlier.
 */
static uint64_t
plan (struct alloc *a, uint64_t from, uint64_t end,
      const struct alloc_growth *growth)
{
  const unsigned bits = a->geo->cluster_bits;
  const uint64_t align = max (growth->align, 1);
  uint64_t limit = min (a->file_len >> bits,
                        refcount_table_span (a->refcount)) << bits;
  uint64_t to = limit;

  if (min (growth->size, a->ahead_max) < limit - end)
    to = end + min (growth->size, a->ahead_max);
  if (to % align != 0)
    to += min (align - to % align, limit - to);
  if (a->refcount->overlap &&
      overlap_find (a->refcount->overlap, from, to - from) != 0)
    return from;
  return from + (refcount_free_run_locked (a->refcount, from >> bits,
                                           (to - from) >> bits) << bits);
}

void
alloc_ahead_locked (struct alloc *a, uint64_t off, uint64_t end,
                    const struct alloc_growth *growth)
{
  uint64_t from = max (off, a->virgin_end), to, hole;
  int r;

  if (a->ahead_max == 0 || off < a->virgin_off || end <= a->virgin_end ||
      off < a->ahead_resume || (!a->ahead_probed && !is_able (a)))
    return;
  to = plan (a, from, end, growth);
  if (to < end)
    return;

  /* Left over from somebody: not worth a question for each cluster. */
  hole = backend_hole_end (a->file, from, to) &
    ~(a->geo->cluster_size - 1);
  if (hole < end) {
    nbdkit_debug ("%s: no hole at offset %" PRIu64 ": nothing is allocated "
                  "ahead up to %" PRIu64, a->file->name, from, to);
    a->ahead_resume = to;
    return;
  }
  to = a->ahead_probed ? hole : end;
  r = zero_hole (a, from, to);
  if (r < 0)
    step_failed (a, to - from, growth->align, r);
  else {
    a->virgin_off = off;
    a->virgin_end = to;
  }
}

void
alloc_ahead_give_back_locked (struct alloc *a, uint64_t used_end)
{
  const uint64_t from = max (a->virgin_off, used_end);

  if (from < a->virgin_end) {
    nbdkit_debug ("%s: giving back what was allocated ahead at %" PRIu64
                  "-%" PRIu64, a->file->name, from, a->virgin_end);
    give_back (a, from, a->virgin_end);
    a->virgin_end = from;
  }
}
