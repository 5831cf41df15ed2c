/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend file: everything that changes which space the file has.
 *
 * Invariants: those of backend-file.c, and
 *  - What is remembered as impossible was refused as such by the storage,
 *    per operation; a full disk is no reason to give an operation up.
 *  - unreserve changes nothing that is read: it makes holes only where
 *    SEEK_HOLE says that nothing was written.
 *
 * Locks: LOCK_GROWTH and LOCK_BACKEND, see backend-file.c.
 *
 * Does not read or write data.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_LINUX_FALLOC_H
#include <linux/falloc.h>
#endif
#ifdef HAVE_LINUX_FS_H
#include <linux/fs.h>
#endif

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-file-internal.h"

/* To give back many small places takes 50 us each on a usual file system, but
 * some milliseconds where each one is a request to the disk (ext4 mounted
 * with "discard", without a journal).  Closing must end some time.
 */
#define MAX_UNRESERVE_SECONDS   30

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
  return backend_file_is_unsupported (errno) ? -ENOTSUP : -errno;
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

/* Result of an operation, -errno as the system call gave it. */
static int
finish_range (const struct backend_file *f, const char *what,
              uint64_t off, uint64_t len, int r)
{
  if (r == 0 || r == -ENOTSUP)
    return r;
  if (backend_file_io_error (-r) == -ENOSPC)
    return -ENOSPC;
  return backend_file_fail_range (f, what, off, len, -r);
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

/* The caller wants this space to stay, though nothing was written. */
static void
keep_space (struct backend_file *f, uint64_t start, uint64_t end)
{
  struct backend_file_range *last = NULL;

  MUTEX_SCOPE (&f->lock);
  if (f->nr_kept > 0)
    last = &f->kept[f->nr_kept - 1];
  if (last && ((start <= last->end && last->start <= end) ||
               f->nr_kept == MAX_KEPT)) {
    if (start < last->start)
      last->start = start;
    if (end > last->end)
      last->end = end;
    return;
  }
  f->kept[f->nr_kept++] = (struct backend_file_range) { start, end };
}

/* 0 or -errno, as the system call gave it. */
static int
zero (struct backend_file *f, uint64_t off, uint64_t len)
{
  int r = -ENOTSUP;

  if (f->can_zero_range) {
    /* Block devices insist on KEEP_SIZE. */
    r = do_fallocate (f, FALLOC_FL_ZERO_RANGE |
                         (f->is_block ? FALLOC_FL_KEEP_SIZE : 0), off, len);
    if (r == -ENOTSUP)
      f->can_zero_range = false;
  }
  if (r == -ENOTSUP)
    r = zero_by_hole (f, off, len);
  return r;
}

int
backend_file_space_zero (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_file *f = backend_file_of (b);
  int r, r2 = 0;

  if (len == 0)
    return 0;
  if (!backend_file_range_is_valid (off, len))
    return -ENOSPC;
  if (!is_sector_aligned (f, off, len))
    return -ENOTSUP;
  if (!backend_file_extends (f, off + len))
    r = zero (f, off, len);
  else {
    READ_SCOPE (&f->growth);

    r = zero (f, off, len);
    /* After a failure as well: part of it may have been done. */
    r2 = backend_file_refresh_length (f);
  }
  if (r == 0)
    keep_space (f, off, off + len);
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
  return backend_file_is_unsupported (errno) ? -ENOTSUP : -errno;
#else
  return -ENOTSUP;
#endif
}

int
backend_file_space_punch (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_file *f = backend_file_of (b);
  int r;

  if (len == 0)
    return 0;
  if (!f->can_punch || !backend_file_range_is_valid (off, len) ||
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
set_length (struct backend_file *f, uint64_t len)
{
  int r;

  do
    r = ftruncate (f->fd, (off_t) len);
  while (r == -1 && errno == EINTR);
  return r == -1 ? -errno : 0;
}

/* Result of truncate and grow. */
static int
finish_length (struct backend_file *f, uint64_t len, bool longer, int r)
{
  if (r == -EFBIG || (r == -EINVAL && longer))          /* too large */
    return -EFBIG;
  return finish_range (f, "changing the length", len, 0, r);
}

int
backend_file_space_grow (struct backend *b, uint64_t len, bool allocate)
{
  struct backend_file *f = backend_file_of (b);
  struct stat st;
  int r = 0, r2;

  if (f->is_block || (allocate && !f->can_allocate))
    return -ENOTSUP;
  if (len > INT64_MAX)
    return -EFBIG;
  {
    WRITE_SCOPE (&f->growth);

    if (fstat (f->fd, &st) == -1)
      r = -errno;
    else if (len > (uint64_t) st.st_size && !allocate)
      r = set_length (f, len);
    else if (len > (uint64_t) st.st_size) {
      r = do_fallocate (f, 0, st.st_size, len - st.st_size);
      if (r == -ENOTSUP)
        f->can_allocate = false;
    }
    /* A failed fallocate may have added a part, which reads as zeroes. */
    r2 = backend_file_refresh_length (f);
  }
  r = finish_length (f, len, true, r);
  return r < 0 ? r : r2;
}

int
backend_file_space_truncate (struct backend *b, uint64_t len, bool allocate)
{
  struct backend_file *f = backend_file_of (b);
  bool longer;
  int r, r2;

  if (f->is_block)
    return -ENOTSUP;
  if (len > INT64_MAX)
    return -EFBIG;
  longer = len > (uint64_t) atomic_load (&f->length);
  if (allocate && longer)
    return backend_file_space_grow (b, len, true);
  {
    WRITE_SCOPE (&f->growth);

    r = set_length (f, len);
    r2 = backend_file_refresh_length (f);
  }
  r = finish_length (f, len, longer, r);
  return r < 0 ? r : r2;
}

int
backend_file_space_allocate (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_file *f = backend_file_of (b);
  int r;

  if (f->is_block || !f->can_allocate ||
      !backend_file_range_is_valid (off, len))
    return -ENOTSUP;
  r = do_fallocate (f, FALLOC_FL_KEEP_SIZE, off, len);
  if (r == -ENOTSUP)
    f->can_allocate = false;
  return finish_range (f, "allocating", off, len, r);
}

/* Punch [START, END) apart from what is kept. */
static int
punch_unkept (struct backend_file *f, uint64_t start, uint64_t end)
{
  uint64_t stop, next;
  unsigned i;
  int r = 0;

  for (; r == 0 && start < end; start = next) {
    stop = next = end;
    for (i = 0; i < f->nr_kept; ++i) {
      const struct backend_file_range *k = &f->kept[i];

      if (k->start <= start && start < k->end)
        stop = start;
      else if (k->start > start && k->start < stop)
        stop = next = k->start;
    }
    for (i = 0; stop == start && i < f->nr_kept; ++i)
      if (f->kept[i].start <= start && start < f->kept[i].end)
        next = f->kept[i].end;
    if (stop > start)
      r = do_fallocate (f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        start, stop - start);
  }
  return r;
}

static time_t
now (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_MONOTONIC, &ts);
  return ts.tv_sec;
}

void
backend_file_space_unreserve (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_file *f = backend_file_of (b);
  const time_t deadline = now () + MAX_UNRESERVE_SECONDS;
  uint64_t end = off + len, nr = 0;
  off_t start, stop = (off_t) off;
  int r = 0;

  if (f->is_block || !f->can_punch || !f->can_seek ||
      !backend_file_range_is_valid (off, len))
    return;
  while (r == 0 && (uint64_t) stop < end && now () <= deadline) {
    start = lseek (f->fd, stop, SEEK_HOLE);
    if (start == -1 || (uint64_t) start >= end)
      break;
    stop = lseek (f->fd, start, SEEK_DATA);
    if (stop == -1 && errno != ENXIO)
      break;
    if (stop == -1 || (uint64_t) stop > end)
      stop = (off_t) end;
    r = punch_unkept (f, start, stop);
    nr++;
  }
  nbdkit_debug ("%s: space that was allocated ahead and not written was "
                "given back, in %" PRIu64 " places%s%s", b->name, nr,
                now () > deadline ? ", not all for lack of time" : "",
                r < 0 ? ", not all for lack of support" : "");
}

int
backend_file_space_extent (struct backend *b, uint64_t off, uint64_t len,
                           enum backend_extent_type *type,
                           uint64_t *extent_len)
{
  struct backend_file *f = backend_file_of (b);
  off_t pos;

  *type = BACKEND_DATA;
  *extent_len = len;
  if (f->is_block || !f->can_seek || !backend_file_range_is_valid (off, len))
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
