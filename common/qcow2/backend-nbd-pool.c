/* SPDX-License-Identifier: BSD-3-Clause */
/* The connections to an NBD server, by libnbd.
 *
 * There is one, or up to MAX_CONNS if the server says that they are
 * coherent (multi-conn); all but the first are opened when they are needed.
 * A request takes a connection for itself, and uses libnbd's blocking
 * calls, so there is no thread here.
 *
 * Invariants:
 *  - A connection is "dirty" while a write on it has been acknowledged that
 *    no flush on the same connection covered.  A flush goes to each dirty
 *    connection.  To send it to one only would do by the NBD protocol, but
 *    then a server that was restarted between a write on one connection and
 *    a flush on another could not be noticed.
 *  - A dirty connection that is lost makes the pool "lost": writes that
 *    were acknowledged may be gone.  Flush fails from then on, so they
 *    are never taken for stable.
 *
 * Locks: LOCK_BACKEND protects who has which connection, dirty and lost.
 * It is not held across I/O.
 *
 * Knows nothing of alignment and limits: see backend-nbd.c.  Does not give
 * up on a server that accepts a request and never answers; TCP does.
 */

#include <config.h>

#ifdef HAVE_LIBNBD

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-nbd-pool.h"
#include "locks.h"
#include "nbd-library.h"

#define MAX_CONNS       4
/* A server that does not name its maximum accepts this much (NBD
 * protocol), and more at once gains nothing.
 */
#define MAX_REQUEST     (32U << 20)

#define CONNECT_TIMEOUT_MS      30000
/* Waits between attempts to get a lost connection back: 6 s in all. */
static const unsigned retry_ms[] = { 0, 100, 400, 1500, 4000 };
#define NR_RETRIES (sizeof retry_ms / sizeof retry_ms[0])

struct conn {
  struct nbd_handle *h;         /* NULL = not connected */
  bool busy, dirty;
};

struct backend_nbd_pool {
  char *uri, *export_name;
  bool writable;
  struct backend_nbd_export exp;
  unsigned nr_conns;            /* that may be opened */

  struct ranked_mutex lock;     /* LOCK_BACKEND */
  pthread_cond_t idle;
  struct conn conns[MAX_CONNS];
  bool lost;
};

static int64_t
now_ms (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_MONOTONIC, &ts);
  return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* libnbd's blocking connect waits for ever for a server that accepts and
 * says nothing.
 */
static int
wait_connected (struct nbd_handle *h)
{
  int64_t left, deadline = now_ms () + CONNECT_TIMEOUT_MS;

  while (libnbd.aio_is_connecting (h) == 1) {
    left = deadline - now_ms ();
    if (left <= 0)
      return -ETIMEDOUT;
    if (libnbd.poll (h, (int) left) == -1)
      return -EIO;
  }
  return libnbd.aio_is_ready (h) == 1 || libnbd.aio_is_negotiating (h) == 1
         ? 0 : -EIO;
}

/* 0: *H_RET is connected.  -EINVAL (not a URI), -EIO: *H_RET is NULL, and
 * WHY has the reason in words.
 */
static int
connect_handle (const struct backend_nbd_pool *pool,
                struct nbd_handle **h_ret, char *why, size_t why_len)
{
  struct nbd_handle *h = libnbd.create ();
  int r = 0;

  *h_ret = NULL;
  why[0] = '\0';
  if (h == NULL)
    r = -EIO;
  if (r == 0 &&
      (libnbd.set_uri_allow_local_file (h, true) == -1 ||
       libnbd.add_meta_context (h, LIBNBD_CONTEXT_BASE_ALLOCATION) == -1 ||
       libnbd.set_opt_mode (h, pool->export_name != NULL) == -1 ||
       libnbd.aio_connect_uri (h, pool->uri) == -1))
    r = libnbd.get_errno () == EINVAL ? -EINVAL : -EIO;
#ifdef LIBNBD_HAVE_NBD_SET_PREAD_INITIALIZE
  /* What a failed read leaves in the buffer is not looked at. */
  if (r == 0)
    libnbd.set_pread_initialize (h, false);
#endif
  if (r == 0)
    r = wait_connected (h);
  if (r == 0 && pool->export_name && libnbd.aio_is_negotiating (h) == 1 &&
      (libnbd.set_export_name (h, pool->export_name) == -1 ||
       libnbd.opt_go (h) == -1))
    r = -EIO;
  if (r == -ETIMEDOUT)
    strncat (why, "the server does not answer", why_len - 1);
  else if (r < 0)
    strncat (why, libnbd.get_error () ? libnbd.get_error () : "out of memory",
             why_len - 1);
  if (r < 0) {
    libnbd.close (h);
    return r == -EINVAL ? r : -EIO;
  }
  *h_ret = h;
  return 0;
}

/* Whole blocks only: the protocol wants it so, but does not enforce it. */
static uint64_t
export_size (const struct backend_nbd_export *e, struct nbd_handle *h)
{
  int64_t size = libnbd.get_size (h);

  return size < 0 ? 0 : (uint64_t) size & ~(uint64_t) (e->min_block - 1);
}

static void
read_capabilities (struct backend_nbd_export *e, struct nbd_handle *h)
{
  int64_t min = libnbd.get_block_size (h, LIBNBD_SIZE_MINIMUM);
  int64_t max = libnbd.get_block_size (h, LIBNBD_SIZE_MAXIMUM);

  e->min_block = min > 0 && min <= 65536 && (min & (min - 1)) == 0 ? min : 1;
  e->max_request = max > 0 && max < MAX_REQUEST ? max : MAX_REQUEST;
  e->max_request &= ~(e->min_block - 1);
  if (e->max_request == 0)
    e->max_request = e->min_block;
  e->size = export_size (e, h);
  e->can_multi_conn = libnbd.can_multi_conn (h) == 1;
  e->can_flush = libnbd.can_flush (h) == 1;
  e->can_fua = libnbd.can_fua (h) == 1;
  e->can_trim = libnbd.can_trim (h) == 1;
  e->can_zero = libnbd.can_zero (h) == 1;
  e->can_cache = libnbd.can_cache (h) == 1;
  e->can_extents =
    libnbd.can_meta_context (h, LIBNBD_CONTEXT_BASE_ALLOCATION) == 1;
}

/* After connecting again: still the same export, as far as one can see? */
static bool
is_same_export (const struct backend_nbd_pool *pool, struct nbd_handle *h)
{
  const struct backend_nbd_export *e = &pool->exp;

  return export_size (e, h) == e->size &&
    (!pool->writable || libnbd.is_read_only (h) == 0) &&
    (!e->can_flush || libnbd.can_flush (h) == 1) &&
    (!e->can_fua || libnbd.can_fua (h) == 1);
}

/* The connection, which the caller has taken, is no more. */
static void
drop_connection (struct backend_nbd_pool *pool, struct conn *c)
{
  bool lost;

  libnbd.close (c->h);
  c->h = NULL;
  {
    MUTEX_SCOPE (&pool->lock);
    lost = c->dirty && !pool->lost;
    pool->lost = pool->lost || c->dirty;
    c->dirty = false;
  }
  if (lost)
    nbdkit_error ("%s: the connection was lost before the last writes were "
                  "flushed: they may be gone, and no flush will succeed any "
                  "more; open the image again", pool->uri);
}

static int
connect_again (struct backend_nbd_pool *pool, struct conn *c)
{
  char why[256];
  int r;

  r = connect_handle (pool, &c->h, why, sizeof why);
  if (r < 0) {
    nbdkit_debug ("%s: cannot connect: %s", pool->uri, why);
    return r;
  }
  if (!is_same_export (pool, c->h)) {
    nbdkit_error ("%s: the export is not the same any more after the "
                  "connection was lost (size, or what it can do)", pool->uri);
    libnbd.close (c->h);
    c->h = NULL;
    return -ESTALE;
  }
  return 0;
}

/* Take a connection: an idle one, or if there is none one that is not open
 * yet.  A lost one is as good as never opened.
 */
static struct conn *
take_connection (struct backend_nbd_pool *pool)
{
  unsigned i;

  MUTEX_SCOPE (&pool->lock);
  for (;;) {
    struct conn *best = NULL;

    for (i = 0; i < pool->nr_conns; ++i) {
      struct conn *c = &pool->conns[i];

      if (!c->busy && (best == NULL || (!best->h && c->h)))
        best = c;
    }
    if (best) {
      best->busy = true;
      return best;
    }
    ranked_mutex_wait (&pool->idle, &pool->lock);
  }
}

/* DIRTIED: a write was acknowledged on it. */
static void
give_connection (struct backend_nbd_pool *pool, struct conn *c, bool dirtied)
{
  MUTEX_SCOPE (&pool->lock);
  c->busy = false;
  c->dirty = c->dirty || dirtied;
  /* All: flush waits for a certain one. */
  pthread_cond_broadcast (&pool->idle);
}

/* ---------------------------------------------------------------------- */

static const char *const request_names[] = {
  [NBD_REQUEST_READ] = "read",
  [NBD_REQUEST_WRITE] = "write",
  [NBD_REQUEST_ZERO] = "zeroing",
  [NBD_REQUEST_TRIM] = "trim",
  [NBD_REQUEST_CACHE] = "prefetch",
  [NBD_REQUEST_EXTENT] = "block status",
  [NBD_REQUEST_FLUSH] = "flush",
};

/* Keeps the first extent.  Its length may be more than was asked for. */
static int
extent_callback (void *opaque, const char *context, uint64_t off,
                 uint32_t *entries, size_t nr, int *error)
{
  struct backend_nbd_request *rq = opaque;

  (void) off;
  (void) error;
  if (strcmp (context, LIBNBD_CONTEXT_BASE_ALLOCATION) == 0 &&
      nr >= 2 && rq->extent_len == 0) {
    const uint32_t hole = LIBNBD_STATE_HOLE | LIBNBD_STATE_ZERO;

    rq->extent_len = entries[0];
    rq->hole = (entries[1] & hole) == hole;
  }
  return 0;
}

/* Send one request and wait for the answer.  0 or -1 as libnbd has it. */
static int
send_once (const struct backend_nbd_pool *pool, struct nbd_handle *h,
           struct backend_nbd_request *rq)
{
  uint32_t fua = rq->fua && pool->exp.can_fua ? LIBNBD_CMD_FLAG_FUA : 0;

  switch (rq->type) {
  case NBD_REQUEST_READ:
    return libnbd.pread (h, rq->buf, rq->len, rq->off, 0);
  case NBD_REQUEST_WRITE:
    if (libnbd.pwrite (h, rq->buf, rq->len, rq->off, fua) == -1)
      return -1;
    return rq->fua && !fua && pool->exp.can_flush ? libnbd.flush (h, 0) : 0;
  case NBD_REQUEST_ZERO:
    return libnbd.zero (h, rq->len, rq->off, LIBNBD_CMD_FLAG_NO_HOLE);
  case NBD_REQUEST_TRIM:
    return libnbd.trim (h, rq->len, rq->off, 0);
  case NBD_REQUEST_FLUSH:
    return libnbd.flush (h, 0);
  case NBD_REQUEST_CACHE:
    return libnbd.cache (h, rq->len, rq->off, 0);
  case NBD_REQUEST_EXTENT:
    rq->extent_len = 0;
    return libnbd.block_status (h, rq->len, rq->off,
                             (nbd_extent_callback) {
                               .callback = extent_callback, .user_data = rq,
                             }, 0);
  }
  return -1;
}

static bool
is_connection_lost (struct nbd_handle *h)
{
  return libnbd.get_errno () == ESHUTDOWN ||
    libnbd.aio_is_dead (h) == 1 || libnbd.aio_is_closed (h) == 1;
}

/* The server's answer as ours.  libnbd's message is known. */
static int
answer_error (const struct backend_nbd_pool *pool,
              const struct backend_nbd_request *rq)
{
  int err = libnbd.get_errno ();
  const char *msg = libnbd.get_error ();

  if (rq->type == NBD_REQUEST_CACHE || rq->type == NBD_REQUEST_EXTENT)
    return -EIO;
  if (rq->type == NBD_REQUEST_ZERO || rq->type == NBD_REQUEST_TRIM) {
    if (err == ENOTSUP || err == EOPNOTSUPP || err == EINVAL)
      return -ENOTSUP;
    if (err == ENOSPC)
      return -ENOSPC;
  }
  nbdkit_error ("%s: %s of %" PRIu64 " bytes at offset %" PRIu64 ": %s",
                pool->uri, request_names[rq->type], rq->len, rq->off,
                msg ? msg : strerror (err));
  return err == ENOSPC || err == ENOMEM ? -err : -EIO;
}

static void
sleep_ms (unsigned ms)
{
  const struct timespec ts = { .tv_sec = ms / 1000,
                               .tv_nsec = ms % 1000 * 1000000L };

  if (ms > 0)
    nanosleep (&ts, NULL);
}

/* On the connection C, which the caller has taken. */
static int
request_on (struct backend_nbd_pool *pool, struct conn *c,
            struct backend_nbd_request *rq)
{
  size_t attempt;
  int r;

  for (attempt = 0; attempt < NR_RETRIES; ++attempt) {
    if (c->h == NULL) {
      sleep_ms (retry_ms[attempt]);
      r = connect_again (pool, c);
      if (r == -ESTALE)
        return -EIO;
      if (r < 0)
        continue;
    }
    if (send_once (pool, c->h, rq) == 0)
      return 0;
    if (!is_connection_lost (c->h))
      return answer_error (pool, rq);
    nbdkit_debug ("%s: connection lost: %s", pool->uri, libnbd.get_error ());
    drop_connection (pool, c);
    /* Nothing on the new connection would be covered. */
    if (rq->type == NBD_REQUEST_FLUSH)
      return -EIO;
  }
  nbdkit_error ("%s: %s of %" PRIu64 " bytes at offset %" PRIu64 ": the "
                "connection to the server was lost, and it does not come "
                "back", pool->uri, request_names[rq->type], rq->len, rq->off);
  return -EIO;
}

int
backend_nbd_pool_request (struct backend_nbd_pool *pool,
                          struct backend_nbd_request *rq)
{
  struct conn *c = take_connection (pool);
  bool changes = rq->type == NBD_REQUEST_WRITE ||
    rq->type == NBD_REQUEST_ZERO || rq->type == NBD_REQUEST_TRIM;
  int r;

  r = request_on (pool, c, rq);
  /* After an error as well: part of it may have been done. */
  give_connection (pool, c, changes && !(r == 0 && rq->fua));
  return r;
}

/* Flush the connection if it is dirty, once it is idle. */
static int
flush_connection (struct backend_nbd_pool *pool, struct conn *c)
{
  struct backend_nbd_request rq = { .type = NBD_REQUEST_FLUSH };
  int r;

  {
    MUTEX_SCOPE (&pool->lock);
    while (c->busy)
      ranked_mutex_wait (&pool->idle, &pool->lock);
    if (!c->dirty)
      return 0;
    c->busy = true;
  }
  r = request_on (pool, c, &rq);
  MUTEX_SCOPE (&pool->lock);
  c->busy = false;
  if (r == 0)
    c->dirty = false;
  else
    pool->lost = true;  /* a second attempt would cover nothing */
  pthread_cond_broadcast (&pool->idle);
  return r;
}

int
backend_nbd_pool_flush (struct backend_nbd_pool *pool)
{
  unsigned i;
  int r = 0;

  for (i = 0; pool->exp.can_flush && r == 0 && i < pool->nr_conns; ++i)
    r = flush_connection (pool, &pool->conns[i]);
  MUTEX_SCOPE (&pool->lock);
  return pool->lost ? -EIO : r;
}

static int
first_connection (struct backend_nbd_pool *pool)
{
  struct nbd_handle *h;
  char why[256];
  int r;

  r = connect_handle (pool, &h, why, sizeof why);
  if (r < 0) {
    nbdkit_error ("%s: cannot connect to the NBD server: %s", pool->uri, why);
    return r;
  }
  pool->conns[0].h = h;
  if (pool->writable && libnbd.is_read_only (h) == 1) {
    nbdkit_error ("%s: the NBD server offers this export read-only (serve "
                  "the image with -r)", pool->uri);
    return -EROFS;
  }
  read_capabilities (&pool->exp, h);
  pool->nr_conns = pool->exp.can_multi_conn ? MAX_CONNS : 1;
  if (pool->writable && !pool->exp.can_flush)
    nbdkit_debug ("%s: the server cannot flush: what is stable is up to it",
                  pool->uri);
  return 0;
}

int
backend_nbd_pool_open (const char *uri, const char *export_name,
                       bool writable, struct backend_nbd_pool **pool_ret)
{
  struct backend_nbd_pool *pool;
  int r;

  r = nbd_library_load ();
  if (r < 0)
    return r;
  r = -ENOMEM;
  pool = calloc (1, sizeof *pool);
  if (pool == NULL) {
    nbdkit_error ("%s: out of memory", uri);
    return r;
  }
  pool->writable = writable;
  ranked_mutex_init (&pool->lock, LOCK_BACKEND);
  pthread_cond_init (&pool->idle, NULL);
  pool->uri = strdup (uri);
  if (export_name)
    pool->export_name = strdup (export_name);
  if (pool->uri == NULL || (export_name && pool->export_name == NULL))
    nbdkit_error ("%s: out of memory", uri);
  else
    r = first_connection (pool);
  if (r < 0) {
    backend_nbd_pool_close (pool);
    return r;
  }
  *pool_ret = pool;
  return 0;
}

void
backend_nbd_pool_close (struct backend_nbd_pool *pool)
{
  unsigned i;

  for (i = 0; i < MAX_CONNS; ++i) {
    struct nbd_handle *h = pool->conns[i].h;

    if (h && libnbd.aio_is_ready (h) == 1)
      libnbd.shutdown (h, 0);
    libnbd.close (h);
  }
  pthread_cond_destroy (&pool->idle);
  ranked_mutex_destroy (&pool->lock);
  free (pool->uri);
  free (pool->export_name);
  free (pool);
}

const struct backend_nbd_export *
backend_nbd_pool_export (const struct backend_nbd_pool *pool)
{
  return &pool->exp;
}

#endif /* HAVE_LIBNBD */
