/* SPDX-License-Identifier: BSD-3-Clause */
/* Zero and trim: by changing table entries where that is possible.
 *
 * What reads as zero already is left alone, so that zeroing empty space
 * costs nothing.  A cluster that is given up is never uncovered: where the
 * backing chain has something, it becomes a zero cluster, not an
 * unallocated one.
 *
 * Parts of a (sub)cluster at either end are written as zeroes by zero, and
 * left alone by trim.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "io.h"

/* Entries changed in one step: bounds the time under the lock, and what a
 * step adds to the cache.
 */
#define MAX_STEP_CLUSTERS 16384

/* First and last (sub)cluster border inside [OFF, OFF + COUNT); the end of
 * the disk counts as a border.
 */
static void
whole_part (const struct io *io, uint64_t off, uint64_t count,
            uint64_t *start, uint64_t *end)
{
  const uint64_t unit = io->geo->subcluster_size;

  *start = (off + unit - 1) & ~(unit - 1);
  *end = (off + count) & ~(unit - 1);
  if (off + count == io->size)
    *end = io->size;
  if (*end <= *start)
    *start = *end = off + count;
}

/* Does the backing chain have anything at OFF?  *LEN is clipped to where
 * the answer holds, but not to less than a (sub)cluster.
 */
static bool
backing_shows (const struct io *io, uint64_t off, uint64_t *len)
{
  const uint64_t unit = io->geo->subcluster_size;
  uint64_t end;

  if (io->backing == NULL || off >= io->backing->size)
    return false;
  end = (io->backing->size + unit - 1) & ~(unit - 1);
  if (*len > end - off)
    *len = end - off;
  return true;
}

enum change { CHANGE_ZERO_FREE, CHANGE_ZERO_KEEP, CHANGE_UNMAP };

struct step {
  uint64_t off, len;
};

static int
prepare_step (struct io *io, void *opaque)
{
  struct step *s = opaque;

  return map_prepare_locked (io->map, s->off, s->len);
}

/* Is either end of [OFF, OFF + LEN) inside a compressed cluster?  Its
 * subclusters cannot be changed one by one.
 */
static int
cuts_compressed (struct io *io, uint64_t off, uint64_t len, bool *cuts)
{
  const struct geometry *geo = io->geo;
  const uint64_t end = off + len;
  struct map_run run;
  int r = 0;

  *cuts = false;
  if (!geo->extended_l2 || len == 0)
    return 0;
  if (geometry_in_cluster (geo, off) != 0) {
    r = map_lookup (io->map, off, 1, false, &run);
    *cuts = r == 0 && run.type == ENTRY_COMPRESSED;
  }
  if (r == 0 && !*cuts && geometry_in_cluster (geo, end) != 0 &&
      end != io->size) {
    r = map_lookup (io->map, end - 1, 1, false, &run);
    *cuts = r == 0 && run.type == ENTRY_COMPRESSED;
  }
  return r;
}

/* Change the entries of [OFF, OFF + LEN), rounded out at the end of the
 * disk; the host space of an external data file is treated here as well,
 * since it is not refcounted.  1: nothing was done, since a cluster of
 * which this is a part was stored compressed meanwhile.
 */
static int
change_owned (struct io *io, uint64_t off, uint64_t len, enum change change)
{
  const uint64_t unit = io->geo->subcluster_size;
  struct step step = { .off = off, .len = len };
  uint64_t done, rounded = (len + unit - 1) & ~(unit - 1);
  bool cuts;
  int r;

  r = cuts_compressed (io, off, len, &cuts);
  if (r < 0 || cuts)
    return r < 0 ? r : 1;
  r = io_with_alloc (io, prepare_step, &step);
  if (r < 0)
    return r;
  {
    WRITE_SCOPE (io->map->meta);

    if (change == CHANGE_UNMAP)
      r = map_unmap_locked (io->map, off, rounded, &done);
    else
      r = map_set_zero_locked (io->map, off, rounded,
                               change == CHANGE_ZERO_KEEP, &done);
  }
  if (r == 0 && io->geo->data_file_raw)
    r = io_data_zero (io, len, off, off);
  /* After a crash the entry may be the old one, and what a hole decrypts to
   * is neither old nor zero.
   */
  else if (r == 0 && io->geo->has_data_file && change != CHANGE_ZERO_KEEP &&
           io->crypt == NULL && io->alloc->discard &&
           backend_punch (io->data, off, len) == 0)
    commit_data_written (io->commit);
  return r;
}

/* 1: the mapping has changed, look it up again. */
static int
change_run (struct io *io, uint64_t off, uint64_t len, enum change change)
{
  struct inflight_range range;
  uint64_t n, max = (uint64_t) MAX_STEP_CLUSTERS << io->geo->cluster_bits;
  int r = 0;

  for (; r == 0 && len > 0; off += n, len -= n) {
    n = len < max ? len : max;
    if (commit_wanted (io->commit)) {
      r = commit_flush (io->commit);
      if (r < 0)
        return r;
    }
    inflight_begin (io->inflight, &range,
                    geometry_cluster_start (io->geo, off),
                    geometry_cluster_end (io->geo, off + n));
    r = change_owned (io, off, n, change);
    inflight_end (io->inflight, &range);
  }
  return r;
}

/* Zero RUN at OFF, not zero as it is.  1: look it up again. */
static int
zero_run (struct io *io, uint64_t off, const struct map_run *run,
          unsigned flags, const struct io_hints *hints)
{
  const struct geometry *geo = io->geo;
  uint64_t len = run->len;
  bool may_trim = flags & IO_MAY_TRIM, stable, cuts = false;
  int r;

  if (run->type == ENTRY_COMPRESSED) {
    r = cuts_compressed (io, off, len, &cuts);
    if (r < 0)
      return r;
  }
  if (cuts)
    return io_write_range (io, NULL, len, off, 0, hints, &stable);

  if (geo->has_zero_flag)
    return change_run (io, off, len,
                       may_trim ? CHANGE_ZERO_FREE : CHANGE_ZERO_KEEP);

  /* Version 2 has no zero clusters. */
  if (!backing_shows (io, off, &len) && len == run->len &&
      (may_trim || run->type != ENTRY_DATA))
    return change_run (io, off, len, CHANGE_UNMAP);
  return io_write_range (io, NULL, run->len, off, 0, hints, &stable);
}

/* How many bytes of RUN at OFF are to be left as they are, since they read
 * as zeroes?  If none: RUN is clipped to what is not zero.
 */
static int
zero_already (struct io *io, uint64_t off, struct map_run *run,
              unsigned flags, uint64_t *skip)
{
  const uint64_t unit = io->geo->subcluster_size;
  unsigned extent;
  uint64_t n;
  int r;

  *skip = 0;
  switch (run->type) {
  case ENTRY_ZERO:
    *skip = run->len;
    return 0;
  case ENTRY_ZERO_ALLOC:
    if ((flags & IO_MAY_TRIM) == 0)
      *skip = run->len;
    return 0;
  case ENTRY_UNALLOCATED:
  case ENTRY_UNALLOC_ALLOC:
    break;
  case ENTRY_BROKEN:
    return -EIO;
  default:
    return 0;
  }
  r = io_extent_at (io, off, run->len, false, false, &n, &extent);
  if (r < 0)
    return r;
  if (extent & IO_EXTENT_ZERO)
    *skip = n < run->len ? n & ~(unit - 1) : n;
  if (*skip == 0 && n < run->len)
    run->len = (n + unit - 1) & ~(unit - 1);
  return 0;
}

int
io_zero_range (struct io *io, uint64_t count, uint64_t off, unsigned flags,
               const struct io_hints *hints)
{
  struct map_run run;
  uint64_t skip = 0;
  int r;

  for (; count > 0; off += run.len, count -= run.len) {
    r = map_lookup (io->map, off, count, false, &run);
    if (r == 0)
      r = zero_already (io, off, &run, flags, &skip);
    if (r < 0)
      return r;
    if (run.len > count)
      run.len = count;
    if (skip > 0)
      run.len = skip;
    else
      r = zero_run (io, off, &run, flags, hints);
    if (r < 0)
      return r;
    if (r == 1)
      run.len = 0;
  }
  return 0;
}

/* A part of a (sub)cluster. */
static int
zero_edge (struct io *io, uint64_t off, uint64_t end,
           const struct io_hints *hints)
{
  bool stable;

  if (off == end || io_reads_zero (io, off, end - off))
    return 0;
  return io_write_range (io, NULL, end - off, off, 0, hints, &stable);
}

/* Can this be done without writing data? */
static bool
is_fast (struct io *io, uint64_t off, uint64_t end,
         uint64_t start, uint64_t stop, unsigned flags)
{
  bool cuts;

  if (!io_reads_zero (io, off, start - off) ||
      !io_reads_zero (io, stop, end - stop))
    return false;
  if (io_reads_zero (io, start, stop - start))
    return true;
  if (io->geo->data_file_raw ||
      cuts_compressed (io, start, stop - start, &cuts) < 0 || cuts)
    return false;
  return io->geo->has_zero_flag ||
    ((flags & IO_MAY_TRIM) && io->backing == NULL);
}

int
io_zero (struct io *io, uint64_t count, uint64_t off, unsigned flags,
         const struct io_hints *hints)
{
  struct io_change change;
  uint64_t start, end;
  unsigned tries = 0;
  int r;

  if (!io->writable)
    return -EROFS;
  whole_part (io, off, count, &start, &end);
  if (start > off + count)
    start = off + count;
  if ((flags & IO_FAST_ZERO) &&
      !is_fast (io, off, off + count, start, end, flags))
    return -ENOTSUP;

  do {
    r = io_begin_change (io, off, count, &change);
    if (r < 0)
      return r;
    r = zero_edge (io, off, start, hints);
    if (r == 0 && end > start)
      r = io_zero_range (io, end - start, start, flags, hints);
    if (r == 0)
      r = zero_edge (io, end, off + count, hints);
    r = io_end_change (io, &change, r, flags & IO_FUA, false);
  } while (io_try_again (io, r, &tries));
  return r;
}

/* Trim RUN at OFF, of which LEN bytes may be handled at once.  1: look it
 * up again.
 */
static int
trim_run (struct io *io, uint64_t off, uint64_t *len,
          const struct map_run *run)
{
  const struct geometry *geo = io->geo;
  bool cuts;
  int r;

  switch (run->type) {
  case ENTRY_UNALLOCATED:
  case ENTRY_ZERO:
    return 0;
  case ENTRY_BROKEN:
    return -EIO;
  default:
    break;
  }
  if (geo->data_file_raw) {     /* the raw view must stay the same */
    if (io->crypt == NULL && backend_punch (io->data, off, *len) == 0)
      commit_data_written (io->commit);
    return 0;
  }
  if (run->type == ENTRY_COMPRESSED) {
    r = cuts_compressed (io, off, *len, &cuts);
    if (r < 0 || cuts)
      return r;
  }
  /* In this order: a run that ends where the backing file does would cut a
   * compressed cluster, each time it is looked up.
   */
  if (geo->extended_l2 || backing_shows (io, off, len))
    return geo->has_zero_flag
      ? change_run (io, off, *len, CHANGE_ZERO_FREE) : 0;
  return change_run (io, off, *len, CHANGE_UNMAP);
}

static int
trim_range (struct io *io, uint64_t start, uint64_t end)
{
  struct map_run run;
  uint64_t len;
  int r = 0;

  for (; r == 0 && start < end; start += len) {
    r = map_lookup (io->map, start, end - start, false, &run);
    len = run.len;
    if (r == 0)
      r = trim_run (io, start, &len, &run);
    if (r == 1)
      r = len = 0;
  }
  return r;
}

int
io_trim (struct io *io, uint64_t count, uint64_t off, unsigned flags)
{
  struct io_change change;
  uint64_t start, end;
  unsigned tries = 0;
  int r;

  whole_part (io, off, count, &start, &end);
  do {
    r = io_begin_change (io, off, count, &change);
    if (r < 0)
      return r;
    r = trim_range (io, start, end);
    r = io_end_change (io, &change, r, flags & IO_FUA, false);
  } while (io_try_again (io, r, &tries));
  return r;
}
