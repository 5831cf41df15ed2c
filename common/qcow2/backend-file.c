/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend: a regular file or a block device, by plain system calls.
 *
 * Invariants:
 *  - A call that returns 0 did all of what it was asked; transfers are
 *    never short, whatever the kernel's limits per call.
 *  - The cached length of a regular file that is open for writing equals
 *    fstat's: each change of the length is followed by an fstat under the
 *    lock, so of two changes that race the later look wins.
 *  - What the storage cannot do (-ENOTSUP) is remembered, per operation.
 *    No other error is: a full disk now does not mean that punching holes
 *    will never work.
 *
 * Flush is fdatasync.  It is enough: it includes whatever metadata is
 * needed to read the data back, that is a changed length and newly
 * allocated or converted extents; what it leaves out are time stamps.
 *
 * Locks: LOCK_BACKEND protects the store to the cached length.  Held across
 * an fstat, never across data I/O.
 *
 * RLIMIT_FSIZE: the kernel sends SIGXFSZ with the EFBIG that is handled
 * here as a full disk.  The signal must be ignored by the process (the
 * plugin does that when it is loaded); a library has no business to.
 *
 * Does not use O_DIRECT, AIO or file descriptors of others.
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

#ifdef HAVE_LINUX_FALLOC_H
#include <linux/falloc.h>
#endif
#ifdef HAVE_LINUX_FS_H
#include <linux/fs.h>
#endif

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-file.h"
#include "disk-open.h"
#include "image-lock.h"
#include "locks.h"

#ifndef IOV_MAX
#define IOV_MAX 1024
#endif

/* Bytes moved by one system call.  Linux stops at 2 GiB less a page. */
#define MAX_TRANSFER    (1U << 30)

struct backend_file {
  struct backend backend;
  int fd;
  bool is_block;
  uint32_t sector_size;         /* block devices: unit of zero, punch */
  uint64_t dev, ino;
  struct ranked_mutex lock;     /* LOCK_BACKEND */
  _Atomic int64_t length;       /* block devices and writable files only */
  /* False once the storage said that it cannot. */
  atomic_bool can_dsync, can_zero_range, can_punch, can_allocate;
  atomic_bool can_seek;
};

static struct backend_file *
to_file (struct backend *b)
{
  return (struct backend_file *) b;
}

static bool
is_unsupported (int err)
{
  return err == EOPNOTSUPP || err == ENOSYS || err == ENOTTY;
}

/* What clients and callers can make something of: a full disk in all its
 * disguises, lack of memory, or an I/O error.
 */
static int
io_error (int err)
{
  switch (err) {
  case ENOSPC:
  case EDQUOT:
  case EFBIG:
    return -ENOSPC;
  case ENOMEM:
    return -ENOMEM;
  default:
    return -EIO;
  }
}

/* Does [OFF, OFF + LEN) fit into off_t? */
static bool
range_is_valid (uint64_t off, uint64_t len)
{
  return off <= INT64_MAX && len <= INT64_MAX - off;
}

static int
fail_range (const struct backend_file *f, const char *what,
            uint64_t off, uint64_t len, int err)
{
  nbdkit_error ("%s: %s of %" PRIu64 " bytes at offset %" PRIu64 ": %s",
                f->backend.name, what, len, off, strerror (err));
  return io_error (err);
}

static int
fail_stat (const struct backend_file *f, int err)
{
  nbdkit_error ("%s: cannot find out the size: %s", f->backend.name,
                strerror (err));
  return -EIO;
}

/* Look at the length again after it may have changed. */
static int
refresh_length (struct backend_file *f)
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
note_write_end (struct backend_file *f, uint64_t end)
{
  if (end <= (uint64_t) atomic_load_explicit (&f->length,
                                              memory_order_acquire))
    return 0;
  return refresh_length (f);
}

static int
file_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  struct backend_file *f = to_file (b);
  uint8_t *p = buf;

  if (!range_is_valid (off, len))
    return -ENODATA;
  while (len > 0) {
    ssize_t r = pread (f->fd, p, len < MAX_TRANSFER ? len : MAX_TRANSFER,
                       (off_t) off);

    if (r == -1 && errno == EINTR)
      continue;
    if (r == -1)
      return fail_range (f, "read", off, len, errno);
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

#if defined (HAVE_PWRITEV2) && HAVE_DECL_RWF_DSYNC
  if ((flags & BACKEND_FUA) && f->can_dsync) {
    r = pwritev2 (f->fd, iov, iovcnt, (off_t) off, RWF_DSYNC);
    if (r >= 0 || !is_unsupported (errno))
      return r;
    f->can_dsync = false;
  }
#endif
  *synced = *synced && !(flags & BACKEND_FUA);
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

static int
file_pwritev (struct backend *b, struct iovec *iov, int iovcnt,
              uint64_t off, unsigned flags)
{
  struct backend_file *f = to_file (b);
  uint64_t todo = iov_size (iov, iovcnt);
  bool synced = true;
  int r;

  if (!range_is_valid (off, todo))
    return fail_range (f, "write", off, todo, EFBIG);
  iov_advance (&iov, &iovcnt, 0);       /* empty elements in front */
  while (todo > 0) {
    int n = iovcnt < IOV_MAX ? iovcnt : IOV_MAX;
    ssize_t done = write_once (f, iov, n, off, flags, &synced);

    if (done == -1 && errno == EINTR)
      continue;
    if (done <= 0)
      return fail_range (f, "write", off, todo, done == 0 ? EIO : errno);
    iov_advance (&iov, &iovcnt, done);
    off += done;
    todo -= done;
  }
  r = note_write_end (f, off);
  if (r == 0 && !synced)
    r = b->ops->flush (b);
  return r;
}

static int
file_flush (struct backend *b)
{
  struct backend_file *f = to_file (b);
  int r;

  do
    r = fdatasync (f->fd);
  while (r == -1 && errno == EINTR);
  if (r == -1) {
    int err = errno;

    nbdkit_error ("%s: fdatasync: %s: what was written since the last "
                  "flush may be lost", b->name, strerror (err));
    return io_error (err);
  }
  return 0;
}

/* 0 or -errno, as it is. */
static int
do_fallocate (struct backend_file *f, int mode, uint64_t off, uint64_t len)
{
#ifdef HAVE_FALLOCATE
  int r;

  do
    r = fallocate (f->fd, mode, (off_t) off, (off_t) len);
  while (r == -1 && errno == EINTR);
  if (r == 0)
    return 0;
  return is_unsupported (errno) ? -ENOTSUP : -errno;
#else
  return -ENOTSUP;
#endif
}

#ifndef FALLOC_FL_KEEP_SIZE
#define FALLOC_FL_KEEP_SIZE     1
#endif
#ifndef FALLOC_FL_PUNCH_HOLE
#define FALLOC_FL_PUNCH_HOLE    2
#endif
#ifndef FALLOC_FL_ZERO_RANGE
#define FALLOC_FL_ZERO_RANGE    16
#endif

static bool
is_sector_aligned (const struct backend_file *f, uint64_t off, uint64_t len)
{
  return !f->is_block || ((off | len) & (f->sector_size - 1)) == 0;
}

/* Result of zero, punch and truncate. */
static int
finish_range (const struct backend_file *f, const char *what,
              uint64_t off, uint64_t len, int r)
{
  if (r == 0 || r == -ENOTSUP)
    return r;
  if (io_error (-r) == -ENOSPC)
    return -ENOSPC;
  return fail_range (f, what, off, len, -r);
}

/* File systems without FALLOC_FL_ZERO_RANGE (tmpfs, some NFS servers):
 * a hole reads as zeroes, and plain fallocate fills it with space, also
 * beyond the end of the file.
 */
static int
zero_by_hole (struct backend_file *f, uint64_t off, uint64_t len)
{
  int r;

  if (f->is_block || !f->can_punch || !f->can_allocate)
    return -ENOTSUP;
  r = do_fallocate (f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len);
  if (r == -ENOTSUP)
    f->can_punch = false;
  if (r < 0)
    return r;
  r = do_fallocate (f, 0, off, len);
  if (r == -ENOTSUP)
    f->can_allocate = false;
  return r;
}

static int
file_zero (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_file *f = to_file (b);
  int r = -ENOTSUP, r2;

  if (len == 0)
    return 0;
  if (!range_is_valid (off, len))
    return -ENOSPC;
  if (!is_sector_aligned (f, off, len))
    return -ENOTSUP;
  if (f->can_zero_range) {
    /* Block devices insist on KEEP_SIZE. */
    r = do_fallocate (f, FALLOC_FL_ZERO_RANGE |
                         (f->is_block ? FALLOC_FL_KEEP_SIZE : 0), off, len);
    if (r == -ENOTSUP)
      f->can_zero_range = false;
  }
  if (r == -ENOTSUP)
    r = zero_by_hole (f, off, len);
  /* After a failure as well: part of it may have been done. */
  r2 = note_write_end (f, off + len);
  r = finish_range (f, "zeroing", off, len, r);
  return r < 0 ? r : r2;
}

/* The device may not promise zeroes afterwards, nor need it. */
static int
discard_block (struct backend_file *f, uint64_t off, uint64_t len)
{
#ifdef BLKDISCARD
  uint64_t range[2] = { off, len };

  if (ioctl (f->fd, BLKDISCARD, range) == 0)
    return 0;
  return is_unsupported (errno) ? -ENOTSUP : -errno;
#else
  return -ENOTSUP;
#endif
}

static int
file_punch (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_file *f = to_file (b);
  int r;

  if (len == 0)
    return 0;
  if (!f->can_punch || !range_is_valid (off, len) ||
      !is_sector_aligned (f, off, len))
    return -ENOTSUP;
  r = do_fallocate (f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len);
  if (r == -ENOTSUP && f->is_block)
    r = discard_block (f, off, len);
  if (r == -ENOTSUP)
    f->can_punch = false;
  return finish_range (f, "punching a hole", off, len, r);
}

static int
file_truncate (struct backend *b, uint64_t len, bool allocate)
{
  struct backend_file *f = to_file (b);
  uint64_t old = (uint64_t) atomic_load (&f->length);
  int r, r2;

  if (f->is_block)
    return -ENOTSUP;
  if (len > INT64_MAX)
    return -EFBIG;
  if (allocate && len > old) {
    if (!f->can_allocate)
      return -ENOTSUP;
    r = do_fallocate (f, 0, old, len - old);
    if (r == -ENOTSUP)
      f->can_allocate = false;
  }
  else {
    do
      r = ftruncate (f->fd, (off_t) len);
    while (r == -1 && errno == EINTR);
    if (r == -1)
      r = -errno;
  }
  /* A failed fallocate may have added a part, which reads as zeroes. */
  r2 = refresh_length (f);
  if (r == -EFBIG || (r == -EINVAL && len > old))       /* too large */
    return -EFBIG;
  r = finish_range (f, "changing the length", len, 0, r);
  return r < 0 ? r : r2;
}

static int64_t
file_size (struct backend *b)
{
  struct backend_file *f = to_file (b);
  struct stat st;

  if (f->is_block || b->writable)
    return atomic_load_explicit (&f->length, memory_order_acquire);
  /* Someone else may append to a raw backing file. */
  if (fstat (f->fd, &st) == -1)
    return fail_stat (f, errno);
  return st.st_size;
}

static int
file_extent (struct backend *b, uint64_t off, uint64_t len,
             enum backend_extent_type *type, uint64_t *extent_len)
{
  struct backend_file *f = to_file (b);
  off_t pos;

  *type = BACKEND_DATA;
  *extent_len = len;
  if (f->is_block || !f->can_seek || !range_is_valid (off, len))
    return 0;

  /* The position of the descriptor that this changes is used by nobody. */
  pos = lseek (f->fd, (off_t) off, SEEK_DATA);
  if (pos == -1) {
    /* ENXIO: no data up to the end of the file.  All else: to say "data"
     * is always right.
     */
    if (errno == ENXIO)
      *type = BACKEND_HOLE;
    else
      f->can_seek = false;
    return 0;
  }
  if ((uint64_t) pos > off)
    *type = BACKEND_HOLE;
  else {
    pos = lseek (f->fd, (off_t) off, SEEK_HOLE);
    if (pos == -1 || (uint64_t) pos <= off)     /* a hole made meanwhile */
      return 0;
  }
  if ((uint64_t) pos - off < len)
    *extent_len = (uint64_t) pos - off;
  return 0;
}

static void
file_prefetch (struct backend *b, uint64_t off, uint64_t len)
{
#ifdef HAVE_POSIX_FADVISE
  struct backend_file *f = to_file (b);

  /* Length 0 would mean the rest of the file. */
  if (len > 0 && range_is_valid (off, len))
    posix_fadvise (f->fd, (off_t) off, (off_t) len, POSIX_FADV_WILLNEED);
#endif
}

static void
file_close (struct backend *b)
{
  struct backend_file *f = to_file (b);

  if (f->fd >= 0)
    close (f->fd);
  ranked_mutex_destroy (&f->lock);
  free (b->name);
  free (f);
}

static const struct backend_ops file_ops = {
  .pread = file_pread,
  .pwritev = file_pwritev,
  .flush = file_flush,
  .zero = file_zero,
  .punch = file_punch,
  .truncate = file_truncate,
  .size = file_size,
  .extent = file_extent,
  .prefetch = file_prefetch,
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
    r = refresh_length (f);
  }
  return r;
}

int
backend_file_open (const char *path, unsigned flags, struct backend **b)
{
  struct backend_file *f;
  int r;

  if (flags & BACKEND_FILE_CREATE)
    flags |= BACKEND_FILE_WRITABLE;

  f = calloc (1, sizeof *f);
  if (f == NULL) {
    nbdkit_error ("%s: out of memory", path);
    return -ENOMEM;
  }
  ranked_mutex_init (&f->lock, LOCK_BACKEND);
  f->backend.ops = &file_ops;
  f->backend.writable = flags & BACKEND_FILE_WRITABLE;
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
