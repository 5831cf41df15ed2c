/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes: in place where the cluster is this image's own, else handed to
 * io-cow.c (allocate and copy) or io-compress.c.
 *
 * An overwrite in place takes no exclusive lock and touches no metadata.
 * It needs no inflight range: whatever changes the mapping of its cluster
 * meanwhile overlaps it, so either order is right; and the old cluster is
 * not reused before this request ends (I4).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "bitmaps.h"
#include "io.h"

/* How often a request that found no space is begun again.  Requests that
 * run beside it may still hold space back the first time.
 */
#define MAX_TRIES 3

int
io_begin_change (struct io *io, uint64_t off, uint64_t len,
                 struct io_change *change)
{
  int r;

  if (!io->writable)
    return -EROFS;
  r = commit_announce (io->commit);
  if (r == 0 && commit_wanted (io->commit))
    r = commit_flush (io->commit);
  if (r < 0)
    return r;
  if (io->bitmaps)
    bitmaps_mark (io->bitmaps, off, len);
  change->token = epoch_enter (io->epoch);
  return 0;
}

int
io_end_change (struct io *io, struct io_change *change, int r,
               bool fua, bool stable)
{
  epoch_leave (io->epoch, change->token);
  if (r == 0 && fua && (!stable || commit_is_unstable (io->commit)))
    r = commit_flush (io->commit);
  if (r == 0 && commit_has_failed (io->commit))
    r = -EIO;
  return r;
}

bool
io_try_again (struct io *io, int r, unsigned *tries)
{
  if (r != -ENOSPC || (*tries)++ == MAX_TRIES || !io->writable)
    return false;
  {
    READ_SCOPE (io->map->meta);

    if (!alloc_has_deferred (io->alloc))
      return false;
  }
  return commit_flush (io->commit) == 0;
}

int
io_with_alloc (struct io *io, io_alloc_fn *fn, void *opaque)
{
  int r;

  do {
    {
      WRITE_SCOPE (io->map->meta);
      r = fn (io, opaque);
    }
    if (r != -EAGAIN)
      break;
    r = commit_grow_reftable (io->commit);
  } while (r == 0);
  if (r == -EUCLEAN) {
    commit_mark_corrupt (io->commit);
    r = -EIO;
  }
  return r;
}

int
io_check_overlap (struct io *io, uint64_t off, const struct map_run *run)
{
  if (run->overlap == 0)
    return 0;
  nbdkit_error ("%s: the cluster of guest offset 0x%" PRIx64 " at host "
                "offset 0x%" PRIx64 " is also used as %s", io->name, off,
                run->host_off, overlap_kind_name (run->overlap));
  commit_mark_corrupt (io->commit);
  return -EIO;
}

/* Overwrite where the data is.  BUF NULL writes zeroes. */
static int
write_in_place (struct io *io, const uint8_t *buf, uint64_t off,
                const struct map_run *run, unsigned flags)
{
  int r;

  r = io_check_overlap (io, off, run);
  if (r < 0)
    return r;
  r = io_data_overwrite (io, buf, run->len, off, run->host_off,
                         flags & IO_FUA ? BACKEND_FUA : 0);
  if (r == 0 || (flags & IO_FUA) == 0 || r == -ENOMEM)
    return r;
  /* No space: was it the write itself, or what the host had put off? */
  if (r == -ENOSPC &&
      io_data_overwrite (io, buf, run->len, off, run->host_off, 0) < 0)
    return r;
  return commit_fua_failed (io->commit, r);
}

int
io_write_range (struct io *io, const uint8_t *buf, uint64_t count,
                uint64_t off, unsigned flags, const struct io_hints *hints,
                bool *stable)
{
  struct map_run run;
  uint64_t done;
  int r;

  *stable = buf != NULL && (flags & IO_FUA);
  while (count > 0) {
    r = map_lookup (io->map, off, count, true, &run);
    if (r < 0)
      return r;
    if (run.type == ENTRY_BROKEN)
      return -EIO;
    if (run.type == ENTRY_DATA && run.copied) {
      r = write_in_place (io, buf, off, &run, flags);
      done = run.len;
    }
    else {
      *stable = false;
      r = io_write_alloc (io, buf, count, off, hints, &done);
    }
    if (r < 0)
      return r;
    if (buf)
      buf += done;
    off += done;
    count -= done;
  }
  return 0;
}

static bool
is_zero (const uint8_t *buf, uint64_t len)
{
  return len == 0 ||
    (buf[0] == 0 && (len == 1 || memcmp (buf, buf + 1, len - 1) == 0));
}

/* Length of the part at OFF that is treated as one: a whole cluster (the
 * last of the disk may be short), or what lies before the next one.
 */
static uint64_t
part_len (const struct io *io, uint64_t off, uint64_t count, bool *whole)
{
  uint64_t room = io->geo->cluster_size - geometry_in_cluster (io->geo, off);

  if (room > io->size - off)
    room = io->size - off;
  *whole = geometry_in_cluster (io->geo, off) == 0 && count >= room;
  return count < room ? count : room;
}

/* Give a whole cluster its special treatment.  1: done, 0: it is to be
 * written as it is.
 */
static int
write_special (struct io *io, const uint8_t *buf, uint64_t len, uint64_t off,
               const struct io_hints *hints)
{
  bool stored = false;
  int r;

  if (io->detect_zeroes && is_zero (buf, len)) {
    r = io_zero_range (io, len, off, IO_MAY_TRIM, hints);
    return r < 0 ? r : 1;
  }
  if (hints && hints->compress) {
    r = io_write_compressed (io, buf, len, off, hints, &stored);
    return r < 0 ? r : stored;
  }
  return 0;
}

/* Cluster by cluster; neighbours without a special treatment go together. */
static int
write_parts (struct io *io, const uint8_t *buf, uint64_t count, uint64_t off,
             const struct io_hints *hints)
{
  uint64_t len, pos = 0, plain = 0;     /* PLAIN bytes before POS wait */
  bool whole, unused;
  int r, special;

  while (pos < count || plain > 0) {
    special = 1;                /* at the end: write what waits */
    len = 0;
    if (pos < count) {
      len = part_len (io, off + pos, count - pos, &whole);
      special = !whole ? 0
        : write_special (io, buf + pos, len, off + pos, hints);
      if (special < 0)
        return special;
    }
    if (special == 0)
      plain += len;
    else if (plain > 0) {
      r = io_write_range (io, buf + pos - plain, plain, off + pos - plain,
                          0, hints, &unused);
      if (r < 0)
        return r;
      plain = 0;
    }
    pos += len;
  }
  return 0;
}

int
io_pwrite (struct io *io, const void *buf, uint64_t count, uint64_t off,
           unsigned flags, const struct io_hints *hints)
{
  struct io_change change;
  bool compress = hints && hints->compress;
  bool stable = false;
  unsigned tries = 0;
  int r;

  if (compress) {
    r = io_check_compress (io, &hints->codec);
    if (r < 0)
      return r;
  }
  do {
    r = io_begin_change (io, off, count, &change);
    if (r < 0)
      return r;
    if (compress || io->detect_zeroes)
      r = write_parts (io, buf, count, off, hints);
    else
      r = io_write_range (io, buf, count, off, flags, hints, &stable);
    r = io_end_change (io, &change, r, flags & IO_FUA, stable);
  } while (io_try_again (io, r, &tries));
  return r;
}

int
io_flush (struct io *io)
{
  if (io->commit == NULL || !io->writable)
    return 0;
  return commit_flush (io->commit);
}
