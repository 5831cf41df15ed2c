/* SPDX-License-Identifier: BSD-3-Clause */
/* Block status: what is allocated, what reads as zeroes, over the whole
 * chain.  Looks at tables only, and at the holes of raw files.
 */

#include <config.h>

#include <errno.h>

#include "io.h"

int
io_extent_at (struct io *io, uint64_t off, uint64_t max_len, bool layer,
              bool probe_raw, uint64_t *len, unsigned *flags)
{
  struct map_run run;
  int r;

  r = map_lookup (io->map, off, max_len, false, &run);
  if (r < 0)
    return r;
  *len = run.len;
  switch (run.type) {
  case ENTRY_ZERO:
    *flags = IO_EXTENT_ZERO | IO_EXTENT_HOLE;
    return 0;
  case ENTRY_ZERO_ALLOC:
    *flags = IO_EXTENT_ZERO;
    return 0;
  case ENTRY_UNALLOCATED:
  case ENTRY_UNALLOC_ALLOC:
    r = backing_extent (io->backing, off, run.len, probe_raw, len, flags);
    if (layer)
      *flags |= IO_EXTENT_HOLE;
    return r;
  case ENTRY_DATA:
  case ENTRY_COMPRESSED:
    /* A write would have to allocate and copy where the cluster is
     * compressed or shared.
     */
    *flags = layer && !run.copied ? IO_EXTENT_HOLE : 0;
    return 0;
  case ENTRY_BROKEN:
    break;
  }
  *flags = 0;                   /* reading it will tell */
  return 0;
}

int
io_extents (struct io *io, uint64_t count, uint64_t off, bool layer,
            io_extent_fn *fn, void *opaque)
{
  unsigned flags, token = 0;
  uint64_t len;
  int r = 0;

  if (io->epoch)
    token = epoch_enter (io->epoch);
  while (r == 0 && count > 0) {
    r = io_extent_at (io, off, count, layer, true, &len, &flags);
    if (r == 0)
      r = fn (opaque, off, len, flags);
    off += len;
    count -= len;
  }
  if (io->epoch)
    epoch_leave (io->epoch, token);
  return r < 0 ? r : 0;
}

bool
io_reads_zero (struct io *io, uint64_t off, uint64_t len)
{
  unsigned flags;
  uint64_t n;

  while (len > 0 && off < io->size) {
    if (len > io->size - off)
      len = io->size - off;
    if (io_extent_at (io, off, len, false, false, &n, &flags) < 0 ||
        (flags & IO_EXTENT_ZERO) == 0)
      return false;
    off += n;
    len -= n;
  }
  return true;
}
