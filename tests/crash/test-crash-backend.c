/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit tests of the simulator itself: backend-mem.c, backend-crash.c. */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-crash.h"
#include "backend-mem.h"

#define KIB 1024

static unsigned nr_messages;

void
nbdkit_error (const char *fmt, ...)
{
  (void) fmt;
  nr_messages++;
}

static struct backend *
new_mem (void)
{
  struct backend *b;

  assert (backend_mem_create ("mem", &b) == 0);
  return b;
}

static struct backend *
new_crash (struct crash_clock *clock)
{
  struct backend *b;

  assert (backend_crash_create (new_mem (), clock, &b) == 0);
  return b;
}

static void
fill (struct backend *b, int byte, size_t len, uint64_t off, unsigned flags)
{
  uint8_t *p = malloc (len);

  memset (p, byte, len);
  assert (backend_pwrite (b, p, len, off, flags) == 0);
  free (p);
}

/* The byte at OFF; -1 beyond the end. */
static int
byte_at (struct backend *b, uint64_t off)
{
  uint8_t byte;

  return backend_pread (b, &byte, 1, off) == 0 ? byte : -1;
}

static void
test_mem (void)
{
  struct backend *b = new_mem (), *copy;
  enum backend_extent_type type;
  uint8_t buf[100];
  uint64_t len;

  assert (backend_size (b) == 0);
  assert (backend_pread (b, buf, 1, 0) == -ENODATA);
  fill (b, 7, 10000, 5000, 0);
  assert (backend_size (b) == 15000);
  assert (byte_at (b, 4999) == 0 && byte_at (b, 5000) == 7);
  assert (byte_at (b, 14999) == 7 && byte_at (b, 15000) == -1);
  assert (backend_pread (b, buf, 2, 14999) == -ENODATA);

  assert (backend_mem_clone (b, &copy) == 0);
  fill (copy, 8, 1, 6000, 0);
  assert (byte_at (b, 6000) == 7 && byte_at (copy, 6000) == 8);
  assert (byte_at (copy, 6001) == 7);
  fill (b, 9, 1, 6001, 0);
  assert (byte_at (copy, 6001) == 7);
  backend_close (b);
  assert (byte_at (copy, 14999) == 7);

  /* What is cut off is zero when it comes back. */
  assert (backend_truncate (copy, 6500, false) == 0);
  assert (backend_truncate (copy, 60000, true) == 0);
  assert (byte_at (copy, 6499) == 7 && byte_at (copy, 6500) == 0);
  assert (byte_at (copy, 14999) == 0);

  assert (copy->ops->extent (copy, 100, 90000, &type, &len) == 0);
  assert (type == BACKEND_HOLE && len == 4096 - 100);
  assert (copy->ops->extent (copy, 5000, 90000, &type, &len) == 0);
  assert (type == BACKEND_DATA && len == 8192 - 5000);

  assert (backend_zero (copy, 6000, 100) == 0);
  assert (byte_at (copy, 5999) == 7 && byte_at (copy, 6000) == 0);
  assert (backend_zero (copy, 70000, 10) == 0 && backend_size (copy) == 70010);
  assert (backend_punch (copy, 0, 1 << 20) == 0);
  assert (backend_size (copy) == 70010 && byte_at (copy, 5999) == 0);

  backend_mem_limit (copy, 80000);
  assert (backend_pwrite (copy, buf, 10, 79995, 0) == -ENOSPC);
  assert (backend_truncate (copy, 80001, false) == -ENOSPC);
  assert (backend_size (copy) == 70010);
  backend_close (copy);
}

static void
test_load_save (void)
{
  struct backend *b = new_mem (), *back;
  char path[64];

  snprintf (path, sizeof path, "test-crash-backend.%d", (int) getpid ());
  fill (b, 1, 5000, 100000, 0);
  assert (backend_truncate (b, 200001, false) == 0);
  assert (backend_mem_save (b, path) == 0);
  assert (backend_mem_save (b, path) == 0);     /* replaces */
  assert (backend_mem_load (path, &back) == 0);
  assert (backend_size (back) == 200001);
  assert (byte_at (back, 99999) == 0 && byte_at (back, 100000) == 1);
  assert (byte_at (back, 104999) == 1 && byte_at (back, 105000) == 0);
  unlink (path);
  assert (backend_mem_load (path, &back) == -ENOENT);
  backend_close (b);
  backend_close (back);
}

/* The byte at OFF after a crash at T. */
static int
after_crash (struct backend *b, uint64_t t, enum crash_keep keep,
             uint64_t arg, uint64_t off)
{
  struct crash_choice choice = { keep, arg };
  struct backend *image;
  int byte;

  assert (backend_crash_image (b, t, &choice, &image) == 0);
  byte = byte_at (image, off);
  backend_close (image);
  return byte;
}

static void
test_flush (void)
{
  struct crash_clock clock = { 0 };
  struct backend *b = new_crash (&clock);
  uint64_t t1, t2, t3;

  fill (b, 1, 4096, 0, 0);
  fill (b, 2, 4096, 4096, 0);
  t1 = clock.now;
  assert (backend_flush (b) == 0);
  t2 = clock.now;
  fill (b, 3, 4096, 0, 0);
  fill (b, 4, 4096, 4096, BACKEND_FUA);
  t3 = clock.now;

  assert (byte_at (b, 0) == 3 && byte_at (b, 4096) == 4);
  assert (backend_crash_unsynced (b, 0) == 0);
  assert (backend_crash_unsynced (b, t1) == 2);
  assert (after_crash (b, t1, CRASH_KEEP_NONE, 0, 0) == -1);
  assert (after_crash (b, t1, CRASH_KEEP_ALL, 0, 4096) == 2);
  assert (after_crash (b, t1, CRASH_KEEP_ONLY, 1, 0) == 0);
  assert (after_crash (b, t1, CRASH_KEEP_ONLY, 1, 4096) == 2);
  assert (after_crash (b, t1, CRASH_LOSE_ONLY, 1, 0) == 1);
  assert (after_crash (b, t1, CRASH_LOSE_ONLY, 1, 4096) == -1);
  /* During the flush nothing is certain, after it all is. */
  assert (backend_crash_unsynced (b, t2 - 1) == 2);
  assert (backend_crash_unsynced (b, t2) == 0);
  assert (after_crash (b, t2, CRASH_KEEP_NONE, 0, 4096) == 2);
  /* FUA is for its own data only, and only once it has ended. */
  assert (backend_crash_unsynced (b, t3 - 1) == 2);
  assert (backend_crash_unsynced (b, t3) == 1);
  assert (after_crash (b, t3, CRASH_KEEP_NONE, 0, 0) == 1);
  assert (after_crash (b, t3, CRASH_KEEP_NONE, 0, 4096) == 4);
  assert (after_crash (b, t3, CRASH_KEEP_ALL, 0, 0) == 3);
  /* Back in time. */
  assert (after_crash (b, t1, CRASH_KEEP_NONE, 0, 0) == -1);
  backend_close (b);
}

/* What a failed flush should have covered is not covered by the next. */
static void
test_failed_flush (void)
{
  static const struct crash_fault fault = { CRASH_FLUSH, 0, EIO, false, false };
  struct crash_clock clock = { 0 };
  struct backend *b = new_crash (&clock);

  fill (b, 1, 512, 0, 0);
  backend_crash_set_fault (b, &fault);
  nr_messages = 0;
  assert (backend_flush (b) == -EIO && nr_messages == 1);
  fill (b, 2, 512, 512, 0);
  assert (backend_flush (b) == 0);
  assert (backend_crash_calls (b, CRASH_FLUSH) == 2);
  assert (backend_crash_failed (b) == 1);
  assert (backend_crash_unsynced (b, clock.now) == 1);
  assert (after_crash (b, clock.now, CRASH_KEEP_NONE, 0, 0) == 0);
  assert (after_crash (b, clock.now, CRASH_KEEP_NONE, 0, 512) == 2);
  fill (b, 3, 512, 0, 0);
  assert (backend_flush (b) == 0);
  assert (after_crash (b, clock.now, CRASH_KEEP_NONE, 0, 0) == 3);
  backend_close (b);
}

static void
test_other_calls (void)
{
  struct crash_clock clock = { 0 };
  struct backend *b = new_crash (&clock);
  uint64_t t;

  fill (b, 1, 64 * KIB, 0, 0);
  assert (backend_flush (b) == 0);
  assert (backend_zero (b, 0, 4096) == 0);
  assert (backend_punch (b, 8192, 4096) == 0);
  assert (backend_truncate (b, 32 * KIB, false) == 0);
  t = clock.now;
  assert (backend_crash_unsynced (b, t) == 3);
  assert (after_crash (b, t, CRASH_KEEP_NONE, 0, 0) == 1);
  assert (after_crash (b, t, CRASH_KEEP_ONLY, 0, 0) == 0);
  assert (after_crash (b, t, CRASH_KEEP_ONLY, 1, 0) == 1);
  assert (after_crash (b, t, CRASH_KEEP_ONLY, 1, 8192) == 0);
  assert (after_crash (b, t, CRASH_KEEP_ONLY, 2, 8192) == 1);
  assert (after_crash (b, t, CRASH_KEEP_ONLY, 2, 32 * KIB) == -1);
  assert (after_crash (b, t, CRASH_LOSE_ONLY, 2, 32 * KIB) == 1);
  backend_close (b);
}

/* Sectors are never torn; everything else happens, by and by. */
static void
test_torn (void)
{
  struct crash_clock clock = { 0 };
  struct backend *b = new_crash (&clock);
  bool none = false, all = false, mixed = false, grown = false;
  uint64_t seed;

  fill (b, 1, 1000, 0, 0);
  assert (backend_flush (b) == 0);
  fill (b, 2, 8000, 100, 0);
  for (seed = 0; seed < 200; ++seed) {
    struct crash_choice choice = { CRASH_KEEP_TORN, seed };
    struct backend *image, *again;
    unsigned old = 0, new = 0, zero = 0;
    int64_t size;
    uint64_t off;

    assert (backend_crash_image (b, clock.now, &choice, &image) == 0);
    assert (backend_crash_image (b, clock.now, &choice, &again) == 0);
    size = backend_size (image);
    assert (size >= 1000 && size <= 8100 && size == backend_size (again));
    for (off = 0; off < 8100; ++off) {
      int byte = byte_at (image, off);

      assert (byte == byte_at (again, off));
      if (off < 100)
        assert (byte == 1);
      else if (off % 512 != 0 && off != 100 && off != 1000)
        assert (byte == byte_at (image, off - 1) || byte == -1);
      if (off >= 100) {
        old += byte == 1;
        new += byte == 2;
        zero += byte == 0;
      }
    }
    none |= old == 900 && size == 1000;
    all |= new == 8000;
    mixed |= old > 0 && new > 0;
    grown |= zero == 7100 && size == 8100;
    backend_close (image);
    backend_close (again);
  }
  assert (none && all && mixed && grown);
  backend_close (b);
}

static void
test_times (void)
{
  struct crash_clock clock = { 0 };
  struct backend *b = new_crash (&clock), *b2 = new_crash (&clock);
  uint64_t *times;
  size_t nr;

  fill (b, 1, 512, 0, 0);               /* 1-2 */
  fill (b2, 1, 512, 0, 0);              /* 3-4 */
  fill (b, 1, 512, 0, BACKEND_FUA);     /* 5-6 */
  assert (backend_flush (b) == 0);      /* 7-8 */
  assert (backend_truncate (b, 5, false) == 0); /* 9-10 */
  assert (backend_crash_times (b, &times, &nr) == 0);
  assert (nr == 6);
  assert (times[0] == 0 && times[1] == 1 && times[2] == 5 && times[3] == 6);
  assert (times[4] == 8 && times[5] == 9);
  free (times);
  backend_close (b);
  backend_close (b2);
}

static void
test_faults (void)
{
  static const struct crash_fault once =
    { CRASH_PWRITE | CRASH_ZERO, 1, ENOSPC, false, false };
  static const struct crash_fault forever =
    { CRASH_ALL_CALLS, 2, EIO, true, false };
  static const struct crash_fault partial =
    { CRASH_PWRITE, 0, EIO, false, true };
  struct crash_clock clock = { 0 };
  struct backend *b = new_crash (&clock);
  uint8_t buf[4096] = { 1 };

  backend_crash_set_fault (b, &once);
  assert (backend_pwrite (b, buf, 512, 0, 0) == 0);
  assert (backend_punch (b, 4096, 4096) == 0);
  assert (backend_zero (b, 4096, 4096) == -ENOSPC);
  assert (backend_size (b) == 512);
  assert (backend_zero (b, 4096, 4096) == 0);
  assert (backend_crash_failed (b) == 1);
  assert (backend_crash_calls (b, CRASH_ALL_CALLS) == 4);

  backend_crash_set_fault (b, &forever);
  assert (backend_pread (b, buf, 512, 0) == 0);
  assert (backend_flush (b) == 0);
  assert (backend_truncate (b, 0, false) == -EIO);
  assert (backend_pread (b, buf, 512, 0) == -EIO);
  assert (backend_pwrite (b, buf, 512, 0, 0) == -EIO);
  assert (backend_crash_failed (b) == 3);

  backend_crash_set_fault (b, &partial);
  memset (buf, 5, sizeof buf);
  assert (backend_pwrite (b, buf, 4096, 8192, BACKEND_FUA) == -EIO);
  assert (byte_at (b, 8192) == 5 && backend_size (b) == 8192 + 2048);
  assert (backend_crash_unsynced (b, clock.now) == 1);
  backend_crash_set_fault (b, NULL);
  assert (backend_pwrite (b, buf, 4096, 8192, BACKEND_FUA) == 0);
  backend_close (b);
}

/* Each thread's flushes cover its own earlier writes. */
static struct backend *shared;
static struct crash_clock shared_clock;

static void *
writer (void *arg)
{
  uint64_t off = (uintptr_t) arg * 4096;
  int i;

  for (i = 1; i <= 100; ++i) {
    fill (shared, i, 4096, off, 0);
    assert (backend_flush (shared) == 0);
    assert (after_crash (shared, shared_clock.now, CRASH_KEEP_NONE, 0,
                         off) == i);
  }
  return NULL;
}

static void
test_threads (void)
{
  pthread_t threads[4];
  uintptr_t i;

  shared = new_crash (&shared_clock);
  for (i = 0; i < 4; ++i)
    assert (pthread_create (&threads[i], NULL, writer, (void *) i) == 0);
  for (i = 0; i < 4; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
  backend_close (shared);
}

int
main (void)
{
  test_mem ();
  test_load_save ();
  test_flush ();
  test_failed_flush ();
  test_other_calls ();
  test_torn ();
  test_times ();
  test_faults ();
  test_threads ();
  return 0;
}
