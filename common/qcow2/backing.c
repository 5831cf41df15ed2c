/* SPDX-License-Identifier: BSD-3-Clause */
/* Read-through to the layer below, with the length of each layer kept
 * apart: a layer that is shorter than the one above reads as zeroes beyond
 * its end, even if the layers below it are longer.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "backing.h"
#include "io.h"

int
backing_pread (struct backing *b, void *buf, uint64_t len, uint64_t off)
{
  uint64_t n = 0;
  int r = 0;

  if (b && off < b->size)
    n = len < b->size - off ? len : b->size - off;
  if (n > 0) {
    if (b->io)
      r = io_read_range (b->io, buf, n, off);
    else
      r = backend_pread_padded (b->raw, buf, n, off);
  }
  if (r == 0 && n < len)
    memset ((uint8_t *) buf + n, 0, len - n);
  return r;
}

int
backing_extent (struct backing *b, uint64_t off, uint64_t max_len,
                bool probe_raw, uint64_t *len, unsigned *flags)
{
  enum backend_extent_type type;
  int r;

  *len = max_len;
  *flags = IO_EXTENT_ZERO | IO_EXTENT_HOLE;
  if (b == NULL || off >= b->size)
    return 0;
  if (max_len > b->size - off)
    max_len = b->size - off;
  if (b->io)
    return io_extent_at (b->io, off, max_len, false, probe_raw, len, flags);

  *len = max_len;
  *flags = 0;
  if (!probe_raw || b->raw->ops->extent == NULL)
    return 0;
  r = b->raw->ops->extent (b->raw, off, max_len, &type, len);
  if (r == 0 && type == BACKEND_HOLE)
    *flags = IO_EXTENT_ZERO | IO_EXTENT_HOLE;
  return r;
}

int
backing_cache (struct backing *b, uint64_t off, uint64_t len)
{
  if (b == NULL || off >= b->size)
    return 0;
  if (len > b->size - off)
    len = b->size - off;
  if (b->io)
    return io_cache (b->io, len, off);
  if (b->raw->ops->prefetch)
    b->raw->ops->prefetch (b->raw, off, len);
  return 0;
}
