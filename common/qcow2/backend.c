/* SPDX-License-Identifier: BSD-3-Clause */
/* What every backend can do once it has the primitive operations: zero a
 * range by whatever means there are, reserve storage, find the end of a
 * hole, read past the end of a raw disk.
 *
 * Keeps no state and takes no locks.  Does not cache, and does not decide
 * when something becomes stable.
 */

#include <config.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "backend.h"

#define ZERO_BUF_SIZE   (64 * 1024)
#define ZERO_IOVS       32

/* The most pieces of a hole that are looked at. */
#define MAX_EXTENTS     64

static const uint8_t zero_buf[ZERO_BUF_SIZE]
  __attribute__ ((__aligned__ (4096)));

/* One buffer many times over in each call: 2 MiB a call at the price of
 * 64 KiB of memory.
 */
static int
write_zeroes (struct backend *b, uint64_t off, uint64_t len)
{
  while (len > 0) {
    struct iovec iov[ZERO_IOVS];
    uint64_t done = 0;
    int i, r;

    for (i = 0; i < ZERO_IOVS && done < len; ++i) {
      iov[i].iov_base = (void *) zero_buf;
      iov[i].iov_len = len - done < ZERO_BUF_SIZE ? len - done : ZERO_BUF_SIZE;
      done += iov[i].iov_len;
    }
    r = backend_pwritev (b, iov, i, off, 0);
    if (r < 0)
      return r;
    off += done;
    len -= done;
  }
  return 0;
}

int
backend_zero (struct backend *b, uint64_t off, uint64_t len)
{
  int r;

  if (len == 0)
    return 0;
  r = b->ops->zero (b, off, len);
  if (r != -ENOTSUP)
    return r;
  return write_zeroes (b, off, len);
}

int
backend_reserve (struct backend *b, uint64_t off, uint64_t len)
{
  int r = -ENOTSUP;

  if (b->ops->allocate && len > 0)
    r = b->ops->allocate (b, off, len);
  return r == -ENOTSUP ? 0 : r;
}

uint64_t
backend_hole_end (struct backend *b, uint64_t from, uint64_t to)
{
  enum backend_extent_type type;
  uint64_t len;
  unsigned i;

  for (i = 0; b->ops->extent && i < MAX_EXTENTS && from < to; ++i) {
    if (b->ops->extent (b, from, to - from, &type, &len) < 0 ||
        type != BACKEND_HOLE || len == 0)
      break;
    from += len;
  }
  return from;
}

int
backend_pread_padded (struct backend *b, void *buf, size_t len, uint64_t off)
{
  int64_t size;
  size_t n;
  int r;

  if (len == 0)
    return 0;
  r = backend_pread (b, buf, len, off);
  if (r != -ENODATA)
    return r;

  size = backend_size (b);
  if (size < 0)
    return (int) size;
  n = off >= (uint64_t) size ? 0
      : (uint64_t) size - off < len ? (uint64_t) size - off : len;
  if (n > 0) {
    r = backend_pread (b, buf, n, off);
    /* The file shrank under us: what is gone is not zero. */
    if (r < 0)
      return r == -ENODATA ? -EIO : r;
  }
  memset ((uint8_t *) buf + n, 0, len - n);
  return 0;
}
