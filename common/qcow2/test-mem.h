/* SPDX-License-Identifier: BSD-3-Clause */
/* A file in memory, for unit tests of the metadata layer.
 *
 * Every failed test says where: use CHECK, not assert.
 */

#ifndef TEST_MEM_H
#define TEST_MEM_H

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend.h"
#include "test-random.h"

#define CHECK(cond)                                                     \
  do {                                                                  \
    if (!(cond)) {                                                      \
      fprintf (stderr, "%s:%d: check failed: %s\n",                     \
               __FILE__, __LINE__, #cond);                              \
      abort ();                                                         \
    }                                                                   \
  } while (0)

#define CHECK_OK(expr)                                                  \
  do {                                                                  \
    int check_r = (expr);                                               \
    if (check_r != 0) {                                                 \
      fprintf (stderr, "%s:%d: %s: returned %d\n",                      \
               __FILE__, __LINE__, #expr, check_r);                     \
      abort ();                                                         \
    }                                                                   \
  } while (0)

static inline uint64_t
test_below (uint64_t *state, uint64_t n)
{
  return test_random (state) % n;
}

/* Address space; only pages that are written to cost memory.  valgrind does
 * not have much more.
 */
#define TEST_MEM_SIZE (UINT64_C (1) << 34)

struct test_mem {
  struct backend b;
  pthread_mutex_t lock;
  uint8_t *bytes;
  uint64_t len;
  uint64_t max_len;             /* -ENOSPC beyond; 0 = no limit */
  int fail_write;               /* -errno for the next write, once */
  int fail_writes_after;        /* let so many pass first */
  _Atomic unsigned writes, reads, punches;
  void (*after_read) (void);    /* called once, with no lock held */
};

static int
test_mem_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  struct test_mem *m = (struct test_mem *) b;
  int r = 0;

  m->reads++;
  pthread_mutex_lock (&m->lock);
  if (off > m->len || len > m->len - off)
    r = -ENODATA;
  else
    memcpy (buf, m->bytes + off, len);
  pthread_mutex_unlock (&m->lock);
  if (m->after_read) {
    void (*hook) (void) = m->after_read;
    m->after_read = NULL;
    hook ();
  }
  return r;
}

static int
test_mem_set_len (struct test_mem *m, uint64_t len)
{
  if (m->max_len && len > m->max_len)
    return -ENOSPC;
  CHECK (len <= TEST_MEM_SIZE);
  if (len < m->len)
    memset (m->bytes + len, 0, m->len - len);
  m->len = len;
  return 0;
}

static int
test_mem_pwritev (struct backend *b, struct iovec *iov, int iovcnt,
                  uint64_t off, unsigned flags)
{
  struct test_mem *m = (struct test_mem *) b;
  int i, r = 0;

  (void) flags;
  m->writes++;
  pthread_mutex_lock (&m->lock);
  if (m->fail_write != 0 && m->fail_writes_after-- == 0) {
    r = m->fail_write;
    m->fail_write = 0;
  }
  for (i = 0; r == 0 && i < iovcnt; ++i) {
    if (off + iov[i].iov_len > m->len)
      r = test_mem_set_len (m, off + iov[i].iov_len);
    if (r == 0)
      memcpy (m->bytes + off, iov[i].iov_base, iov[i].iov_len);
    off += iov[i].iov_len;
  }
  pthread_mutex_unlock (&m->lock);
  return r;
}

static int
test_mem_flush (struct backend *b)
{
  (void) b;
  return 0;
}

static int
test_mem_fill (struct test_mem *m, uint64_t off, uint64_t len)
{
  pthread_mutex_lock (&m->lock);
  if (off < m->len)
    memset (m->bytes + off, 0, len < m->len - off ? len : m->len - off);
  pthread_mutex_unlock (&m->lock);
  return 0;
}

static int
test_mem_zero (struct backend *b, uint64_t off, uint64_t len)
{
  return test_mem_fill ((struct test_mem *) b, off, len);
}

static int
test_mem_punch (struct backend *b, uint64_t off, uint64_t len)
{
  struct test_mem *m = (struct test_mem *) b;

  m->punches++;
  return test_mem_fill (m, off, len);
}

static int
test_mem_truncate (struct backend *b, uint64_t len, bool allocate)
{
  struct test_mem *m = (struct test_mem *) b;
  int r;

  (void) allocate;
  if (b->fixed_size)
    return -ENOTSUP;
  pthread_mutex_lock (&m->lock);
  r = test_mem_set_len (m, len);
  pthread_mutex_unlock (&m->lock);
  return r;
}

static int64_t
test_mem_size (struct backend *b)
{
  struct test_mem *m = (struct test_mem *) b;
  int64_t len;

  pthread_mutex_lock (&m->lock);
  len = m->len;
  pthread_mutex_unlock (&m->lock);
  return len;
}

static void
test_mem_close (struct backend *b)
{
  struct test_mem *m = (struct test_mem *) b;

  pthread_mutex_destroy (&m->lock);
  munmap (m->bytes, TEST_MEM_SIZE);
}

static inline void
test_mem_init (struct test_mem *m, uint64_t len)
{
  static const struct backend_ops ops = {
    .pread = test_mem_pread,
    .pwritev = test_mem_pwritev,
    .flush = test_mem_flush,
    .zero = test_mem_zero,
    .punch = test_mem_punch,
    .truncate = test_mem_truncate,
    .size = test_mem_size,
    .close = test_mem_close,
  };
  static char name[] = "memory";

  memset (m, 0, sizeof *m);
  m->b.ops = &ops;
  m->b.name = name;
  m->b.writable = true;
  m->b.min_io = 1;
  pthread_mutex_init (&m->lock, NULL);
  m->bytes = mmap (NULL, TEST_MEM_SIZE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK (m->bytes != MAP_FAILED);
  CHECK_OK (test_mem_set_len (m, len));
}

#endif /* TEST_MEM_H */
