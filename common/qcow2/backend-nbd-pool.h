/* SPDX-License-Identifier: BSD-3-Clause */
/* The connections behind backend-nbd.c: a request goes to one of them, and
 * is repeated on a new one if that is lost.
 */

#ifndef BACKEND_NBD_POOL_H
#define BACKEND_NBD_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct backend_nbd_pool;

/* What the export is and can do; does not change. */
struct backend_nbd_export {
  uint64_t size;                /* bytes; a multiple of MIN_BLOCK */
  uint32_t min_block;           /* power of two; 1 = no restriction */
  uint32_t max_request;         /* bytes of data in one request */
  bool can_multi_conn, can_flush, can_fua, can_trim, can_zero, can_cache;
  bool can_extents;
};

/* See backend_nbd_open. */
extern int backend_nbd_pool_open (const char *uri, const char *export_name,
                                  bool writable,
                                  struct backend_nbd_pool **pool)
  __attribute__ ((__warn_unused_result__));
extern void backend_nbd_pool_close (struct backend_nbd_pool *pool);

extern const struct backend_nbd_export *
backend_nbd_pool_export (const struct backend_nbd_pool *pool);

enum backend_nbd_request_type {
  NBD_REQUEST_READ,
  NBD_REQUEST_WRITE,
  NBD_REQUEST_ZERO,
  NBD_REQUEST_TRIM,
  NBD_REQUEST_CACHE,
  NBD_REQUEST_EXTENT,
  NBD_REQUEST_FLUSH,            /* of one connection; not for callers */
};

struct backend_nbd_request {
  enum backend_nbd_request_type type;
  void *buf;                    /* read, write */
  uint64_t len, off;            /* within the limits of the export */
  bool fua;
  /* Result of EXTENT: the first extent, which may be longer than LEN. */
  bool hole;                    /* not allocated and reads as zeroes */
  uint64_t extent_len;          /* 0 = the server did not say */
};

/* Send a request and wait for the answer.  0; -ENOTSUP, -ENOSPC, not logged,
 * for zero and trim; -EIO, -ENOSPC, -ENOMEM, logged.
 */
extern int backend_nbd_pool_request (struct backend_nbd_pool *pool,
                                     struct backend_nbd_request *rq)
  __attribute__ ((__warn_unused_result__));

/* Make everything stable that was acknowledged.  -EIO, logged. */
extern int backend_nbd_pool_flush (struct backend_nbd_pool *pool)
  __attribute__ ((__warn_unused_result__));

#endif /* BACKEND_NBD_POOL_H */
