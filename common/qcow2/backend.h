/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the bytes of an image (or of its data file, or of a raw backing
 * file) are.  Implementations: backend-file.c, backend-nbd.c; in the
 * tests memory, crash and fault injection.
 *
 * All calls may be made from several threads at once.  All return 0 or
 * -errno, never short: EINTR and short transfers are handled inside.
 * Offsets and lengths are in bytes, with no alignment.
 * I/O errors are logged once here (nbdkit_error, naming file and offset);
 * -ENOTSUP and -ENOSPC are not logged by zero, punch, truncate, grow and
 * allocate, since callers have fallbacks.
 */

#ifndef BACKEND_H
#define BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct backend;

#define BACKEND_FUA     1       /* pwritev: stable when it returns */

/* backend_extent: what FILE knows of a range. */
enum backend_extent_type {
  BACKEND_DATA,
  BACKEND_HOLE,                 /* not allocated, reads as zeroes */
};

struct backend_ops {
  /* Read exactly LEN bytes.  Bytes at and beyond the end of the file:
   * -ENODATA, not logged (callers know what they may expect there).
   */
  int (*pread) (struct backend *b, void *buf, size_t len, uint64_t off);

  /* IOV is consumed (its elements may be changed).  FLAGS: BACKEND_FUA. */
  int (*pwritev) (struct backend *b, struct iovec *iov, int iovcnt,
                  uint64_t off, unsigned flags);

  /* Make all completed writes stable.  Only commit.c, and admin code
   * through commit.h, call it.
   */
  int (*flush) (struct backend *b);

  /* Make the range read as zeroes and stay allocated.  -ENOTSUP: not
   * possible without writing zeroes.
   */
  int (*zero) (struct backend *b, uint64_t off, uint64_t len);

  /* Give the range back to the host; it reads as zeroes or as before.
   * -ENOTSUP, other errors may be ignored by the caller.
   */
  int (*punch) (struct backend *b, uint64_t off, uint64_t len);

  /* Set the length of the file.  ALLOCATE: when growing, allocate the new
   * space (fallocate).  The new space reads as zeroes.  -ENOTSUP when
   * the length is fixed (block device, NBD) or cannot be allocated;
   * -ENOSPC, -EFBIG.
   */
  int (*truncate) (struct backend *b, uint64_t len, bool allocate);

  /* The same, but never make the file shorter, whoever writes beyond its
   * end meanwhile.  NULL = truncate is used.
   */
  int (*grow) (struct backend *b, uint64_t len, bool allocate);

  /* The range, which is in the file, has storage afterwards, and reads as
   * before.  -ENOTSUP; -ENOSPC: a part may have got it.  NULL = cannot.
   */
  int (*allocate) (struct backend *b, uint64_t off, uint64_t len);

  /* Give back storage in the range that was allocated, by truncate, grow or
   * allocate, and never written or zeroed.  It reads as before.  Nobody
   * writes meanwhile.  NULL = nothing to do.
   */
  void (*unreserve) (struct backend *b, uint64_t off, uint64_t len);

  /* Current length, cached where it cannot change behind our back.
   * Negative: -errno.
   */
  int64_t (*size) (struct backend *b);

  /* Type of the range that starts at OFF and its length, at most LEN.
   * NULL = all is data.
   */
  int (*extent) (struct backend *b, uint64_t off, uint64_t len,
                 enum backend_extent_type *type, uint64_t *extent_len);

  /* Ask for the range to be read soon.  NULL = nothing to do. */
  void (*prefetch) (struct backend *b, uint64_t off, uint64_t len);

  /* Ask for what was written to go to the disk soon, so that a later flush
   * has less to do.  Promises nothing.  NULL = nothing to do.
   */
  void (*write_behind) (struct backend *b);

  /* Close and free.  Does not flush. */
  void (*close) (struct backend *b);
};

struct backend {
  const struct backend_ops *ops;
  char *name;                   /* for messages; owned by the backend */
  bool writable;
  bool fixed_size;              /* truncate cannot work */
  bool exclusive;               /* locked: nobody else changes it */
  uint32_t min_io;              /* smallest unit the storage wants: 1 */
};

static inline int __attribute__ ((__warn_unused_result__))
backend_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  return b->ops->pread (b, buf, len, off);
}

static inline int __attribute__ ((__warn_unused_result__))
backend_pwritev (struct backend *b, struct iovec *iov, int iovcnt,
                 uint64_t off, unsigned flags)
{
  return b->ops->pwritev (b, iov, iovcnt, off, flags);
}

static inline int __attribute__ ((__warn_unused_result__))
backend_pwrite (struct backend *b, const void *buf, size_t len,
                uint64_t off, unsigned flags)
{
  struct iovec iov = { .iov_base = (void *) buf, .iov_len = len };

  return b->ops->pwritev (b, &iov, 1, off, flags);
}

static inline int __attribute__ ((__warn_unused_result__))
backend_flush (struct backend *b)
{
  return b->ops->flush (b);
}

static inline int __attribute__ ((__warn_unused_result__))
backend_truncate (struct backend *b, uint64_t len, bool allocate)
{
  return b->ops->truncate (b, len, allocate);
}

static inline int __attribute__ ((__warn_unused_result__))
backend_grow (struct backend *b, uint64_t len, bool allocate)
{
  if (b->ops->grow)
    return b->ops->grow (b, len, allocate);
  return b->ops->truncate (b, len, allocate);
}

static inline int64_t __attribute__ ((__warn_unused_result__))
backend_size (struct backend *b)
{
  return b->ops->size (b);
}

static inline int __attribute__ ((__warn_unused_result__))
backend_punch (struct backend *b, uint64_t off, uint64_t len)
{
  return b->ops->punch (b, off, len);
}

static inline void
backend_close (struct backend *b)
{
  if (b)
    b->ops->close (b);
}

/* The range reads as zeroes afterwards: the storage's own way, or by
 * writing zeroes.  (backend.c)
 */
extern int backend_zero (struct backend *b, uint64_t off, uint64_t len)
  __attribute__ ((__warn_unused_result__));

/* Storage for a range in the file, if that can be had without writing:
 * -ENOSPC is an answer, -ENOTSUP is none, and 0 is returned.  (backend.c)
 */
extern int backend_reserve (struct backend *b, uint64_t off, uint64_t len)
  __attribute__ ((__warn_unused_result__));

/* The end of the hole that begins at FROM, at most TO: FROM if there is none,
 * or if the storage does not say.  A hole that is in many pieces may be cut
 * short.  (backend.c)
 */
extern uint64_t backend_hole_end (struct backend *b, uint64_t from,
                                  uint64_t to);

/* Like pread, but bytes beyond the end of the file read as zeroes. For
 * raw backing files, whose last sector may be short. (backend.c)
 */
extern int backend_pread_padded (struct backend *b, void *buf, size_t len,
                                 uint64_t off)
  __attribute__ ((__warn_unused_result__));

#endif /* BACKEND_H */
