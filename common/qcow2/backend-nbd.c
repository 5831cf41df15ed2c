/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend: an export of an NBD server.
 *
 * Invariant: what goes to the server keeps its limits, a multiple of the
 * minimum block size (by read, modify, write if need be), and not more than
 * the maximum at once.
 *
 * Locks: RMW is taken exclusively for read, modify, write, and shared by
 * all other changes, across I/O.  It is inside of all locks of the engine,
 * and is not used where the minimum block size is 1.
 *
 * Connections are backend-nbd-pool.c.  Cannot make the export larger: NBD
 * has no way.
 */

#include <config.h>

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-nbd.h"

bool
backend_nbd_is_uri (const char *uri)
{
  static const char *const schemes[] = {
    "nbd:", "nbds:", "nbd+unix:", "nbds+unix:", "nbd+vsock:", "nbds+vsock:",
  };
  size_t i;

  for (i = 0; i < sizeof schemes / sizeof schemes[0]; ++i)
    if (strncmp (uri, schemes[i], strlen (schemes[i])) == 0)
      return true;
  return false;
}

#ifdef HAVE_LIBNBD

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backend-nbd-pool.h"

/* Scattered buffers are copied together in pieces of this size. */
#define MAX_BOUNCE      (2U << 20)
/* zero, trim, block status: lengths have 32 bits. */
#define MAX_RANGE       (UINT64_C (1) << 30)
/* Not more is read ahead at once. */
#define MAX_PREFETCH    (32U << 20)

struct backend_nbd {
  struct backend backend;
  struct backend_nbd_pool *pool;
  const struct backend_nbd_export *exp;
  atomic_bool can_zero;         /* false once the server said that not */
  pthread_rwlock_t rmw;
};

static struct backend_nbd *
to_nbd (struct backend *b)
{
  return (struct backend_nbd *) b;
}

/* [OFF, OFF + LEN) is aligned, in pieces that the server takes. */
static int
request_pieces (struct backend_nbd *n, enum backend_nbd_request_type type,
                uint8_t *buf, uint64_t len, uint64_t off, bool fua)
{
  const bool has_data = type == NBD_REQUEST_READ || type == NBD_REQUEST_WRITE;
  const uint64_t max = has_data ? n->exp->max_request : MAX_RANGE;
  int r = 0;

  while (r == 0 && len > 0) {
    struct backend_nbd_request rq = {
      .type = type, .buf = buf, .off = off, .fua = fua,
      .len = len < max ? len : max,
    };

    r = backend_nbd_pool_request (n->pool, &rq);
    if (has_data)
      buf += rq.len;
    off += rq.len;
    len -= rq.len;
  }
  return r;
}

static uint64_t
round_down (const struct backend_nbd *n, uint64_t off)
{
  return off & ~(uint64_t) (n->exp->min_block - 1);
}

static uint64_t
round_up (const struct backend_nbd *n, uint64_t off)
{
  return round_down (n, off + n->exp->min_block - 1);
}

static bool
is_aligned (const struct backend_nbd *n, uint64_t len, uint64_t off)
{
  return ((len | off) & (n->exp->min_block - 1)) == 0;
}

/* Everything that changes the export takes this, see RMW above. */
static void
begin_change (struct backend_nbd *n, bool exclusive)
{
  if (n->exp->min_block == 1)
    return;
  if (exclusive)
    pthread_rwlock_wrlock (&n->rmw);
  else
    pthread_rwlock_rdlock (&n->rmw);
}

static void
end_change (struct backend_nbd *n)
{
  if (n->exp->min_block > 1)
    pthread_rwlock_unlock (&n->rmw);
}

static bool
is_inside (const struct backend_nbd *n, uint64_t len, uint64_t off)
{
  return off <= n->exp->size && len <= n->exp->size - off;
}

/* Read or write a range that is not aligned, by whole blocks. */
static int
do_unaligned (struct backend_nbd *n, enum backend_nbd_request_type type,
              uint8_t *buf, uint64_t len, uint64_t off, bool fua)
{
  const uint64_t max = MAX_BOUNCE < n->exp->max_request ? MAX_BOUNCE
                       : n->exp->max_request;
  uint8_t *bounce;
  int r = 0;

  bounce = malloc (max);
  if (bounce == NULL) {
    nbdkit_error ("%s: out of memory", n->backend.name);
    return -ENOMEM;
  }
  while (r == 0 && len > 0) {
    uint64_t start = round_down (n, off), skip = off - start;
    uint64_t part = len < max - skip ? len : max - skip;
    uint64_t whole = round_up (n, skip + part);

    r = request_pieces (n, NBD_REQUEST_READ, bounce, whole, start, false);
    if (r == 0 && type == NBD_REQUEST_READ)
      memcpy (buf, bounce + skip, part);
    else if (r == 0) {
      memcpy (bounce + skip, buf, part);
      r = request_pieces (n, NBD_REQUEST_WRITE, bounce, whole, start, fua);
    }
    buf += part;
    off += part;
    len -= part;
  }
  free (bounce);
  return r;
}

static int
nbd_backend_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  struct backend_nbd *n = to_nbd (b);

  if (len == 0)
    return 0;
  if (!is_inside (n, len, off))
    return -ENODATA;
  if (is_aligned (n, len, off))
    return request_pieces (n, NBD_REQUEST_READ, buf, len, off, false);
  return do_unaligned (n, NBD_REQUEST_READ, buf, len, off, false);
}

static int
write_flat (struct backend_nbd *n, uint8_t *buf, uint64_t len, uint64_t off,
            bool fua)
{
  bool aligned = is_aligned (n, len, off);
  int r;

  begin_change (n, !aligned);
  if (aligned)
    r = request_pieces (n, NBD_REQUEST_WRITE, buf, len, off, fua);
  else
    r = do_unaligned (n, NBD_REQUEST_WRITE, buf, len, off, fua);
  end_change (n);
  return r;
}

/* Take up to LEN bytes from the front of the array. */
static uint64_t
iov_take (struct iovec **iov, int *iovcnt, uint8_t *buf, uint64_t len)
{
  uint64_t done = 0;

  while (*iovcnt > 0 && done < len) {
    uint64_t part = (*iov)->iov_len < len - done ? (*iov)->iov_len
                    : len - done;

    memcpy (buf + done, (*iov)->iov_base, part);
    done += part;
    (*iov)->iov_base = (uint8_t *) (*iov)->iov_base + part;
    (*iov)->iov_len -= part;
    if ((*iov)->iov_len == 0) {
      ++*iov;
      --*iovcnt;
    }
  }
  return done;
}

static int
write_scattered (struct backend_nbd *n, struct iovec *iov, int iovcnt,
                 uint64_t total, uint64_t off, bool fua)
{
  const uint64_t max = MAX_BOUNCE < n->exp->max_request ? MAX_BOUNCE
                       : n->exp->max_request;
  uint64_t size = total < max ? total : max;
  uint8_t *bounce = malloc (size);
  int r = 0;

  if (bounce == NULL) {
    nbdkit_error ("%s: out of memory", n->backend.name);
    return -ENOMEM;
  }
  while (r == 0 && total > 0) {
    /* End a piece at a block, so that only the ends are unaligned. */
    uint64_t want = size - (off & (n->exp->min_block - 1));
    uint64_t part = iov_take (&iov, &iovcnt, bounce,
                              want > 0 ? want : size);

    r = write_flat (n, bounce, part, off, fua);
    off += part;
    total -= part;
  }
  free (bounce);
  return r;
}

static int
nbd_backend_pwritev (struct backend *b, struct iovec *iov, int iovcnt,
                     uint64_t off, unsigned flags)
{
  struct backend_nbd *n = to_nbd (b);
  const bool fua = flags & BACKEND_FUA;
  uint64_t len = 0;
  int i;

  for (i = 0; i < iovcnt; ++i)
    len += iov[i].iov_len;
  if (len == 0)
    return 0;
  if (!is_inside (n, len, off)) {
    nbdkit_error ("%s: write of %" PRIu64 " bytes at offset %" PRIu64 ": "
                  "beyond the end of the export, whose size is fixed",
                  n->backend.name, len, off);
    return -ENOSPC;
  }
  if (iovcnt == 1)
    return write_flat (n, iov->iov_base, len, off, fua);
  return write_scattered (n, iov, iovcnt, len, off, fua);
}

static int
nbd_backend_flush (struct backend *b)
{
  return backend_nbd_pool_flush (to_nbd (b)->pool);
}

static int
nbd_backend_zero (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_nbd *n = to_nbd (b);
  int r;

  if (len == 0)
    return 0;
  if (!is_inside (n, len, off))
    return -ENOSPC;
  if (!n->can_zero || !is_aligned (n, len, off))
    return -ENOTSUP;
  begin_change (n, false);
  r = request_pieces (n, NBD_REQUEST_ZERO, NULL, len, off, false);
  end_change (n);
  if (r == -ENOTSUP)
    n->can_zero = false;
  return r;
}

/* Only the whole blocks in the range. */
static int
nbd_backend_punch (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_nbd *n = to_nbd (b);
  uint64_t start, end;
  int r;

  if (!n->exp->can_trim || !is_inside (n, len, off))
    return -ENOTSUP;
  start = round_up (n, off);
  end = round_down (n, off + len);
  if (start >= end)
    return 0;
  begin_change (n, false);
  r = request_pieces (n, NBD_REQUEST_TRIM, NULL, end - start, start, false);
  end_change (n);
  return r;
}

static int
nbd_backend_truncate (struct backend *b, uint64_t len, bool allocate)
{
  (void) b;
  (void) len;
  (void) allocate;
  return -ENOTSUP;
}

static int64_t
nbd_backend_size (struct backend *b)
{
  return to_nbd (b)->exp->size;
}

static int
nbd_backend_extent (struct backend *b, uint64_t off, uint64_t len,
                    enum backend_extent_type *type, uint64_t *extent_len)
{
  struct backend_nbd *n = to_nbd (b);
  struct backend_nbd_request rq = { .type = NBD_REQUEST_EXTENT };

  *type = BACKEND_DATA;
  *extent_len = len;
  if (off >= n->exp->size) {
    *type = BACKEND_HOLE;
    return 0;
  }
  if (!n->exp->can_extents || len == 0)
    return 0;
  if (len > n->exp->size - off)
    len = n->exp->size - off;
  rq.off = round_down (n, off);
  rq.len = round_up (n, len + (off - rq.off));
  if (rq.len > MAX_RANGE)
    rq.len = MAX_RANGE;
  /* Without an answer: to say "data" is always right. */
  if (backend_nbd_pool_request (n->pool, &rq) < 0 ||
      rq.extent_len <= off - rq.off)
    return 0;
  if (rq.hole)
    *type = BACKEND_HOLE;
  rq.extent_len -= off - rq.off;
  *extent_len = rq.extent_len < len ? rq.extent_len : len;
  return 0;
}

static void
nbd_backend_prefetch (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_nbd *n = to_nbd (b);
  struct backend_nbd_request rq = { .type = NBD_REQUEST_CACHE };

  if (!n->exp->can_cache || len == 0 || !is_inside (n, len, off))
    return;
  rq.off = round_down (n, off);
  rq.len = round_up (n, len + (off - rq.off));
  if (rq.len <= MAX_PREFETCH && backend_nbd_pool_request (n->pool, &rq) < 0)
    nbdkit_debug ("%s: the server cannot prefetch", n->backend.name);
}

static void
nbd_backend_close (struct backend *b)
{
  struct backend_nbd *n = to_nbd (b);

  backend_nbd_pool_close (n->pool);
  pthread_rwlock_destroy (&n->rmw);
  free (b->name);
  free (n);
}

static const struct backend_ops nbd_ops = {
  .pread = nbd_backend_pread,
  .pwritev = nbd_backend_pwritev,
  .flush = nbd_backend_flush,
  .zero = nbd_backend_zero,
  .punch = nbd_backend_punch,
  .truncate = nbd_backend_truncate,
  .size = nbd_backend_size,
  .extent = nbd_backend_extent,
  .prefetch = nbd_backend_prefetch,
  .close = nbd_backend_close,
};

int
backend_nbd_open (const char *uri, const char *export_name, bool writable,
                  struct backend **b)
{
  struct backend_nbd *n = calloc (1, sizeof *n);
  char *name = strdup (uri);
  int r;

  if (n == NULL || name == NULL) {
    nbdkit_error ("%s: out of memory", uri);
    free (name);
    free (n);
    return -ENOMEM;
  }
  r = backend_nbd_pool_open (uri, export_name, writable, &n->pool);
  if (r < 0) {
    free (name);
    free (n);
    return r;
  }
  pthread_rwlock_init (&n->rmw, NULL);
  n->exp = backend_nbd_pool_export (n->pool);
  n->can_zero = n->exp->can_zero;
  n->backend.ops = &nbd_ops;
  n->backend.name = name;
  n->backend.writable = writable;
  n->backend.fixed_size = true;
  n->backend.min_io = n->exp->min_block;
  *b = &n->backend;
  return 0;
}

#else /* !HAVE_LIBNBD */

int
backend_nbd_open (const char *uri, const char *export_name, bool writable,
                  struct backend **b)
{
  (void) export_name;
  (void) writable;
  (void) b;
  nbdkit_error ("%s: cannot connect to an NBD server: this program was built "
                "without libnbd", uri);
  return -ENOTSUP;
}

#endif /* !HAVE_LIBNBD */
