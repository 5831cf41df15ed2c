/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit tests of backend.c, backend-file.c, disk-open.c and image-lock.c. */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-file.h"
#include "image-lock.h"

static char dir[] = "test-backend-file.XXXXXX";
static unsigned nr_messages;
static char message[1024];

__attribute__ ((__format__ (printf, 1, 2))) void
nbdkit_error (const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  vsnprintf (message, sizeof message, fmt, args);
  va_end (args);
  nr_messages++;
}

static bool
is_zero (const uint8_t *p, size_t len)
{
  while (len > 0 && *p == 0)
    ++p, --len;
  return len == 0;
}

static struct backend *
open_ok (const char *path, unsigned flags)
{
  struct backend *b;

  nr_messages = 0;
  if (backend_file_open (path, flags, &b) < 0) {
    fprintf (stderr, "%s: %s\n", path, message);
    abort ();
  }
  assert (nr_messages == 0);
  return b;
}

/* Opening fails with ERR and with one message that has WORDS in it. */
static void
open_fails (const char *path, unsigned flags, int err, const char *words)
{
  struct backend *b;
  int r;

  nr_messages = 0;
  r = backend_file_open (path, flags, &b);
  if (r != -err || nr_messages != 1 || strstr (message, words) == NULL ||
      strstr (message, path) == NULL) {
    fprintf (stderr, "%s: returned %d, %u messages: %s\n", path, r,
             nr_messages, message);
    abort ();
  }
}

static void
test_types (void)
{
  struct sockaddr_un addr = { .sun_family = AF_UNIX, .sun_path = "sock" };
  int s;

  alarm (10);                   /* a FIFO must not hang */
  assert (mkfifo ("fifo", 0666) == 0);
  open_fails ("fifo", 0, EINVAL, "FIFO");
  open_fails ("fifo", BACKEND_FILE_WRITABLE, EINVAL, "FIFO");
  open_fails (".", 0, EISDIR, "directory");
  open_fails ("./", BACKEND_FILE_WRITABLE, EISDIR, "directory");
  open_fails ("/dev/null", 0, EINVAL, "character device");
  s = socket (AF_UNIX, SOCK_STREAM, 0);
  assert (s >= 0);
  assert (bind (s, (struct sockaddr *) &addr, sizeof addr) == 0);
  open_fails ("sock", 0, EINVAL, "socket");
  close (s);
  open_fails ("missing", 0, ENOENT, "No such file");
  open_fails ("missing/x", BACKEND_FILE_CREATE, ENOENT, "create");
  alarm (0);
}

static void
test_create (void)
{
  struct backend *b = open_ok ("new", BACKEND_FILE_CREATE);
  struct stat st;

  assert (b->writable && !b->fixed_size && b->min_io == 1);
  assert (strcmp (b->name, "new") == 0);
  assert (backend_size (b) == 0);
  assert (stat ("new", &st) == 0 && (st.st_mode & 0777) == 0640);
  backend_close (b);
  open_fails ("new", BACKEND_FILE_CREATE, EEXIST, "exists already");
  assert (symlink ("nowhere", "dangling") == 0);
  open_fails ("dangling", BACKEND_FILE_CREATE, EEXIST, "exists already");
}

/* Who may not write can still serve read-only.  Root may do everything,
 * so become someone else for a while.
 */
static void
test_permission (void)
{
  bool root = geteuid () == 0;

  assert (chmod ("new", 0444) == 0);
  assert (chmod (".", 0777) == 0);
  if (root)
    assert (seteuid (65534) == 0);
  open_fails ("new", BACKEND_FILE_WRITABLE, EACCES, "-r");
  backend_close (open_ok ("new", BACKEND_FILE_LOCK));
  if (root)
    assert (seteuid (0) == 0);
  assert (chmod ("new", 0) == 0);
  if (root)
    assert (seteuid (65534) == 0);
  open_fails ("new", 0, EACCES, "Permission denied");
  if (root)
    assert (seteuid (0) == 0);
  assert (chmod ("new", 0644) == 0);
}

static void
test_read_write (void)
{
  struct backend *b = open_ok ("rw", BACKEND_FILE_CREATE);
  static uint8_t buf[8192], buf2[8192];
  size_t i;

  for (i = 0; i < sizeof buf; ++i)
    buf[i] = 1 + i % 251;
  assert (backend_pread (b, buf2, 1, 0) == -ENODATA);
  assert (backend_pwrite (b, buf, 5000, 100, 0) == 0);
  assert (backend_size (b) == 5100);
  assert (backend_pread (b, buf2, 5000, 100) == 0);
  assert (memcmp (buf, buf2, 5000) == 0);
  assert (backend_pread (b, buf2, 5001, 100) == -ENODATA);
  assert (backend_pread (b, buf2, 0, 1 << 20) == 0);
  assert (backend_pread (b, buf2, 1, UINT64_MAX) == -ENODATA);
  assert (nr_messages == 0);

  memset (buf2, 1, sizeof buf2);
  assert (backend_pread_padded (b, buf2, 200, 5000) == 0);
  assert (memcmp (buf2, buf + 4900, 100) == 0 && is_zero (buf2 + 100, 100));
  assert (backend_pread_padded (b, buf2, 200, 1 << 20) == 0);
  assert (is_zero (buf2, 200));

  assert (backend_pwrite (b, buf, 10, 5100, BACKEND_FUA) == 0);
  assert (backend_size (b) == 5110);
  assert (backend_flush (b) == 0);
  assert (backend_pwrite (b, buf, 0, 9000, 0) == 0);
  assert (backend_size (b) == 5110);
  assert (nr_messages == 0);
  assert (backend_pwrite (b, buf, 10, UINT64_MAX - 3, 0) == -ENOSPC);
  assert (nr_messages == 1 && strstr (message, "rw: write"));
  backend_close (b);
}

/* More elements than one system call takes, empty ones among them, of
 * sizes that do not repeat.
 */
static void
test_many_iovecs (void)
{
  enum { N = 5000 };
  static struct iovec iov[N];
  static uint8_t data[N * 8], back[N * 8];
  struct backend *b = open_ok ("iov", BACKEND_FILE_CREATE);
  size_t i, len = 0;

  for (i = 0; i < sizeof data; ++i)
    data[i] = i * 7 % 253;
  for (i = 0; i < N; ++i) {
    iov[i].iov_base = data + len;
    iov[i].iov_len = i % 8;
    len += iov[i].iov_len;
  }
  assert (backend_pwritev (b, iov, N, 3, BACKEND_FUA) == 0);
  assert (backend_size (b) == (int64_t) len + 3);
  assert (backend_pread (b, back, len, 3) == 0);
  assert (memcmp (data, back, len) == 0);
  for (i = 0; i < N; ++i)
    iov[i].iov_len = 0;
  assert (backend_pwritev (b, iov, N, 1 << 20, 0) == 0);
  assert (backend_size (b) == (int64_t) len + 3);
  backend_close (b);
}

static void
test_truncate (void)
{
  struct backend *b = open_ok ("trunc", BACKEND_FILE_CREATE);
  uint8_t buf[512];
  struct stat st;

  assert (backend_truncate (b, 1 << 20, false) == 0);
  assert (backend_size (b) == 1 << 20);
  assert (backend_truncate (b, 2 << 20, true) == 0);
  assert (backend_size (b) == 2 << 20);
  assert (stat ("trunc", &st) == 0);
  assert (st.st_size == 2 << 20 && st.st_blocks >= (1 << 20) / 512);
  assert (backend_pread (b, buf, sizeof buf, (2 << 20) - 512) == 0);
  assert (is_zero (buf, sizeof buf));
  assert (backend_truncate (b, 5, true) == 0);
  assert (backend_size (b) == 5);
  assert (backend_truncate (b, UINT64_MAX, false) == -EFBIG);
  assert (backend_size (b) == 5 && nr_messages == 0);
  backend_close (b);
}

static void
test_zero_punch_extent (void)
{
  enum { MIB = 1 << 20 };
  struct backend *b = open_ok ("zero", BACKEND_FILE_CREATE);
  enum backend_extent_type type;
  static uint8_t buf[MIB], back[MIB];
  uint64_t len;
  struct stat st;

  memset (buf, 0x55, sizeof buf);
  assert (backend_pwrite (b, buf, MIB, 0, 0) == 0);
  assert (backend_zero (b, 1000, 100000) == 0);
  assert (backend_pread (b, back, MIB, 0) == 0);
  assert (back[999] == 0x55 && back[101000] == 0x55);
  assert (is_zero (back + 1000, 100000));

  /* Across the end, and far behind it. */
  assert (backend_zero (b, MIB - 10, 100) == 0);
  assert (backend_size (b) == MIB + 90);
  assert (backend_zero (b, 4 * MIB, MIB) == 0);
  assert (backend_size (b) == 5 * MIB);
  assert (backend_pread (b, back, MIB, 4 * MIB) == 0);
  assert (is_zero (back, MIB));
  assert (stat ("zero", &st) == 0 && st.st_blocks >= 2 * MIB / 512);
  assert (backend_zero (b, 7 * MIB, 0) == 0);
  assert (backend_size (b) == 5 * MIB);

  assert (backend_punch (b, 512 * 1024, 256 * 1024) == 0);
  assert (backend_pread (b, back, MIB, 0) == 0);
  assert (is_zero (back + 512 * 1024, 256 * 1024));
  assert (back[512 * 1024 - 1] == 0x55 && back[768 * 1024] == 0x55);
  assert (backend_punch (b, 50 * MIB, MIB) == 0);
  assert (backend_size (b) == 5 * MIB);

  assert (b->ops->extent (b, 256 * 1024, MIB, &type, &len) == 0);
  assert (type == BACKEND_DATA && len == 256 * 1024);
  assert (b->ops->extent (b, 512 * 1024, MIB, &type, &len) == 0);
  assert (type == BACKEND_HOLE && len == 256 * 1024);
  assert (b->ops->extent (b, 600 * 1024, 4096, &type, &len) == 0);
  assert (type == BACKEND_HOLE && len == 4096);
  assert (b->ops->extent (b, 768 * 1024, 4096, &type, &len) == 0);
  assert (type == BACKEND_DATA && len == 4096);
  assert (b->ops->extent (b, 90 * MIB, MIB, &type, &len) == 0);
  assert (type == BACKEND_HOLE && len == MIB);
  b->ops->prefetch (b, 0, MIB);
  b->ops->prefetch (b, 0, 0);
  assert (nr_messages == 0);
  backend_close (b);
}

/* "No space" once must not switch an operation off for good.  The limit
 * on the size of files stands in for a full disk.
 */
static void
test_enospc (void)
{
  enum { MIB = 1 << 20 };
  struct backend *b = open_ok ("full", BACKEND_FILE_CREATE);
  struct rlimit old, limit;
  static uint8_t buf[2 * MIB];

  signal (SIGXFSZ, SIG_IGN);
  assert (getrlimit (RLIMIT_FSIZE, &old) == 0);
  limit = old;
  limit.rlim_cur = MIB;
  assert (setrlimit (RLIMIT_FSIZE, &limit) == 0);
  /* Partly possible: the length is right nevertheless. */
  assert (backend_pwrite (b, buf, sizeof buf, 0, 0) == -ENOSPC);
  assert (nr_messages == 1);
  assert (b->ops->zero (b, MIB, MIB) == -ENOSPC);
  assert (backend_truncate (b, 2 * MIB, true) == -EFBIG);
  assert (backend_truncate (b, 2 * MIB, false) == -EFBIG);
  assert (nr_messages == 1);
  assert (setrlimit (RLIMIT_FSIZE, &old) == 0);

  assert (b->ops->zero (b, MIB, MIB) == 0);
  assert (backend_size (b) == 2 * MIB);
  assert (backend_truncate (b, 3 * MIB, true) == 0);
  assert (backend_size (b) == 3 * MIB);
  assert (b->ops->punch (b, 0, MIB) == 0);
  backend_close (b);
}

static void
test_read_only (void)
{
  struct backend *b = open_ok ("rw", 0);
  FILE *fp;

  assert (!b->writable);
  assert (backend_size (b) == 5110);
  /* Others may append to a raw backing file. */
  fp = fopen ("rw", "a");
  assert (fp && fputc ('x', fp) != EOF && fclose (fp) == 0);
  assert (backend_size (b) == 5111);
  nr_messages = 0;
  assert (backend_pwrite (b, "x", 1, 0, 0) == -EIO);
  assert (nr_messages == 1 && strstr (message, "Bad file descriptor"));
  backend_close (b);
}

static void
test_identity (void)
{
  struct backend *a, *b, *c;
  uint64_t dev1, ino1, dev2, ino2;

  assert (link ("rw", "rw2") == 0);
  a = open_ok ("rw", 0);
  b = open_ok ("rw2", 0);
  c = open_ok ("iov", 0);
  assert (backend_file_identity (a, &dev1, &ino1));
  assert (backend_file_identity (b, &dev2, &ino2));
  assert (dev1 == dev2 && ino1 == ino2);
  assert (backend_file_identity (c, &dev2, &ino2));
  assert (ino1 != ino2);
  backend_close (a);
  backend_close (b);
  backend_close (c);
}

#if HAVE_DECL_F_OFD_SETLK

/* FIRST holds the file; may SECOND open it? */
static void
check_pair (unsigned first, unsigned second, bool allowed)
{
  struct backend *a = open_ok ("rw", first);

  if (allowed)
    backend_close (open_ok ("rw", second));
  else
    open_fails ("rw", second, EBUSY, "in use by another");
  backend_close (a);
  /* Nothing is left of either. */
  backend_close (open_ok ("rw", BACKEND_FILE_LOCK | BACKEND_FILE_WRITABLE));
}

static void
test_locks (void)
{
  const unsigned none = 0, none_w = BACKEND_FILE_WRITABLE;
  const unsigned reader = BACKEND_FILE_LOCK;
  const unsigned writer = BACKEND_FILE_LOCK | BACKEND_FILE_WRITABLE;
  const unsigned shared = BACKEND_FILE_LOCK | BACKEND_FILE_SHARE_RW;

  check_pair (writer, writer, false);
  check_pair (writer, reader, false);
  check_pair (reader, writer, false);
  check_pair (reader, reader, true);
  check_pair (shared, reader, true);
  check_pair (reader, shared, true);
  check_pair (shared, shared, true);
  /* Who reads a raw backing file forbids nothing. */
  check_pair (shared, writer, true);
  check_pair (writer, shared, true);
  check_pair (writer, none_w, true);
  check_pair (none, writer, true);
}

static void
test_lock_bytes (void)
{
  static const struct {
    unsigned flags;
    int bytes[6];
  } tests[] = {
    { BACKEND_FILE_LOCK | BACKEND_FILE_WRITABLE,
      { 100, 101, 103, 201, 203, 0 } },
    { BACKEND_FILE_LOCK, { 100, 201, 203, 0 } },
    { BACKEND_FILE_LOCK | BACKEND_FILE_SHARE_RW, { 100, 0 } },
    { 0, { 0 } },
  };
  size_t i, j;
  int fd, byte;

  fd = open ("rw", O_RDWR);
  assert (fd >= 0);
  for (i = 0; i < sizeof tests / sizeof tests[0]; ++i) {
    struct backend *b = open_ok ("rw", tests[i].flags);

    for (byte = 0, j = 0; byte < 300; ++byte) {
      struct flock fl = { .l_type = F_WRLCK, .l_whence = SEEK_SET,
                          .l_start = byte, .l_len = 1 };

      assert (fcntl (fd, F_OFD_GETLK, &fl) == 0);
      if (byte > 0 && byte == tests[i].bytes[j]) {
        assert (fl.l_type == F_RDLCK);
        j++;
      }
      else
        assert (fl.l_type == F_UNLCK);
    }
    backend_close (b);
  }
  close (fd);
}

/* A lock held for an instant (qemu-img info) does not keep us out. */
static void *
close_soon (void *b)
{
  usleep (60 * 1000);
  backend_close (b);
  return NULL;
}

static void
test_lock_retry (void)
{
  struct backend *b;
  pthread_t thread;
  int i, r = -1;

  /* On a busy machine an instant may be long. */
  for (i = 0; r < 0 && i < 10; ++i) {
    b = open_ok ("rw", BACKEND_FILE_LOCK);
    assert (pthread_create (&thread, NULL, close_soon, b) == 0);
    r = backend_file_open ("rw", BACKEND_FILE_LOCK | BACKEND_FILE_WRITABLE,
                           &b);
    assert (pthread_join (thread, NULL) == 0);
  }
  assert (r == 0);
  backend_close (b);
}

#endif /* HAVE_DECL_F_OFD_SETLK */

/* The cached length is right whatever ran at the same time. */
static struct backend *racer;

static void *
race (void *arg)
{
  unsigned seed = (uintptr_t) arg;
  int i;

  for (i = 0; i < 3000; ++i) {
    uint64_t off = rand_r (&seed) % 100000;

    if (rand_r (&seed) % 2)
      assert (backend_pwrite (racer, "x", 1, off, 0) == 0);
    else
      assert (backend_truncate (racer, off, false) == 0);
  }
  return NULL;
}

static void
test_length_race (void)
{
  pthread_t threads[4];
  struct stat st;
  uintptr_t i;

  racer = open_ok ("race", BACKEND_FILE_CREATE);
  for (i = 0; i < 4; ++i)
    assert (pthread_create (&threads[i], NULL, race, (void *) (i + 1)) == 0);
  for (i = 0; i < 4; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
  assert (stat ("race", &st) == 0);
  assert (backend_size (racer) == st.st_size);
  backend_close (racer);
}

/* Growing never cuts off what is written beyond the end meanwhile. */
static void *
write_beyond (void *arg)
{
  uint64_t off;

  (void) arg;
  for (off = 1 << 20; off < 400 << 20; off += 1 << 20)
    assert (backend_pwrite (racer, "x", 1, off, 0) == 0);
  return NULL;
}

static void
test_grow_race (void)
{
  pthread_t thread;
  uint64_t off;
  char c;

  racer = open_ok ("grow", BACKEND_FILE_CREATE);
  assert (pthread_create (&thread, NULL, write_beyond, NULL) == 0);
  while ((off = backend_size (racer)) < 399 << 20)
    assert (backend_grow (racer, off + 1000, false) == 0);
  assert (pthread_join (thread, NULL) == 0);
  for (off = 1 << 20; off < 400 << 20; off += 1 << 20)
    assert (backend_pread (racer, &c, 1, off) == 0 && c == 'x');
  off = backend_size (racer);
  assert (backend_grow (racer, 5, false) == 0);
  assert (backend_size (racer) == (int64_t) off);
  backend_close (racer);
}

static uint64_t
space_of (const char *path)
{
  struct stat st;

  assert (stat (path, &st) == 0);
  return (uint64_t) st.st_blocks * 512;
}

/* What was allocated and neither written nor zeroed comes back. */
static void
test_unreserve (void)
{
  struct backend *b = open_ok ("space", BACKEND_FILE_CREATE);
  static uint8_t buf[1 << 20], zeroes[1 << 20];
  uint64_t off;

  if (backend_grow (b, sizeof buf, true) == -ENOTSUP) {
    backend_close (b);
    return;
  }
  assert (backend_size (b) == sizeof buf);
  assert (space_of ("space") >= sizeof buf);
  memset (buf, 1, 4096);
  for (off = 0; off < 4; ++off)
    assert (backend_pwrite (b, buf, 4096, (off << 16) + (off << 12), 0) == 0);
  assert (b->ops->zero (b, 256 << 10, 64 << 10) == 0);
  assert (b->ops->zero (b, 512 << 10, 32 << 10) == 0);
  assert (backend_flush (b) == 0);
  b->ops->unreserve (b, 0, sizeof buf);
  assert (space_of ("space") >= (4 * 4 + 96) << 10);
  assert (space_of ("space") <= (4 * 4 + 96 + 64) << 10);
  assert (backend_size (b) == sizeof buf);
  assert (backend_pread (b, buf, sizeof buf, 0) == 0);
  for (off = 0; off < 4; ++off) {
    assert (buf[(off << 16) + (off << 12)] == 1);
    memset (buf + (off << 16) + (off << 12), 0, 4096);
  }
  assert (memcmp (buf, zeroes, sizeof buf) == 0);

  assert (b->ops->allocate (b, 700 << 10, 64 << 10) == 0);
  assert (space_of ("space") >= (4 * 4 + 96 + 64) << 10);
  assert (backend_size (b) == sizeof buf && nr_messages == 0);
  backend_close (b);
}

int
main (void)
{
  char cmd[64];

  umask (027);
  assert (mkdtemp (dir) != NULL && chdir (dir) == 0);
  test_types ();
  test_create ();
  test_permission ();
  test_read_write ();
  test_many_iovecs ();
  test_truncate ();
  test_zero_punch_extent ();
  test_enospc ();
  test_read_only ();
  test_identity ();
#if HAVE_DECL_F_OFD_SETLK
  test_locks ();
  test_lock_bytes ();
  test_lock_retry ();
#endif
  test_length_race ();
  test_grow_race ();
  test_unreserve ();
  assert (chdir ("..") == 0);
  snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
  assert (system (cmd) == 0);
  return 0;
}
