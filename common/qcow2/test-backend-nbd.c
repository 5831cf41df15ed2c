/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit tests of backend-nbd.c and backend-nbd-pool.c, against nbdkit with
 * its memory plugin and such filters as change what a server can do.
 */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-nbd.h"
#include "test-errors.h"

#define MIB (1 << 20)

static void
test_uri (void)
{
  assert (backend_nbd_is_uri ("nbd://localhost"));
  assert (backend_nbd_is_uri ("nbds://localhost/x"));
  assert (backend_nbd_is_uri ("nbd+unix:///?socket=s"));
  assert (!backend_nbd_is_uri ("nbdx"));
  assert (!backend_nbd_is_uri ("/nbd:"));
  assert (!backend_nbd_is_uri (""));
}

#ifdef HAVE_LIBNBD

static char dir[] = "/tmp/test-backend-nbd.XXXXXX";
static char sock[64], uri[128], pidfile[64];

static void
sleep_ms (unsigned ms)
{
  const struct timespec ts = { ms / 1000, ms % 1000 * 1000000L };

  nanosleep (&ts, NULL);
}

/* nbdkit in the foreground with ARGS, a line for the shell. */
static pid_t
start_server (const char *args)
{
  char cmd[1024];
  pid_t pid;
  int i;

  unlink (pidfile);
  unlink (sock);
  snprintf (cmd, sizeof cmd, "exec nbdkit --exit-with-parent -f -U %s -P %s "
            "%s", sock, pidfile, args);
  pid = fork ();
  assert (pid >= 0);
  if (pid == 0) {
    execl ("/bin/sh", "sh", "-c", cmd, (char *) NULL);
    _exit (127);
  }
  for (i = 0; i < 600 && access (pidfile, F_OK) == -1; ++i)
    sleep_ms (20);
  assert (access (pidfile, F_OK) == 0);
  return pid;
}

static void
stop_server (pid_t pid, int sig)
{
  assert (kill (pid, sig) == 0);
  assert (waitpid (pid, NULL, 0) == pid);
}

static struct backend *
open_ok (bool writable)
{
  struct backend *b;

  nr_errors = 0;
  if (backend_nbd_open (uri, NULL, writable, &b) < 0) {
    fprintf (stderr, "%s\n", last_error);
    abort ();
  }
  assert (nr_errors == 0 && b->fixed_size);
  return b;
}

/* A shadow copy of the export: what is written is also written there. */
static uint8_t shadow[8 * MIB], buf[8 * MIB];

static void
check_all (struct backend *b, uint64_t size)
{
  assert (backend_pread (b, buf, size, 0) == 0);
  assert (memcmp (buf, shadow, size) == 0);
}

static void
random_io (struct backend *b, uint64_t size, unsigned seed)
{
  int i, j;

  for (i = 0; i < 200; ++i) {
    uint64_t off = rand_r (&seed) % size;
    uint64_t len = rand_r (&seed) % (i % 10 == 0 ? size : 5000) + 1;
    unsigned what = rand_r (&seed) % 10;

    if (len > size - off)
      len = size - off;
    if (what < 3) {
      assert (backend_pread (b, buf, len, off) == 0);
      assert (memcmp (buf, shadow + off, len) == 0);
    }
    else if (what == 3) {
      assert (backend_zero (b, off, len) == 0);
      memset (shadow + off, 0, len);
    }
    else {
      struct iovec iov[5];
      int nr = rand_r (&seed) % 5 + 1;
      uint64_t done = 0;

      memset (shadow + off, rand_r (&seed), len / 2);
      for (j = 0; j < nr; ++j) {
        iov[j].iov_base = shadow + off + done;
        iov[j].iov_len = j == nr - 1 ? len - done
                         : rand_r (&seed) % (len - done + 1);
        done += iov[j].iov_len;
      }
      assert (backend_pwritev (b, iov, nr, off,
                               what == 4 ? BACKEND_FUA : 0) == 0);
    }
    if (i % 50 == 0)
      assert (backend_flush (b) == 0);
  }
  check_all (b, size);
}

/* The same random requests against servers of all sorts. */
static void
test_servers (void)
{
  static const char *const servers[] = {
    "memory 8M",
    "--filter=nozero --filter=fua memory 8M fuamode=emulate",
    "--filter=nozero --filter=fua memory 8M",   /* without FUA */
    "--filter=blocksize-policy memory 8M blocksize-minimum=4096 "
      "blocksize-preferred=4096 blocksize-maximum=64k "
      "blocksize-error-policy=error",
    "--filter=blocksize-policy memory 8M blocksize-minimum=512 "
      "blocksize-preferred=4096 blocksize-maximum=4096 "
      "blocksize-error-policy=error",
    "--filter=multi-conn memory 8M multi-conn-mode=disable",
    "--filter=noextents --filter=nocache memory 8M",
  };
  size_t i;

  for (i = 0; i < sizeof servers / sizeof servers[0]; ++i) {
    pid_t pid = start_server (servers[i]);
    struct backend *b = open_ok (true);

    memset (shadow, 0, sizeof shadow);
    assert (backend_size (b) == 8 * MIB);
    random_io (b, 8 * MIB, i + 1);
    assert (backend_pread (b, buf, 2, 8 * MIB - 1) == -ENODATA);
    assert (backend_pread (b, buf, 1, 8 * MIB - 1) == 0);
    assert (nr_errors == 0);
    assert (backend_truncate (b, 16 * MIB, false) == -ENOTSUP);
    assert (backend_pwrite (b, buf, 2, 8 * MIB - 1, 0) == -ENOSPC);
    assert (nr_errors == 1);
    backend_close (b);
    stop_server (pid, SIGTERM);
  }
}

static void
test_extents (void)
{
  pid_t pid = start_server ("memory 8M");
  struct backend *b = open_ok (true);
  enum backend_extent_type type;
  uint64_t len;

  memset (buf, 1, MIB);
  assert (backend_pwrite (b, buf, MIB, MIB, 0) == 0);
  assert (b->ops->extent (b, 1000, 8 * MIB - 1000, &type, &len) == 0);
  assert (type == BACKEND_HOLE && len == MIB - 1000);
  assert (b->ops->extent (b, MIB, 2 * MIB, &type, &len) == 0);
  assert (type == BACKEND_DATA && len == MIB);
  assert (b->ops->extent (b, MIB + 10, 20, &type, &len) == 0);
  assert (type == BACKEND_DATA && len == 20);
  assert (backend_punch (b, MIB, MIB) == 0);
  assert (b->ops->extent (b, MIB, MIB, &type, &len) == 0);
  assert (type == BACKEND_HOLE && len == MIB);
  assert (b->ops->extent (b, 9 * MIB, MIB, &type, &len) == 0);
  assert (type == BACKEND_HOLE);
  b->ops->prefetch (b, 0, MIB);
  backend_close (b);
  stop_server (pid, SIGTERM);
}

static void
open_fails (const char *u, const char *export_name, bool writable, int err,
            const char *words)
{
  struct backend *b;
  int r;

  nr_errors = 0;
  r = backend_nbd_open (u, export_name, writable, &b);
  if (r != -err || nr_errors != 1 || !strstr (last_error, words) ||
      !strstr (last_error, u)) {
    fprintf (stderr, "%s: %d: %u messages: %s\n", u, r, nr_errors,
             last_error);
    abort ();
  }
}

static void
test_open_errors (void)
{
  struct backend *b;
  pid_t pid;

  open_fails (uri, NULL, false, EIO, "cannot connect");
  open_fails ("nbd:no slashes", NULL, false, EINVAL, "cannot connect");
  pid = start_server ("-r memory 8M");
  open_fails (uri, NULL, true, EROFS, "-r");
  backend_close (open_ok (false));
  stop_server (pid, SIGTERM);

  pid = start_server ("--filter=exportname memory 8M exportname=a "
                      "exportname-strict=true");
  open_fails (uri, "b", false, EIO, "cannot connect");
  nr_errors = 0;
  assert (backend_nbd_open (uri, "a", true, &b) == 0);
  assert (backend_pwrite (b, "x", 1, 0, 0) == 0 && backend_flush (b) == 0);
  backend_close (b);
  stop_server (pid, SIGTERM);
}

/* Errors of the server come through, and change nothing else. */
static void
test_errors (void)
{
  char args[256];
  struct backend *b;
  pid_t pid;
  FILE *fp;

  snprintf (args, sizeof args, "--filter=error memory 8M error=ENOSPC "
            "error-pwrite-rate=100%% error-zero-rate=100%% "
            "error-file=%s/err", dir);
  pid = start_server (args);
  b = open_ok (true);
  assert (backend_pwrite (b, "x", 1, 0, 0) == 0);
  snprintf (args, sizeof args, "%s/err", dir);
  fp = fopen (args, "w");
  assert (fp != NULL && fclose (fp) == 0);
  assert (backend_pwrite (b, "y", 1, 0, 0) == -ENOSPC && nr_errors == 1);
  assert (backend_zero (b, 0, 4096) == -ENOSPC && nr_errors == 1);
  assert (unlink (args) == 0);
  assert (backend_zero (b, 0, 4096) == 0);
  assert (b->ops->zero (b, 0, 4096) == 0);
  assert (backend_pwrite (b, "z", 1, 0, 0) == 0);
  assert (backend_flush (b) == 0);
  backend_close (b);
  stop_server (pid, SIGTERM);
}

/* What was read or flushed survives a restart of the server unnoticed. */
static void
test_reconnect (void)
{
  char args[128], cmd[160];
  struct backend *b;
  pid_t pid;

  snprintf (args, sizeof args, "file %s/disk", dir);
  memset (shadow, 5, sizeof shadow);
  snprintf (cmd, sizeof cmd, "truncate -s 8M %s/disk", dir);
  assert (system (cmd) == 0);
  pid = start_server (args);
  b = open_ok (true);
  assert (backend_pwrite (b, shadow, 8 * MIB, 0, 0) == 0);
  assert (backend_flush (b) == 0);
  stop_server (pid, SIGKILL);
  pid = start_server (args);
  check_all (b, 8 * MIB);
  assert (backend_pwrite (b, "x", 1, 0, BACKEND_FUA) == 0);
  shadow[0] = 'x';
  stop_server (pid, SIGKILL);
  pid = start_server (args);
  assert (backend_pwrite (b, "y", 1, 1, 0) == 0);
  shadow[1] = 'y';
  assert (backend_flush (b) == 0);
  assert (nr_errors == 0);

  /* Acknowledged, not flushed: the next flush must fail, and all others. */
  assert (backend_pwrite (b, "z", 1, 2, 0) == 0);
  shadow[2] = 'z';
  stop_server (pid, SIGKILL);
  pid = start_server (args);
  check_all (b, 8 * MIB);
  assert (nr_errors == 1 && strstr (last_error, "may be gone"));
  assert (backend_flush (b) == -EIO);
  assert (backend_pwrite (b, "z", 1, 3, 0) == 0);
  assert (backend_flush (b) == -EIO);
  assert (nr_errors == 1);
  backend_close (b);
  stop_server (pid, SIGTERM);

  /* A server of another size is not the same export. */
  pid = start_server (args);
  b = open_ok (false);
  stop_server (pid, SIGKILL);
  pid = start_server ("memory 1M");
  assert (backend_pread (b, buf, 1, 0) == -EIO);
  assert (nr_errors == 1 && strstr (last_error, "not the same"));
  stop_server (pid, SIGTERM);
  backend_close (b);
}

/* The server dies between the write and the flush, and the flush is the
 * first to notice.
 */
static void
test_lost_at_flush (void)
{
  pid_t pid = start_server ("memory 8M");
  struct backend *b = open_ok (true);

  assert (backend_pwrite (b, "z", 1, 2, 0) == 0);
  stop_server (pid, SIGKILL);
  pid = start_server ("memory 8M");
  assert (backend_flush (b) == -EIO);
  assert (nr_errors == 1);
  backend_close (b);
  stop_server (pid, SIGTERM);
}

/* Many threads on disjoint, unaligned parts; more threads than
 * connections.
 */
static struct backend *shared;

static void *
writer (void *arg)
{
  const uint64_t off = (uintptr_t) arg * 1000 + 7, len = 1000;
  uint8_t mine[1000], back[1000];
  int i;

  for (i = 0; i < 60; ++i) {
    memset (mine, i + (uintptr_t) arg, len);
    assert (backend_pwrite (shared, mine, len, off, 0) == 0);
    if (i % 20 == 0)
      assert (backend_flush (shared) == 0);
    assert (backend_pread (shared, back, len, off) == 0);
    assert (memcmp (mine, back, len) == 0);
  }
  return NULL;
}

static void
test_threads (const char *server)
{
  pid_t pid = start_server (server);
  pthread_t threads[12];
  uintptr_t i;

  shared = open_ok (true);
  for (i = 0; i < 12; ++i)
    assert (pthread_create (&threads[i], NULL, writer, (void *) i) == 0);
  for (i = 0; i < 12; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
  assert (backend_flush (shared) == 0);
  assert (nr_errors == 0);
  backend_close (shared);
  stop_server (pid, SIGTERM);
}

int
main (void)
{
  char cmd[64];

  test_uri ();
  if (system ("nbdkit --version >/dev/null 2>&1") != 0) {
    fprintf (stderr, "test-backend-nbd: skipped: there is no nbdkit\n");
    return 77;
  }
  assert (mkdtemp (dir) != NULL);
  snprintf (sock, sizeof sock, "%s/sock", dir);
  snprintf (pidfile, sizeof pidfile, "%s/pid", dir);
  snprintf (uri, sizeof uri, "nbd+unix:///?socket=%s", sock);
  test_open_errors ();
  test_servers ();
  test_extents ();
  test_errors ();
  test_reconnect ();
  test_lost_at_flush ();
  test_threads ("memory 8M");
  test_threads ("--filter=blocksize-policy memory 8M blocksize-minimum=4096 "
                "blocksize-preferred=4096 blocksize-maximum=64k "
                "blocksize-error-policy=error");
  snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
  assert (system (cmd) == 0);
  return 0;
}

#else /* !HAVE_LIBNBD */

int
main (void)
{
  struct backend *b;

  test_uri ();
  assert (backend_nbd_open ("nbd://localhost", NULL, false, &b) == -ENOTSUP);
  assert (nr_errors == 1 && strstr (last_error, "without libnbd"));
  return 0;
}

#endif /* !HAVE_LIBNBD */
