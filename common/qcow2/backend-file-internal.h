/* SPDX-License-Identifier: BSD-3-Clause */
/* What backend-file.c (opening, reading, writing), backend-file-sync.c
 * (making it stable) and backend-file-space.c (everything that changes which
 * space the file has) share.
 */

#ifndef BACKEND_FILE_INTERNAL_H
#define BACKEND_FILE_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "locks.h"

/* Ranges of which a caller of zero wants to keep the space.  When there are
 * more, the last one grows and covers what is between.
 */
#define MAX_KEPT 128

struct backend_file_range {
  uint64_t start, end;
};

/* Flushes, and writes that are stable at once, which run at the same time:
 * nbdkit's default of threads.
 */
#define BACKEND_FILE_SLOTS 16

struct backend_file_slot {
  int fd;                       /* an open file description of its own */
  bool busy;
  uint64_t ripe;                /* flushes use it from that value of ENDED */
};

struct backend_file_sync {
  struct ranked_mutex lock;     /* LOCK_BACKEND: all but LOST */
  pthread_cond_t released;
  struct backend_file_slot slots[BACKEND_FILE_SLOTS];
  unsigned nr_slots;
  uint64_t ended;               /* calls that had slot 0 */
  bool can_open;
  atomic_bool lost;             /* the host has told somebody of lost data */
};

struct backend_file {
  struct backend backend;
  int fd;
  bool is_block;
  uint32_t sector_size;         /* block devices: unit of zero, punch */
  uint64_t dev, ino;
  struct ranked_rwlock growth;  /* LOCK_GROWTH */
  struct ranked_mutex lock;     /* LOCK_BACKEND: LENGTH, KEPT */
  _Atomic int64_t length;       /* block devices and writable files only */
  struct backend_file_range kept[MAX_KEPT];
  unsigned nr_kept;
  struct backend_file_sync sync;
  /* False once the storage said that it cannot. */
  atomic_bool can_dsync, can_zero_range, can_punch, can_allocate;
  atomic_bool can_seek;
};

static inline struct backend_file *
backend_file_of (struct backend *b)
{
  return (struct backend_file *) b;
}

static inline bool
backend_file_is_unsupported (int err)
{
  return err == EOPNOTSUPP || err == ENOSYS || err == ENOTTY;
}

/* Does [OFF, OFF + LEN) fit into off_t? */
static inline bool
backend_file_range_is_valid (uint64_t off, uint64_t len)
{
  return off <= INT64_MAX && len <= INT64_MAX - off;
}

/* What clients and callers can make something of: a full disk in all its
 * disguises, lack of memory, or an I/O error.  ERR is positive.
 */
static inline int
backend_file_io_error (int err)
{
  switch (err) {
  case ENOSPC:
  case EDQUOT:
  case EFBIG:
    return -ENOSPC;
  case ENOMEM:
    return -ENOMEM;
  default:
    return -EIO;
  }
}

/* Log that WHAT failed with ERR (positive).  -ENOSPC, -ENOMEM, -EIO. */
extern int backend_file_fail_range (const struct backend_file *f,
                                    const char *what, uint64_t off,
                                    uint64_t len, int err)
  __attribute__ ((__warn_unused_result__));

/* Look at the length again after it may have changed.  -EIO, logged. */
extern int backend_file_refresh_length (struct backend_file *f)
  __attribute__ ((__warn_unused_result__));

/* May a change up to END make the file longer?  Then it holds LOCK_GROWTH
 * shared, and the length is looked at again behind it.
 */
static inline bool
backend_file_extends (const struct backend_file *f, uint64_t end)
{
  return end > (uint64_t) atomic_load_explicit (&f->length,
                                                memory_order_acquire);
}

/* Set up before the file is opened, and close what was opened since. */
extern void backend_file_sync_init (struct backend_file *f);
extern void backend_file_sync_destroy (struct backend_file *f);

/* The flush of struct backend_ops.  Once the host has told of lost data, here
 * (-EIO, or -ENOSPC for what the host had put off) or in a function below, all
 * fail.
 */
extern int backend_file_sync_flush (struct backend *b)
  __attribute__ ((__warn_unused_result__));

/* One pwritev2 that is stable when it returns, which may be short.  -1 and
 * errno: EOPNOTSUPP or the like = not possible, write and flush instead;
 * EIO = this or other data is lost.  Not logged.
 */
extern ssize_t backend_file_sync_write (struct backend_file *f,
                                        const struct iovec *iov, int iovcnt,
                                        uint64_t off)
  __attribute__ ((__warn_unused_result__));

/* The write_behind of struct backend_ops. */
extern void backend_file_sync_write_behind (struct backend *b);

/* Operations of struct backend_ops: backend-file-space.c. */
extern int backend_file_space_zero (struct backend *b, uint64_t off,
                                    uint64_t len);
extern int backend_file_space_punch (struct backend *b, uint64_t off,
                                     uint64_t len);
extern int backend_file_space_truncate (struct backend *b, uint64_t len,
                                        bool allocate);
extern int backend_file_space_grow (struct backend *b, uint64_t len,
                                    bool allocate);
extern int backend_file_space_allocate (struct backend *b, uint64_t off,
                                        uint64_t len);
extern void backend_file_space_unreserve (struct backend *b, uint64_t off,
                                          uint64_t len);
extern int backend_file_space_extent (struct backend *b, uint64_t off,
                                      uint64_t len,
                                      enum backend_extent_type *type,
                                      uint64_t *extent_len);

#endif /* BACKEND_FILE_INTERNAL_H */
