/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit test of backend-file-sync.c against what Linux does, in small: lost
 * data is told once to each open file description that was there when it got
 * lost, and to no later one.  The linker puts the functions below in the
 * place of the system's.
 */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "backend-file.h"

#define MAX_FD 64
#define NR_THREADS 8
#define DELAY_US 20000          /* enough for the others to get in */

static char path[] = "test-backend-file-sync.XXXXXX";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* All of these belong to LOCK. */
static bool untold[MAX_FD];     /* the next call fails */
static bool in_use[MAX_FD];     /* a call is under way */
static int write_error;         /* the next write fails by itself */
static int write_behind_error;  /* so does this */
static bool stops;              /* the first call stays in the kernel */
static bool stops_told;         /* those that have heard of lost data do */
static bool answered;           /* the first call's answer is from before */
static unsigned nr_calls;       /* under way */

static void
wait_until (bool *condition, bool value)
{
  while (*condition != value)
    pthread_cond_wait (&changed, &lock);
}

static void
set (bool *condition, bool value)
{
  pthread_mutex_lock (&lock);
  *condition = value;
  pthread_cond_broadcast (&changed);
  pthread_mutex_unlock (&lock);
}

static void
wait_calls (unsigned n)
{
  pthread_mutex_lock (&lock);
  while (nr_calls < n)
    pthread_cond_wait (&changed, &lock);
  pthread_mutex_unlock (&lock);
}

static int
ask (int fd)
{
  bool told;

  assert (fd < MAX_FD);
  pthread_mutex_lock (&lock);
  assert (!in_use[fd]);
  in_use[fd] = true;
  nr_calls++;
  pthread_cond_broadcast (&changed);
  if (stops && nr_calls == 1)
    wait_until (&stops, false);
  told = untold[fd] && !answered;
  untold[fd] &= answered;
  answered = false;
  if (told)
    wait_until (&stops_told, false);
  in_use[fd] = false;
  nr_calls--;
  pthread_mutex_unlock (&lock);
  if (told)
    errno = EIO;
  return told ? -1 : 0;
}

extern int __wrap_fdatasync (int fd);
extern int __wrap_sync_file_range (int fd, off_t off, off_t len,
                                   unsigned flags);
extern int __wrap_sync_file_range64 (int fd, off_t off, off_t len,
                                     unsigned flags);
extern ssize_t __wrap_pwritev2 (int fd, const struct iovec *iov, int iovcnt,
                                off_t off, int flags);
extern ssize_t __wrap_pwritev64v2 (int fd, const struct iovec *iov,
                                   int iovcnt, off_t off, int flags);

int
__wrap_fdatasync (int fd)
{
  return ask (fd);
}

int
__wrap_sync_file_range (int fd, off_t off, off_t len, unsigned flags)
{
  assert (fd >= 0 && off == 0 && len == 0 && flags == SYNC_FILE_RANGE_WRITE);
  errno = write_behind_error;
  return write_behind_error ? -1 : 0;
}

int
__wrap_sync_file_range64 (int fd, off_t off, off_t len, unsigned flags)
{
  return __wrap_sync_file_range (fd, off, len, flags);
}

ssize_t
__wrap_pwritev2 (int fd, const struct iovec *iov, int iovcnt, off_t off,
                 int flags)
{
  assert (flags == RWF_DSYNC);
  if (write_error) {
    errno = write_error;
    return -1;
  }
  if (ask (fd) == -1)
    return -1;
  return pwritev (fd, iov, iovcnt, off);
}

ssize_t
__wrap_pwritev64v2 (int fd, const struct iovec *iov, int iovcnt, off_t off,
                    int flags)
{
  return __wrap_pwritev2 (fd, iov, iovcnt, off, flags);
}

/* Data was lost in the background. */
static void
lose_data (void)
{
  int fd;

  for (fd = 0; fd < MAX_FD; ++fd)
    untold[fd] = fcntl (fd, F_GETFD) != -1;
}

static struct backend *
open_file (void)
{
  struct backend *b;

  assert (backend_file_open (path, BACKEND_FILE_WRITABLE, &b) == 0);
  return b;
}

static void *
flush (void *vp)
{
  return (void *) (intptr_t) backend_flush (vp);
}

static void *
write_fua (void *vp)
{
  return (void *) (intptr_t) backend_pwrite (vp, "x", 1, 0, BACKEND_FUA);
}

static pthread_t
start (void *(*f) (void *), struct backend *b)
{
  pthread_t t;

  assert (pthread_create (&t, NULL, f, b) == 0);
  return t;
}

static int
result (pthread_t t)
{
  void *r;

  assert (pthread_join (t, &r) == 0);
  return (intptr_t) r;
}

/* N flushes at once have a description each. */
static void
use_slots (struct backend *b, unsigned n)
{
  pthread_t t[NR_THREADS];
  unsigned i;

  set (&stops, true);
  /* Who finds all busy opens one for the next time. */
  for (i = 0; i < n; ++i)
    t[i] = start (flush, b);
  wait_calls (1);
  usleep (DELAY_US);
  set (&stops, false);
  for (i = 0; i < n; ++i)
    assert (result (t[i]) == 0);
}

/* FIRST is told of lost data and does not come back for a while: a flush
 * that starts meanwhile fails, with a description from before (ROOM) or one
 * that is opened for it.
 */
static void
lose_and_flush (struct backend *b, void *(*first) (void *))
{
  pthread_t t, t2[NR_THREADS];
  unsigned i;

  lose_data ();
  set (&stops_told, true);
  t = start (first, b);
  wait_calls (1);
  for (i = 0; i < NR_THREADS; ++i)
    t2[i] = start (flush, b);
  usleep (DELAY_US);
  set (&stops_told, false);
  assert (result (t) == -EIO);
  for (i = 0; i < NR_THREADS; ++i)
    assert (result (t2[i]) == -EIO);
  assert (backend_flush (b) == -EIO);
}

static void
test_overlap (void *(*first) (void *), bool room)
{
  struct backend *b = open_file ();

  /* The first one has its description. */
  assert (first (b) == NULL);
  if (room)
    use_slots (b, NR_THREADS);
  lose_and_flush (b, first);
  backend_close (b);
}

/* A write that must be stable is told of somebody else's data.  Flushes know
 * of it, whatever description they get.
 */
static void
test_write_is_told (void)
{
  struct backend *b = open_file ();
  pthread_t t;

  assert (backend_pwrite (b, "x", 1, 0, BACKEND_FUA) == 0);
  assert (backend_flush (b) == 0);      /* others may use its description */
  lose_data ();
  assert (backend_pwrite (b, "x", 1, 0, BACKEND_FUA) == -EIO);
  set (&stops, true);
  t = start (flush, b);
  wait_calls (1);
  assert (backend_flush (b) == -EIO);
  set (&stops, false);
  assert (result (t) == -EIO);
  backend_close (b);
}

/* Another process was told first, so a description that is opened now hears
 * nothing.  It may be used for the write that it is opened for, but not for a
 * flush while slot 0 is told.
 */
static void
test_others_were_told (void)
{
  struct backend *b = open_file ();
  pthread_t t, t2;

  lose_data ();
  assert (write_fua (b) == NULL);
  set (&stops_told, true);
  t = start (flush, b);
  wait_calls (1);
  t2 = start (flush, b);
  usleep (DELAY_US);
  set (&stops_told, false);
  assert (result (t) == -EIO);
  assert (result (t2) == -EIO);
  backend_close (b);
}

/* The same, and the answer of the call that is under way is older. */
static void
test_others_were_told_meanwhile (void)
{
  struct backend *b = open_file ();
  pthread_t t, t2, t3;

  set (&stops, true);
  t = start (flush, b);
  wait_calls (1);
  pthread_mutex_lock (&lock);
  lose_data ();
  answered = true;
  pthread_mutex_unlock (&lock);
  t2 = start (flush, b);
  usleep (DELAY_US);
  set (&stops_told, true);
  set (&stops, false);
  assert (result (t) == 0);
  wait_calls (1);
  t3 = start (flush, b);
  usleep (DELAY_US);
  set (&stops_told, false);
  assert (result (t2) == -EIO);
  assert (result (t3) == -EIO);
  backend_close (b);
}

/* What only the caller at hand is told: the disk's cache was not emptied. */
static void
test_told_to_one (void)
{
  struct backend *b = open_file ();

  write_error = EIO;
  assert (backend_pwrite (b, "x", 1, 0, BACKEND_FUA) == -EIO);
  write_error = 0;
  assert (backend_flush (b) == -EIO);
  backend_close (b);
}

static void
test_write_behind (void)
{
  struct backend *b = open_file ();

  b->ops->write_behind (b);
  write_behind_error = EINVAL;
  b->ops->write_behind (b);
  assert (backend_flush (b) == 0);
  write_behind_error = ENOSPC;
  b->ops->write_behind (b);
  write_behind_error = 0;
  assert (backend_flush (b) == -EIO);
  backend_close (b);
}

/* A full disk is nobody else's business. */
static void
test_write_fails (void)
{
  struct backend *b = open_file ();

  write_error = ENOSPC;
  assert (backend_pwrite (b, "x", 1, 0, BACKEND_FUA) == -ENOSPC);
  write_error = 0;
  assert (backend_flush (b) == 0);
  assert (backend_pwrite (b, "x", 1, 0, BACKEND_FUA) == 0);
  backend_close (b);
}

/* The file cannot be opened again, or (SHARE 2) could, but then half of the
 * descriptors were in use: one after the other.
 */
static void
test_no_room (unsigned share)
{
  struct backend *b = open_file ();
  const int fd = open ("/dev/null", O_RDONLY);
  struct rlimit limit, small;

  assert (fd >= 0 && close (fd) == 0);
  assert (getrlimit (RLIMIT_NOFILE, &limit) == 0);
  small = limit;
  small.rlim_cur = share * fd;
  assert (setrlimit (RLIMIT_NOFILE, &small) == 0);
  use_slots (b, NR_THREADS);
  assert (backend_pwrite (b, "x", 1, 0, BACKEND_FUA) == 0);
  assert (fcntl (fd, F_GETFD) == -1);
  assert (setrlimit (RLIMIT_NOFILE, &limit) == 0);
  lose_and_flush (b, flush);
  backend_close (b);
}

int
main (void)
{
  int fd = mkstemp (path);

  assert (fd >= 0);
  close (fd);
  test_overlap (flush, false);
  test_overlap (flush, true);
  test_overlap (write_fua, false);
  test_overlap (write_fua, true);
  test_write_is_told ();
  test_others_were_told ();
  test_others_were_told_meanwhile ();
  test_told_to_one ();
  test_write_behind ();
  test_write_fails ();
  test_no_room (1);
  test_no_room (2);
  unlink (path);
  return EXIT_SUCCESS;
}
