/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend in memory.
 *
 * The content is an array of chunks; NULL is a hole.  A chunk has a
 * reference count, and is copied before it is changed if another backend
 * refers to it as well.  So the crash simulator can make thousands of
 * images that differ in few places.
 *
 * Invariant: bytes of the last chunk beyond the length are zero.
 *
 * Locks: one mutex per backend, for everything in it.  It stands for the
 * kernel's, so it has no rank, and nothing is called while it is held.
 *
 * All is "stable" at once: losing things is the job of backend-crash.c.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-file.h"
#include "backend-mem.h"

#define CHUNK_BITS      12
#define CHUNK_SIZE      (UINT64_C (1) << CHUNK_BITS)
#define MAX_LEN         (UINT64_C (1) << 40)

struct chunk {
  atomic_uint refs;
  uint8_t data[CHUNK_SIZE];
};

struct backend_mem {
  struct backend backend;
  pthread_mutex_t lock;
  uint64_t len, max_len;
  struct chunk **chunks;        /* NULL elements are holes */
  size_t nr_chunks;             /* size of the array: covers LEN or less */
};

static const struct backend_ops mem_ops;

static struct backend_mem *
to_mem (struct backend *b)
{
  if (b->ops != &mem_ops)
    abort ();
  return (struct backend_mem *) b;
}

static void
put_chunk (struct chunk *c)
{
  if (c && atomic_fetch_sub (&c->refs, 1) == 1)
    free (c);
}

static void
lock (struct backend_mem *m)
{
  pthread_mutex_lock (&m->lock);
}

static void
unlock (struct backend_mem *m)
{
  pthread_mutex_unlock (&m->lock);
}

/* The chunk as one that nobody else refers to, NULL if out of memory. */
static uint8_t *
own_chunk_locked (struct backend_mem *m, size_t i)
{
  struct chunk *c;

  if (i >= m->nr_chunks) {
    size_t n = i + 1 + i / 2;
    struct chunk **p = realloc (m->chunks, n * sizeof *p);

    if (p == NULL)
      return NULL;
    memset (p + m->nr_chunks, 0, (n - m->nr_chunks) * sizeof *p);
    m->chunks = p;
    m->nr_chunks = n;
  }
  if (m->chunks[i] && atomic_load (&m->chunks[i]->refs) == 1)
    return m->chunks[i]->data;
  c = malloc (sizeof *c);
  if (c == NULL)
    return NULL;
  atomic_init (&c->refs, 1);
  if (m->chunks[i])
    memcpy (c->data, m->chunks[i]->data, CHUNK_SIZE);
  else
    memset (c->data, 0, CHUNK_SIZE);
  put_chunk (m->chunks[i]);
  m->chunks[i] = c;
  return c->data;
}

static const uint8_t *
peek_chunk_locked (const struct backend_mem *m, size_t i)
{
  return i < m->nr_chunks && m->chunks[i] ? m->chunks[i]->data : NULL;
}

/* How much of [OFF, OFF + LEN) is in the first chunk that it touches. */
static size_t
chunk_part (uint64_t off, uint64_t len)
{
  uint64_t n = CHUNK_SIZE - (off & (CHUNK_SIZE - 1));

  return n < len ? n : len;
}

/* P = NULL: zeroes.  The length stays as it is. */
static int
fill_locked (struct backend_mem *m, const uint8_t *p,
             uint64_t off, uint64_t len)
{
  while (len > 0) {
    size_t i = off >> CHUNK_BITS, n = chunk_part (off, len);
    uint8_t *data;

    if (p == NULL && n == CHUNK_SIZE) {
      if (i < m->nr_chunks) {
        put_chunk (m->chunks[i]);
        m->chunks[i] = NULL;
      }
    }
    else if (p || peek_chunk_locked (m, i)) {
      data = own_chunk_locked (m, i);
      if (data == NULL)
        return -ENOMEM;
      data += off & (CHUNK_SIZE - 1);
      if (p)
        memcpy (data, p, n);
      else
        memset (data, 0, n);
    }
    if (p)
      p += n;
    off += n;
    len -= n;
  }
  return 0;
}

static int
mem_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  struct backend_mem *m = to_mem (b);
  uint8_t *p = buf;
  int r = 0;

  if (len == 0)
    return 0;
  lock (m);
  if (off > m->len || len > m->len - off)
    r = -ENODATA;
  while (r == 0 && len > 0) {
    size_t n = chunk_part (off, len);
    const uint8_t *data = peek_chunk_locked (m, off >> CHUNK_BITS);

    if (data)
      memcpy (p, data + (off & (CHUNK_SIZE - 1)), n);
    else
      memset (p, 0, n);
    p += n;
    off += n;
    len -= n;
  }
  unlock (m);
  return r;
}

static int
mem_pwritev (struct backend *b, struct iovec *iov, int iovcnt,
             uint64_t off, unsigned flags)
{
  struct backend_mem *m = to_mem (b);
  int i, r = 0;

  (void) flags;
  lock (m);
  for (i = 0; r == 0 && i < iovcnt; ++i) {
    uint64_t n = iov[i].iov_len;

    if (n == 0)
      continue;
    if (off > m->max_len || n > m->max_len - off)
      r = -ENOSPC;
    else
      r = fill_locked (m, iov[i].iov_base, off, n);
    if (r < 0)
      break;
    off += n;
    if (off > m->len)
      m->len = off;
  }
  unlock (m);
  return r;
}

static int
mem_flush (struct backend *b)
{
  (void) b;
  return 0;
}

static int
mem_zero (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_mem *m = to_mem (b);
  int r = -ENOSPC;

  lock (m);
  if (off <= m->max_len && len <= m->max_len - off) {
    r = fill_locked (m, NULL, off, len);
    if (r == 0 && len > 0 && off + len > m->len)
      m->len = off + len;
  }
  unlock (m);
  return r;
}

static int
mem_punch (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_mem *m = to_mem (b);
  int r = 0;

  lock (m);
  if (off < m->len)
    r = fill_locked (m, NULL, off, len < m->len - off ? len : m->len - off);
  unlock (m);
  return r;
}

static int
mem_truncate (struct backend *b, uint64_t len, bool allocate)
{
  struct backend_mem *m = to_mem (b);
  int r = 0;

  (void) allocate;
  lock (m);
  if (len > m->max_len)
    r = -ENOSPC;
  else if (len < m->len)
    r = fill_locked (m, NULL, len, m->len - len);
  if (r == 0)
    m->len = len;
  unlock (m);
  return r;
}

static int64_t
mem_size (struct backend *b)
{
  struct backend_mem *m = to_mem (b);
  int64_t len;

  lock (m);
  len = m->len;
  unlock (m);
  return len;
}

static int
mem_extent (struct backend *b, uint64_t off, uint64_t len,
            enum backend_extent_type *type, uint64_t *extent_len)
{
  struct backend_mem *m = to_mem (b);
  uint64_t n;

  lock (m);
  *type = peek_chunk_locked (m, off >> CHUNK_BITS) ? BACKEND_DATA
          : BACKEND_HOLE;
  n = chunk_part (off, len);
  while (n < len &&
         !peek_chunk_locked (m, (off + n) >> CHUNK_BITS) ==
         (*type == BACKEND_HOLE))
    n += chunk_part (off + n, len - n);
  *extent_len = n;
  unlock (m);
  return 0;
}

static void
mem_close (struct backend *b)
{
  struct backend_mem *m = to_mem (b);
  size_t i;

  for (i = 0; i < m->nr_chunks; ++i)
    put_chunk (m->chunks[i]);
  free (m->chunks);
  pthread_mutex_destroy (&m->lock);
  free (b->name);
  free (m);
}

static const struct backend_ops mem_ops = {
  .pread = mem_pread,
  .pwritev = mem_pwritev,
  .flush = mem_flush,
  .zero = mem_zero,
  .punch = mem_punch,
  .truncate = mem_truncate,
  .size = mem_size,
  .extent = mem_extent,
  .close = mem_close,
};

int
backend_mem_create (const char *name, struct backend **b)
{
  struct backend_mem *m = calloc (1, sizeof *m);

  if (m == NULL)
    return -ENOMEM;
  m->backend.name = strdup (name);
  if (m->backend.name == NULL) {
    free (m);
    return -ENOMEM;
  }
  m->backend.ops = &mem_ops;
  m->backend.writable = true;
  m->backend.min_io = 1;
  m->max_len = MAX_LEN;
  pthread_mutex_init (&m->lock, NULL);
  *b = &m->backend;
  return 0;
}

int
backend_mem_clone (struct backend *b, struct backend **copy)
{
  struct backend_mem *from = to_mem (b), *to;
  size_t i;
  int r;

  r = backend_mem_create (b->name, copy);
  if (r < 0)
    return r;
  to = to_mem (*copy);
  lock (from);
  to->chunks = malloc ((from->nr_chunks + 1) * sizeof *to->chunks);
  if (to->chunks) {
    to->nr_chunks = from->nr_chunks;
    to->len = from->len;
    to->max_len = from->max_len;
    for (i = 0; i < from->nr_chunks; ++i) {
      to->chunks[i] = from->chunks[i];
      if (to->chunks[i])
        atomic_fetch_add (&to->chunks[i]->refs, 1);
    }
  }
  unlock (from);
  if (to->chunks == NULL) {
    backend_close (*copy);
    return -ENOMEM;
  }
  return 0;
}

/* Holes stay holes. */
static int
copy_data (struct backend *from, struct backend *to, uint64_t len)
{
  static const uint8_t zero[CHUNK_SIZE];
  uint8_t buf[CHUNK_SIZE];
  uint64_t off;
  size_t n;
  int r = 0;

  for (off = 0; r == 0 && off < len; off += n) {
    enum backend_extent_type type;
    uint64_t extent_len;

    n = chunk_part (off, len - off);
    r = from->ops->extent (from, off, n, &type, &extent_len);
    if (r < 0 || (type == BACKEND_HOLE && extent_len == n))
      continue;
    r = backend_pread (from, buf, n, off);
    if (r == 0 && memcmp (buf, zero, n) != 0)
      r = backend_pwrite (to, buf, n, off, 0);
  }
  if (r == 0)
    r = backend_truncate (to, len, false);
  return r;
}

int
backend_mem_load (const char *path, struct backend **b)
{
  struct backend *file;
  int64_t len;
  int r;

  r = backend_file_open (path, 0, &file);
  if (r < 0)
    return r;
  r = backend_mem_create (path, b);
  if (r == 0) {
    len = backend_size (file);
    r = len < 0 ? (int) len : copy_data (file, *b, len);
    if (r < 0)
      backend_close (*b);
  }
  backend_close (file);
  return r;
}

int
backend_mem_save (struct backend *b, const char *path)
{
  struct backend *file;
  int r;

  if (unlink (path) == -1 && errno != ENOENT) {
    r = -errno;
    nbdkit_error ("%s: %s", path, strerror (-r));
    return r;
  }
  r = backend_file_open (path, BACKEND_FILE_CREATE, &file);
  if (r < 0)
    return r;
  r = copy_data (b, file, mem_size (b));
  backend_close (file);
  return r;
}

void
backend_mem_limit (struct backend *b, uint64_t max_len)
{
  struct backend_mem *m = to_mem (b);

  lock (m);
  m->max_len = max_len;
  unlock (m);
}
