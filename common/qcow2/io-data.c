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

#include "crypt.h"
#include "io.h"

/* Bytes that are encrypted at once. */
#define CRYPT_STEP (1024 * 1024)

static int
read_host (struct io *io, void *buf, uint64_t len,
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
  if (r == 0 && io->crypt)
    r = crypt_decrypt (io->crypt, buf, len, guest_off, host_off);
  return r;
}

/* Read whole sectors around the range, and copy what is wanted. */
static int
read_unaligned (struct io *io, void *buf, uint64_t len,
                uint64_t guest_off, uint64_t host_off)
{
  const uint64_t before = host_off & (CRYPT_SECTOR - 1);
  const uint64_t whole = (before + len + CRYPT_SECTOR - 1)
    & ~(uint64_t) (CRYPT_SECTOR - 1);
  uint8_t *mem;
  int r;

  mem = malloc (whole);
  if (mem == NULL)
    return -ENOMEM;
  r = read_host (io, mem, whole, guest_off - before, host_off - before);
  if (r == 0)
    memcpy (buf, mem + before, len);
  free (mem);
  return r;
}

int
io_data_pread (struct io *io, void *buf, uint64_t len,
               uint64_t guest_off, uint64_t host_off)
{
  if (io->crypt && ((host_off | len) & (CRYPT_SECTOR - 1)))
    return read_unaligned (io, buf, len, guest_off, host_off);
  return read_host (io, buf, len, guest_off, host_off);
}

/* Take N bytes from the front of IOV. */
static void
gather (struct iovec **iov, uint8_t *dest, size_t n)
{
  size_t part;

  while (n > 0) {
    part = (*iov)->iov_len < n ? (*iov)->iov_len : n;
    memcpy (dest, (*iov)->iov_base, part);
    (*iov)->iov_base = (uint8_t *) (*iov)->iov_base + part;
    (*iov)->iov_len -= part;
    if ((*iov)->iov_len == 0)
      (*iov)++;
    dest += part;
    n -= part;
  }
}

/* The client's buffer must not change, so encryption is in a copy. */
static int
write_encrypted (struct io *io, struct iovec *iov, uint64_t len,
                 uint64_t guest_off, uint64_t host_off, unsigned flags)
{
  uint64_t n;
  uint8_t *mem;
  int r = 0;

  mem = malloc (len < CRYPT_STEP ? len : CRYPT_STEP);
  if (mem == NULL)
    return -ENOMEM;
  for (; r == 0 && len > 0; len -= n, guest_off += n, host_off += n) {
    n = len < CRYPT_STEP ? len : CRYPT_STEP;
    gather (&iov, mem, n);
    r = crypt_encrypt (io->crypt, mem, n, guest_off, host_off);
    if (r == 0)
      r = backend_pwrite (io->data, mem, n, host_off, flags);
  }
  free (mem);
  return r;
}

int
io_data_pwritev (struct io *io, struct iovec *iov, int iovcnt,
                 uint64_t len, uint64_t guest_off,
                 uint64_t host_off, unsigned flags)
{
  int r;

  if (io->crypt)
    r = write_encrypted (io, iov, len, guest_off, host_off, flags);
  else
    r = backend_pwritev (io->data, iov, iovcnt, host_off, flags);
  if (r < 0)
    return r;
  commit_data_written (io->commit);
  return 0;
}

/* Part of one sector: read, change, write.  The caller owns the sector. */
static int
patch_sector (struct io *io, const uint8_t *buf, uint64_t len,
              uint64_t guest_off, uint64_t host_off, unsigned flags)
{
  const uint64_t before = host_off & (CRYPT_SECTOR - 1);
  uint8_t sector[CRYPT_SECTOR];
  struct iovec iov = { .iov_base = sector, .iov_len = sizeof sector };
  int r;

  r = read_host (io, sector, sizeof sector, guest_off - before,
                 host_off - before);
  if (r < 0)
    return r;
  if (buf)
    memcpy (sector + before, buf, len);
  else
    memset (sector + before, 0, len);
  return io_data_pwritev (io, &iov, 1, sizeof sector, guest_off - before,
                          host_off - before, flags);
}

int
io_data_overwrite (struct io *io, const uint8_t *buf, uint64_t len,
                   uint64_t guest_off, uint64_t host_off, unsigned flags)
{
  struct inflight_range range;
  struct iovec iov;
  uint64_t n, in_sector;
  int r = 0;

  if (io->crypt == NULL && buf == NULL)
    return io_data_zero (io, len, guest_off, host_off);
  if (io->crypt == NULL) {
    iov.iov_base = (void *) buf;
    iov.iov_len = len;
    return io_data_pwritev (io, &iov, 1, len, guest_off, host_off, flags);
  }

  /* Sectors are changed as a whole, so writes to parts of one must wait
   * for each other.
   */
  inflight_begin (io->inflight, &range,
                  guest_off & ~(uint64_t) (CRYPT_SECTOR - 1),
                  (guest_off + len + CRYPT_SECTOR - 1)
                  & ~(uint64_t) (CRYPT_SECTOR - 1));
  for (; r == 0 && len > 0; len -= n, guest_off += n, host_off += n) {
    in_sector = host_off & (CRYPT_SECTOR - 1);
    n = CRYPT_SECTOR - in_sector < len ? CRYPT_SECTOR - in_sector : len;
    if (n < CRYPT_SECTOR)
      r = patch_sector (io, buf, n, guest_off, host_off, flags);
    else {
      n = len & ~(uint64_t) (CRYPT_SECTOR - 1);
      iov.iov_base = (void *) buf;
      iov.iov_len = n;
      r = buf ? io_data_pwritev (io, &iov, 1, n, guest_off, host_off, flags)
        : io_data_zero (io, n, guest_off, host_off);
    }
    if (buf)
      buf += n;
  }
  inflight_end (io->inflight, &range);
  return r;
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
