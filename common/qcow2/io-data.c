/* SPDX-License-Identifier: BSD-3-Clause */
/* Guest data on the host: the one place through which uncompressed guest
 * bytes pass, and where they are encrypted and decrypted.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "io.h"

int
io_data_pread (struct io *io, void *buf, uint64_t len,
               uint64_t guest_off, uint64_t host_off)
{
  int r;

  r = backend_pread (io->data, buf, len, host_off);
  if (r == -ENODATA) {
    nbdkit_error ("%s: the cluster of guest offset 0x%" PRIx64
                  " at host offset 0x%" PRIx64 " lies beyond the end of the "
                  "file: the file is truncated", io->name, guest_off,
                  host_off);
    return -EIO;
  }
  return r;
}

int
io_data_pwritev (struct io *io, struct iovec *iov, int iovcnt,
                 uint64_t len, uint64_t guest_off,
                 uint64_t host_off, unsigned flags)
{
  int r;

  (void) len;
  (void) guest_off;
  r = backend_pwritev (io->data, iov, iovcnt, host_off, flags);
  if (r < 0)
    return r;
  commit_data_written (io->commit);
  return 0;
}

static const uint8_t zeroes[IO_ZEROES];

int
io_data_zero_iov (struct iovec *iov, int max, uint64_t len)
{
  int n = 0;

  for (; len > 0 && n < max; ++n) {
    iov[n].iov_base = (void *) zeroes;
    iov[n].iov_len = len < IO_ZEROES ? len : IO_ZEROES;
    len -= iov[n].iov_len;
  }
  return n;
}

int
io_data_zero (struct io *io, uint64_t len, uint64_t guest_off,
              uint64_t host_off)
{
  struct iovec iov;
  uint64_t n;
  int r;

  /* For small ranges a write is cheaper than changing the host's extents;
   * and zeroes of an encrypted disk are not zeroes on the host.
   */
  if (len > IO_ZEROES && io->crypt == NULL) {
    r = backend_zero (io->data, host_off, len);
    if (r == 0)
      commit_data_written (io->commit);
    return r;
  }
  for (; len > 0; len -= n, guest_off += n, host_off += n) {
    n = len < IO_ZEROES ? len : IO_ZEROES;
    io_data_zero_iov (&iov, 1, n);
    r = io_data_pwritev (io, &iov, 1, n, guest_off, host_off, 0);
    if (r < 0)
      return r;
  }
  return 0;
}
