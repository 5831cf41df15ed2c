/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads: one pread per contiguous run, straight into the client's buffer.
 *
 * No lock is held during I/O.  A run that was looked up stays valid until
 * the request ends, even if it is unmapped meanwhile: its clusters are not
 * reused before (I4, epoch.h).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "io.h"

static int
read_run (struct io *io, void *buf, uint64_t off, const struct map_run *run)
{
  switch (run->type) {
  case ENTRY_ZERO:
  case ENTRY_ZERO_ALLOC:
    memset (buf, 0, run->len);
    return 0;
  case ENTRY_UNALLOCATED:
  case ENTRY_UNALLOC_ALLOC:
    return backing_pread (io->backing, buf, run->len, off);
  case ENTRY_DATA:
    return io_data_pread (io, buf, run->len, off, run->host_off);
  case ENTRY_COMPRESSED:
    return io_read_compressed (io, buf, run->len, off, run);
  case ENTRY_BROKEN:
    break;
  }
  return -EIO;                  /* map_lookup has logged it */
}

int
io_read_range (struct io *io, void *buf, uint64_t count, uint64_t off)
{
  struct map_run run;
  uint8_t *p = buf;
  int r;

  while (count > 0) {
    r = map_lookup (io->map, off, count, false, &run);
    if (r == 0)
      r = read_run (io, p, off, &run);
    if (r < 0)
      return r;
    p += run.len;
    off += run.len;
    count -= run.len;
  }
  return 0;
}

int
io_pread (struct io *io, void *buf, uint64_t count, uint64_t off)
{
  unsigned token;
  int r;

  if (io->epoch == NULL)
    return io_read_range (io, buf, count, off);
  token = epoch_enter (io->epoch);
  r = io_read_range (io, buf, count, off);
  epoch_leave (io->epoch, token);
  return r;
}

static int
cache_run (struct io *io, uint64_t off, const struct map_run *run)
{
  struct backend *b = NULL;
  uint64_t len = run->len;

  switch (run->type) {
  case ENTRY_UNALLOCATED:
  case ENTRY_UNALLOC_ALLOC:
    return backing_cache (io->backing, off, run->len);
  case ENTRY_DATA:
    b = io->data;
    break;
  case ENTRY_COMPRESSED:
    b = io->file;
    len = run->comp_len;
    break;
  default:
    break;
  }
  if (b && b->ops->prefetch)
    b->ops->prefetch (b, run->host_off, len);
  return 0;
}

int
io_cache (struct io *io, uint64_t count, uint64_t off)
{
  struct map_run run;
  int r;

  while (count > 0) {
    r = map_lookup (io->map, off, count, false, &run);
    if (r == 0)
      r = cache_run (io, off, &run);
    if (r < 0)
      return r;
    off += run.len;
    count -= run.len;
  }
  return 0;
}
