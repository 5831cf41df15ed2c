/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend: a regular file or a block device, by plain system calls.
 *
 * Invariants:
 *  - A call that returns 0 did all of what it was asked; transfers are
 *    never short, whatever the kernel's limits per call.
 *  - The cached length of a regular file that is open for writing equals
 *    fstat's: each change of the length is followed by an fstat under the
 *    lock, so of two changes that race the later look wins.
 *  - Growing never makes the file shorter: what writes beyond the cached
 *    length holds LOCK_GROWTH shared, and growing (ftruncate, after a look at
 *    the true length) holds it exclusively.  Whoever writes below the cached
 *    length has nothing to fear, since only truncate makes that shorter,
 *    while no request is served.
 *  - What the storage cannot do (-ENOTSUP) is remembered, per operation.
 *    No other error is: a full disk now does not mean that punching holes
 *    will never work.
 *
 * Flush is fdatasync.  It is enough: it includes whatever metadata is
 * needed to read the data back, that is a changed length and newly
 * allocated or converted extents; what it leaves out are time stamps.
 * backend-file-sync.c does it.
 *
 * Locks: LOCK_BACKEND protects the store to the cached length.  Held across
 * an fstat, never across data I/O.  LOCK_GROWTH: see above; held across the
 * write or the growth in question.
 *
 * RLIMIT_FSIZE: the kernel sends SIGXFSZ with the EFBIG that is handled
 * here as a full disk.  The signal must be ignored by the process (the
 * plugin does that when it is loaded); a library has no business to.
 *
 * What changes which space the file has is in backend-file-space.c.  Does
 * not use O_DIRECT, AIO or file descriptors of others.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#ifdef HAVE_LINUX_FS_H
#include <linux/fs.h>
#endif

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-file.h"
#include "backend-file-internal.h"
#include "disk-open.h"
#include "image-lock.h"
#include "locks.h"

#ifndef IOV_MAX
#define IOV_MAX 1024
#endif

/* Bytes moved by one system call.  Linux stops at 2 GiB less a page. */
#define MAX_TRANSFER    (1U << 30)

static int
fail_stat (const struct backend_file *f, int err)
{
  nbdkit_error ("%s: cannot find out the size: %s", f->backend.name,
                strerror (err));
  return -EIO;
}

int
backend_file_fail_range (const struct backend_file *f, const char *what,
                         uint64_t off, uint64_t len, int err)
{
  nbdkit_error ("%s: %s of %" PRIu64 " bytes at offset %" PRIu64 ": %s",
                f->backend.name, what, len, off, strerror (err));
  return backend_file_io_error (err);
}

int
backend_file_refresh_length (struct backend_file *f)
{
  struct stat st;

  if (f->is_block)
    return 0;
  MUTEX_SCOPE (&f->lock);
  if (fstat (f->fd, &st) == -1)
    return fail_stat (f, errno);
  atomic_store_explicit (&f->length, st.st_size, memory_order_release);
  return 0;
}

static int
file_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  struct backend_file *f = backend_file_of (b);
  uint8_t *p = buf;

  if (!backend_file_range_is_valid (off, len))
    return -ENODATA;
  while (len > 0) {
    ssize_t r = pread (f->fd, p, len < MAX_TRANSFER ? len : MAX_TRANSFER,
                       (off_t) off);

    if (r == -1 && errno == EINTR)
      continue;
    if (r == -1)
      return backend_file_fail_range (f, "read", off, len, errno);
    if (r == 0)
      return -ENODATA;
    p += r;
    len -= r;
    off += r;
  }
  return 0;
}

/* One system call.  *SYNCED: the data is stable already. */
static ssize_t
write_once (struct backend_file *f, const struct iovec *iov, int iovcnt,
            uint64_t off, unsigned flags, bool *synced)
{
  ssize_t r;

  if ((flags & BACKEND_FUA) && f->can_dsync) {
    r = backend_file_sync_write (f, iov, iovcnt, off);
    if (r >= 0 || !backend_file_is_unsupported (errno))
      return r;
    f->can_dsync = false;
  }
  if (flags & BACKEND_FUA)
    *synced = false;
  r = iovcnt == 1 ? pwrite (f->fd, iov->iov_base, iov->iov_len, (off_t) off)
      : pwritev (f->fd, iov, iovcnt, (off_t) off);
  return r;
}

/* Pass over N bytes that were written. */
static void
iov_advance (struct iovec **iov, int *iovcnt, size_t n)
{
  while (*iovcnt > 0 && n >= (*iov)->iov_len) {
    n -= (*iov)->iov_len;
    ++*iov;
    --*iovcnt;
  }
  if (n > 0) {
    (*iov)->iov_base = (uint8_t *) (*iov)->iov_base + n;
    (*iov)->iov_len -= n;
  }
}

static uint64_t
iov_size (const struct iovec *iov, int iovcnt)
{
  uint64_t sum = 0;
  int i;

  for (i = 0; i < iovcnt; ++i)
    sum += iov[i].iov_len;
  return sum;
}

/* *SYNCED: all of it is stable already. */
static int
write_all (struct backend_file *f, struct iovec *iov, int iovcnt,
           uint64_t off, unsigned flags, bool *synced)
{
  uint64_t todo = iov_size (iov, iovcnt);

  *synced = true;
  iov_advance (&iov, &iovcnt, 0);       /* empty elements in front */
  while (todo > 0) {
    int n = iovcnt < IOV_MAX ? iovcnt : IOV_MAX;
    ssize_t done = write_once (f, iov, n, off, flags, synced);

    if (done == -1 && errno == EINTR)
      continue;
    if (done <= 0)
      return backend_file_fail_range (f, "write", off, todo,
                                      done == 0 ? EIO : errno);
    iov_advance (&iov, &iovcnt, done);
    off += done;
    todo -= done;
  }
  return 0;
}

static int
file_pwritev (struct backend *b, struct iovec *iov, int iovcnt,
              uint64_t off, unsigned flags)
{
  struct backend_file *f = backend_file_of (b);
  const uint64_t len = iov_size (iov, iovcnt);
  bool synced;
  int r, r2;

  if (!backend_file_range_is_valid (off, len))
    return backend_file_fail_range (f, "write", off, len, EFBIG);
  if (!backend_file_extends (f, off + len))
    r = write_all (f, iov, iovcnt, off, flags, &synced);
  else {
    READ_SCOPE (&f->growth);

    r = write_all (f, iov, iovcnt, off, flags, &synced);
    /* After a failure as well: part of it may have been done. */
    r2 = backend_file_refresh_length (f);
    if (r == 0)
      r = r2;
  }
  if (r == 0 && !synced)
    r = b->ops->flush (b);
  return r;
}

static int64_t
file_size (struct backend *b)
{
  struct backend_file *f = backend_file_of (b);
  struct stat st;

  if (f->is_block || b->writable)
    return atomic_load_explicit (&f->length, memory_order_acquire);
  /* Someone else may append to a raw backing file. */
  if (fstat (f->fd, &st) == -1)
    return fail_stat (f, errno);
  return st.st_size;
}

static void
file_prefetch (struct backend *b, uint64_t off, uint64_t len)
{
#ifdef HAVE_POSIX_FADVISE
  struct backend_file *f = backend_file_of (b);

  /* Length 0 would mean the rest of the file. */
  if (len > 0 && backend_file_range_is_valid (off, len))
    posix_fadvise (f->fd, (off_t) off, (off_t) len, POSIX_FADV_WILLNEED);
#endif
}

static void
file_close (struct backend *b)
{
  struct backend_file *f = backend_file_of (b);

  backend_file_sync_destroy (f);
  if (f->fd >= 0)
    close (f->fd);
  ranked_rwlock_destroy (&f->growth);
  ranked_mutex_destroy (&f->lock);
  free (b->name);
  free (f);
}

static const struct backend_ops file_ops = {
  .pread = file_pread,
  .pwritev = file_pwritev,
  .flush = backend_file_sync_flush,
  .zero = backend_file_space_zero,
  .punch = backend_file_space_punch,
  .truncate = backend_file_space_truncate,
  .grow = backend_file_space_grow,
  .allocate = backend_file_space_allocate,
  .unreserve = backend_file_space_unreserve,
  .size = file_size,
  .extent = backend_file_space_extent,
  .prefetch = file_prefetch,
  .write_behind = backend_file_sync_write_behind,
  .close = file_close,
};

bool
backend_file_identity (const struct backend *b, uint64_t *dev, uint64_t *ino)
{
  const struct backend_file *f = (const struct backend_file *) b;

  if (b->ops != &file_ops)
    return false;
  *dev = f->dev;
  *ino = f->ino;
  return true;
}

static int
block_device_size (struct backend_file *f)
{
  off_t end = lseek (f->fd, 0, SEEK_END);
  unsigned int sector = 512;

  if (end == -1)
    return fail_stat (f, errno);
  f->length = end;
#ifdef BLKSSZGET
  if (ioctl (f->fd, BLKSSZGET, &sector) == -1 ||
      sector == 0 || (sector & (sector - 1)) != 0)
    sector = 4096;
#endif
  f->sector_size = sector;
  return 0;
}

/* The rest of opening, once there is a descriptor. */
static int
init_file (struct backend_file *f, unsigned flags)
{
  struct stat st;
  int r;

  if (fstat (f->fd, &st) == -1)
    return fail_stat (f, errno);
  f->is_block = S_ISBLK (st.st_mode);
  /* Two nodes of one device are the same; no file has inode 0. */
  f->dev = f->is_block ? st.st_rdev : st.st_dev;
  f->ino = f->is_block ? 0 : st.st_ino;
  f->length = st.st_size;
  f->backend.fixed_size = f->is_block;
  if (f->is_block) {
    r = block_device_size (f);
    if (r < 0)
      return r;
  }
  if (flags & BACKEND_FILE_LOCK) {
    r = image_lock_acquire (f->fd, f->backend.name,
                            flags & BACKEND_FILE_WRITABLE ? IMAGE_LOCK_WRITER
                            : flags & BACKEND_FILE_SHARE_RW
                            ? IMAGE_LOCK_SHARED_READER : IMAGE_LOCK_READER);
    if (r < 0)
      return r;
    /* The one that held the lock before may have changed the length. */
    r = backend_file_refresh_length (f);
  }
  return r;
}

int
backend_file_open (const char *path, unsigned flags, struct backend **b)
{
  struct backend_file *f;
  int r = 0;

  if (flags & BACKEND_FILE_CREATE)
    flags |= BACKEND_FILE_WRITABLE;

  f = calloc (1, sizeof *f);
  if (f == NULL) {
    nbdkit_error ("%s: out of memory", path);
    return -ENOMEM;
  }
  ranked_rwlock_init (&f->growth, LOCK_GROWTH);
  ranked_mutex_init (&f->lock, LOCK_BACKEND);
  backend_file_sync_init (f);
  f->backend.ops = &file_ops;
  f->backend.writable = flags & BACKEND_FILE_WRITABLE;
  f->backend.exclusive = f->backend.writable && (flags & BACKEND_FILE_LOCK);
  f->backend.min_io = 1;
  f->can_dsync = f->can_zero_range = f->can_punch = true;
  f->can_allocate = f->can_seek = true;
  f->fd = -1;
  f->backend.name = strdup (path);
  if (f->backend.name == NULL) {
    nbdkit_error ("%s: out of memory", path);
    r = -ENOMEM;
    goto err;
  }
  r = f->fd = disk_open (path, flags & BACKEND_FILE_WRITABLE,
                         flags & BACKEND_FILE_CREATE);
  if (r < 0)
    goto err;
  r = init_file (f, flags);
  if (r < 0)
    goto err_created;
  if (flags & BACKEND_FILE_CREATE)
    disk_open_sync_name (path);
  *b = &f->backend;
  return 0;

 err_created:
  /* Only what was made here a moment ago. */
  if (flags & BACKEND_FILE_CREATE)
    unlink (path);
 err:
  file_close (&f->backend);
  return r;
}
