/* SPDX-License-Identifier: BSD-3-Clause */
/* To be preloaded into a server: keeps a log of all that it does to the
 * contents of chosen files, from which recording.py makes what a power cut
 * at any moment could have left of them.  It can also make calls fail.
 *
 * RECORDER_FILES   paths of existing files, separated by colons
 * RECORDER_LOG     the log, see record-format.h (without it: no log)
 * RECORDER_FAULT   CALLS,ERROR,FIRST,COUNT: of the calls of these kinds,
 *                  number FIRST (from 0) and those after it, COUNT together
 *                  (0 = for ever), fail with ERROR.  CALLS has the letters
 *                  r (read) w (write) s (sync) f (fallocate) t (truncate);
 *                  ERROR is EIO, ENOSPC, EINTR, or SHORT (part of the bytes
 *                  is read or written)
 * RECORDER_ARMED   the calls are counted only while this file exists
 *
 * Invariant: a change of the files that is not understood here (another
 * system call, a mapping, O_SYNC...) puts an error into the log, so nothing
 * is missed without notice.
 *
 * Locks: none; calls of several threads are in the log as they overlap.
 *
 * sync_file_range and posix_fadvise change nothing and promise nothing, so
 * they are of no interest.
 *
 * Files are known by device and inode, whatever the descriptor came from.
 * Files that do not exist at the start are not recorded.
 */

#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "record-format.h"

#define MAX_FILES       8
#define NO_FILE         UINT32_MAX

/* A function of the C library that is replaced here: the real one. */
#define REAL(name)                                              \
  __typeof__ (&name) real =                                     \
    (__typeof__ (&name)) dlsym (RTLD_NEXT, #name)

static struct {
  dev_t dev;
  ino_t ino;
} files[MAX_FILES];
static uint32_t nr_files;
static int log_fd = -1;
static _Atomic uint64_t last_id;

static struct {
  char calls[8];
  int error;                    /* errno value; 0 = short transfers */
  uint64_t first, count;
  const char *armed;
  _Atomic uint64_t calls_seen;
} fault;

static void
die (const char *what)
{
  fprintf (stderr, "recorder: %s: %s\n", what, strerror (errno));
  _exit (125);
}

static ssize_t
log_writev (const struct iovec *iov, int n)
{
  REAL (writev);

  return real (log_fd, iov, n);
}

static void
put_record (struct record *r, const struct iovec *data, int nr_data)
{
  struct iovec *iov = NULL;
  size_t total = sizeof *r;
  int i, saved = errno;

  if (log_fd == -1)
    return;
  r->magic = RECORD_MAGIC;
  r->pid = (uint32_t) getpid ();
  iov = calloc (nr_data + 1, sizeof *iov);
  if (iov == NULL)
    die ("calloc");
  iov[0].iov_base = r;
  iov[0].iov_len = sizeof *r;
  for (i = 0; i < nr_data; ++i) {
    iov[i + 1] = data[i];
    total += data[i].iov_len;
  }
  r->payload = (uint32_t) (total - sizeof *r);
  if (total - sizeof *r > INT_MAX || nr_data >= IOV_MAX ||
      log_writev (iov, nr_data + 1) != (ssize_t) total)
    die ("log");
  free (iov);
  errno = saved;
}

static void
unexpected (const char *what)
{
  struct record r = { .kind = RECORD_ERROR };
  struct iovec text = { (void *) what, strlen (what) };

  put_record (&r, &text, 1);
}

static void
parse_fault (const char *spec)
{
  char error[16];

  if (sscanf (spec, "%7[rwsft],%15[A-Z],%" SCNu64 ",%" SCNu64,
              fault.calls, error, &fault.first, &fault.count) != 4) {
    errno = EINVAL;
    die ("RECORDER_FAULT");
  }
  fault.error = strcmp (error, "EIO") == 0 ? EIO :
    strcmp (error, "ENOSPC") == 0 ? ENOSPC :
    strcmp (error, "EINTR") == 0 ? EINTR : 0;
  fault.armed = getenv ("RECORDER_ARMED");
}

__attribute__ ((__constructor__))
static void
start (void)
{
  const char *list = getenv ("RECORDER_FILES");
  const char *log = getenv ("RECORDER_LOG");
  const char *spec = getenv ("RECORDER_FAULT");
  char path[PATH_MAX];
  struct stat st;

  while (list && *list && nr_files < MAX_FILES) {
    size_t len = strcspn (list, ":");

    snprintf (path, sizeof path, "%.*s", (int) len, list);
    if (stat (path, &st) == -1)
      die (path);
    files[nr_files].dev = st.st_dev;
    files[nr_files++].ino = st.st_ino;
    list += len + (list[len] == ':');
  }
  if (log) {
    log_fd = open (log, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (log_fd == -1)
      die (log);
  }
  if (spec)
    parse_fault (spec);
}

static uint32_t
file_of_stat (const struct stat *st)
{
  uint32_t i;

  for (i = 0; i < nr_files; ++i)
    if (files[i].dev == st->st_dev && files[i].ino == st->st_ino)
      return i;
  return NO_FILE;
}

static uint32_t
file_of (int fd)
{
  struct stat st;
  int saved = errno, r;

  if (nr_files == 0)
    return NO_FILE;
  r = fstat (fd, &st);
  errno = saved;
  return r == -1 ? NO_FILE : file_of_stat (&st);
}

static void
refuse (int fd, const char *what)
{
  if (file_of (fd) != NO_FILE)
    unexpected (what);
}

/* Is this call, of kind LETTER, one that fails? */
static bool
is_faulty (char letter)
{
  uint64_t n;

  if (strchr (fault.calls, letter) == NULL || fault.calls[0] == '\0')
    return false;
  if (fault.armed && access (fault.armed, F_OK) == -1)
    return false;
  n = atomic_fetch_add (&fault.calls_seen, 1);
  return n >= fault.first &&
    (fault.count == 0 || n - fault.first < fault.count);
}

static uint64_t
begin (uint16_t op, uint32_t file, uint32_t flags, uint64_t off, uint64_t len,
       const struct iovec *data, int nr_data)
{
  struct record r = {
    .kind = RECORD_BEGIN, .op = op, .file = file, .flags = flags,
    .id = atomic_fetch_add (&last_id, 1) + 1, .offset = off, .length = len,
  };

  put_record (&r, data, nr_data);
  return r.id;
}

static void
end (uint16_t op, uint32_t file, uint64_t id, int64_t result)
{
  struct record r = {
    .kind = RECORD_END, .op = op, .file = file, .id = id,
    .result = result == -1 ? -errno : result,
  };

  put_record (&r, NULL, 0);
}

/* The sum of lengths. */
static size_t
iov_size (const struct iovec *iov, int n)
{
  size_t sum = 0;

  while (n-- > 0)
    sum += iov[n].iov_len;
  return sum;
}

/* About half, to a border of sectors of the file: disks write sectors as a
 * whole.
 */
static size_t
short_length (off_t off, size_t len)
{
  off_t end = (off + (off_t) len / 2) | 511;

  return end + 1 < off + (off_t) len ? (size_t) (end + 1 - off) : len;
}

/* All writes end here. */
static ssize_t
write_at (int fd, const struct iovec *iov, int n, off_t off, int flags)
{
  uint32_t file = file_of (fd);
  struct iovec half;
  uint64_t id;
  ssize_t r;
  REAL (pwritev2);

  if (file == NO_FILE)
    return real (fd, iov, n, off, flags);
  if (fcntl (fd, F_GETFL) & (O_DSYNC | O_APPEND))
    unexpected ("O_SYNC, O_DSYNC or O_APPEND");
  if (flags & ~RWF_DSYNC)
    unexpected ("flags of pwritev2");
  if (is_faulty ('w')) {
    if (fault.error != 0) {
      errno = fault.error;
      return -1;
    }
    half.iov_base = iov->iov_base;
    half.iov_len = short_length (off, iov->iov_len);
    iov = &half;
    n = 1;
  }
  id = begin (RECORD_WRITE, file, flags & RWF_DSYNC ? RECORD_DSYNC : 0,
              (uint64_t) off, iov_size (iov, n), iov, n);
  r = real (fd, iov, n, off, flags);
  end (RECORD_WRITE, file, id, r);
  return r;
}

ssize_t
pwrite (int fd, const void *buf, size_t len, off_t off)
{
  struct iovec iov = { (void *) buf, len };

  return write_at (fd, &iov, 1, off, 0);
}

ssize_t
pwritev (int fd, const struct iovec *iov, int n, off_t off)
{
  return write_at (fd, iov, n, off, 0);
}

ssize_t
pwritev2 (int fd, const struct iovec *iov, int n, off_t off, int flags)
{
  if (off == -1)
    refuse (fd, "pwritev2 at the file position");
  return write_at (fd, iov, n, off, flags);
}

static ssize_t
read_at (int fd, const struct iovec *iov, int n, off_t off)
{
  struct iovec half;
  REAL (preadv);

  if (fault.calls[0] != '\0' && file_of (fd) != NO_FILE && is_faulty ('r')) {
    if (fault.error != 0) {
      errno = fault.error;
      return -1;
    }
    half.iov_base = iov->iov_base;
    half.iov_len = (iov->iov_len + 1) / 2;
    return real (fd, &half, 1, off);
  }
  return real (fd, iov, n, off);
}

ssize_t
pread (int fd, void *buf, size_t len, off_t off)
{
  struct iovec iov = { buf, len };

  return read_at (fd, &iov, 1, off);
}

ssize_t
preadv (int fd, const struct iovec *iov, int n, off_t off)
{
  return read_at (fd, iov, n, off);
}

/* fsync, fdatasync: REAL does it. */
static int
sync_file (int fd, int (*real) (int))
{
  uint32_t file = file_of (fd);
  uint64_t id;
  int r;

  if (file == NO_FILE)
    return real (fd);
  id = begin (RECORD_SYNC, file, 0, 0, 0, NULL, 0);
  if (is_faulty ('s') && fault.error != 0) {
    errno = fault.error;
    r = -1;
  }
  else
    r = real (fd);
  end (RECORD_SYNC, file, id, r);
  return r;
}

int
fsync (int fd)
{
  REAL (fsync);

  return sync_file (fd, real);
}

int
fdatasync (int fd)
{
  REAL (fdatasync);

  return sync_file (fd, real);
}

int
fallocate (int fd, int mode, off_t off, off_t len)
{
  uint32_t file = file_of (fd);
  uint64_t id;
  int r;
  REAL (fallocate);

  if (file == NO_FILE)
    return real (fd, mode, off, len);
  if (is_faulty ('f') && fault.error != 0) {
    errno = fault.error;
    return -1;
  }
  id = begin (RECORD_FALLOCATE, file, (uint32_t) mode, (uint64_t) off,
              (uint64_t) len, NULL, 0);
  r = real (fd, mode, off, len);
  end (RECORD_FALLOCATE, file, id, r);
  return r;
}

int
ftruncate (int fd, off_t len)
{
  uint32_t file = file_of (fd);
  uint64_t id;
  int r;
  REAL (ftruncate);

  if (file == NO_FILE)
    return real (fd, len);
  if (is_faulty ('t') && fault.error != 0) {
    errno = fault.error;
    return -1;
  }
  id = begin (RECORD_TRUNCATE, file, 0, (uint64_t) len, 0, NULL, 0);
  r = real (fd, len);
  end (RECORD_TRUNCATE, file, id, r);
  return r;
}

#if __WORDSIZE == 64
/* The names that programs use which ask for 64-bit offsets. */
#define ALIAS(name) __attribute__ ((__alias__ (#name)))
extern __typeof__ (pwrite) pwrite64 ALIAS (pwrite);
extern __typeof__ (pwritev) pwritev64 ALIAS (pwritev);
extern __typeof__ (pwritev2) pwritev64v2 ALIAS (pwritev2);
extern __typeof__ (pread) pread64 ALIAS (pread);
extern __typeof__ (preadv) preadv64 ALIAS (preadv);
extern __typeof__ (fallocate) fallocate64 ALIAS (fallocate);
extern __typeof__ (ftruncate) ftruncate64 ALIAS (ftruncate);
#endif

/* --- Other ways to change a file: not used, else the log is of no use --- */

ssize_t
write (int fd, const void *buf, size_t len)
{
  REAL (write);

  refuse (fd, "write");
  return real (fd, buf, len);
}

ssize_t
writev (int fd, const struct iovec *iov, int n)
{
  REAL (writev);

  refuse (fd, "writev");
  return real (fd, iov, n);
}

ssize_t
copy_file_range (int fd, off64_t *off, int fd2, off64_t *off2, size_t len,
                 unsigned flags)
{
  REAL (copy_file_range);

  refuse (fd2, "copy_file_range");
  return real (fd, off, fd2, off2, len, flags);
}

ssize_t
sendfile (int fd, int fd2, off_t *off, size_t len)
{
  REAL (sendfile);

  refuse (fd, "sendfile");
  return real (fd, fd2, off, len);
}

ssize_t
splice (int fd, off64_t *off, int fd2, off64_t *off2, size_t len,
        unsigned flags)
{
  REAL (splice);

  refuse (fd2, "splice");
  return real (fd, off, fd2, off2, len, flags);
}

void *
mmap (void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
  REAL (mmap);

  if ((prot & PROT_WRITE) && (flags & MAP_TYPE) != MAP_PRIVATE)
    refuse (fd, "mmap");
  return real (addr, len, prot, flags, fd, off);
}

int
posix_fallocate (int fd, off_t off, off_t len)
{
  REAL (posix_fallocate);

  refuse (fd, "posix_fallocate");
  return real (fd, off, len);
}

int
truncate (const char *path, off_t len)
{
  struct stat st;
  REAL (truncate);

  if (stat (path, &st) == 0 && file_of_stat (&st) != NO_FILE)
    unexpected ("truncate");
  return real (path, len);
}

#if __WORDSIZE == 64
extern __typeof__ (sendfile) sendfile64 ALIAS (sendfile);
extern __typeof__ (mmap) mmap64 ALIAS (mmap);
extern __typeof__ (posix_fallocate) posix_fallocate64 ALIAS (posix_fallocate);
extern __typeof__ (truncate) truncate64 ALIAS (truncate);
#endif

/* Asynchronous I/O without a function of its own in the C library. */
long
syscall (long nr, ...)
{
  va_list ap;
  long arg[6];
  int i;
  REAL (syscall);

  va_start (ap, nr);
  for (i = 0; i < 6; ++i)
    arg[i] = va_arg (ap, long);
  va_end (ap);
#ifdef SYS_io_uring_setup
  if (nr == SYS_io_uring_setup)
    unexpected ("io_uring");
#endif
#ifdef SYS_io_setup
  if (nr == SYS_io_setup)
    unexpected ("io_setup");
#endif
  return real (nr, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}
