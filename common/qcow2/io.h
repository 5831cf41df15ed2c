/* SPDX-License-Identifier: BSD-3-Clause */
/* The data path: what a client does with a guest disk.
 *
 * All calls may come from any number of threads at once; no lock is held
 * by the caller, and none is held here across data I/O.  All return 0 or
 * -errno out of EIO, ENOSPC, ENOMEM, ENOTSUP, EINVAL, EROFS; errors of
 * the image or of the storage were logged.  Callers check that ranges lie
 * inside io->size.
 */

#ifndef IO_H
#define IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc.h"
#include "backing.h"
#include "ccache.h"
#include "codec.h"
#include "commit.h"
#include "epoch.h"
#include "geometry.h"
#include "inflight.h"
#include "map.h"

struct bitmaps;
struct crypt;

/* One guest disk: the active layer of an image, or one of its snapshots.
 * image.c puts it together; nothing in it changes afterwards.
 */
struct io {
  const char *name;             /* for messages */
  const struct geometry *geo;
  struct map *map;
  uint64_t size;                /* guest bytes */
  struct backend *file;         /* the image */
  struct backend *data;         /* where guest clusters are: FILE, or the
                                   external data file */
  struct backing *backing;      /* NULL = zeroes */
  struct ccache *ccache;
  uint64_t ccache_owner;        /* of compressed clusters of FILE */
  enum codec_type codec;
  struct crypt *crypt;          /* NULL = not encrypted */

  /* NULL, false where read-only. */
  bool writable;
  bool detect_zeroes;
  struct alloc *alloc;
  struct commit *commit;
  struct inflight *inflight;
  struct epoch *epoch;
  struct bitmaps *bitmaps;      /* NULL = none to keep */
  _Atomic uint64_t packed;      /* guest bytes that were to be compressed */
};

/* Flags of requests. */
#define IO_FUA          1       /* stable when it returns */
#define IO_MAY_TRIM     2       /* zero: the space may be given back */
#define IO_FAST_ZERO    4       /* zero: -ENOTSUP rather than write data */

/* Beside a write: what filters asked for. */
struct io_hints {
  bool compress;                /* store whole clusters compressed */
  struct codec_params codec;
  struct alloc_growth growth;   /* size 0 = none */
};

extern int io_pread (struct io *io, void *buf, uint64_t count, uint64_t off)
  __attribute__ ((__warn_unused_result__));

/* HINTS may be NULL. */
extern int io_pwrite (struct io *io, const void *buf, uint64_t count,
                      uint64_t off, unsigned flags,
                      const struct io_hints *hints)
  __attribute__ ((__warn_unused_result__));

/* Can this image hold compressed clusters with these parameters?  -EINVAL
 * or -ENOTSUP, with a message that names the reason.
 */
extern int io_check_compress (struct io *io, const struct codec_params *p)
  __attribute__ ((__warn_unused_result__));

extern int io_zero (struct io *io, uint64_t count, uint64_t off,
                    unsigned flags, const struct io_hints *hints)
  __attribute__ ((__warn_unused_result__));
extern int io_trim (struct io *io, uint64_t count, uint64_t off,
                    unsigned flags)
  __attribute__ ((__warn_unused_result__));
extern int io_flush (struct io *io)
  __attribute__ ((__warn_unused_result__));

/* Prefetch. */
extern int io_cache (struct io *io, uint64_t count, uint64_t off)
  __attribute__ ((__warn_unused_result__));

/* Extents: exact over the whole chain. */
#define IO_EXTENT_ZERO  1       /* reads as zeroes */
#define IO_EXTENT_HOLE  2       /* not allocated in any layer; with LAYER:
                                   a write has to allocate or copy here */

/* Report one extent to FN after the other, in order, until COUNT bytes are
 * described or FN does not return 0 (its value is then returned if it is
 * negative, else 0).
 */
typedef int io_extent_fn (void *opaque, uint64_t off, uint64_t len,
                          unsigned flags);
extern int io_extents (struct io *io, uint64_t count, uint64_t off,
                       bool layer, io_extent_fn *fn, void *opaque)
  __attribute__ ((__warn_unused_result__));

/* --- between the io-*.c files and backing.c --- */

/* io_pread inside a request that has entered the epoch already. */
extern int io_read_range (struct io *io, void *buf, uint64_t count,
                          uint64_t off)
  __attribute__ ((__warn_unused_result__));

/* The run that starts at OFF (see backing_extent).  */
extern int io_extent_at (struct io *io, uint64_t off, uint64_t max_len,
                         bool layer, bool probe_raw,
                         uint64_t *len, unsigned *flags)
  __attribute__ ((__warn_unused_result__));

/* Does [OFF, OFF + LEN) read as zeroes, as far as metadata tells? Ranges
 * beyond the end of the disk do.
 */
extern bool io_reads_zero (struct io *io, uint64_t off, uint64_t len);

/* Guest data on the host, decrypted and encrypted.
 * io_data_pread: beyond the end of the file is an error, logged.
 * io_data_pwritev: new clusters; GUEST_OFF, HOST_OFF and LEN are multiples
 *   of 512 where io->crypt is not NULL.
 * io_data_overwrite: data that is there; BUF NULL writes zeroes.  Owns an
 *   inflight range if io->crypt is not NULL.
 */
extern int io_data_pread (struct io *io, void *buf, uint64_t len,
                          uint64_t guest_off, uint64_t host_off)
  __attribute__ ((__warn_unused_result__));
extern int io_data_pwritev (struct io *io, struct iovec *iov, int iovcnt,
                            uint64_t len, uint64_t guest_off,
                            uint64_t host_off, unsigned flags)
  __attribute__ ((__warn_unused_result__));

extern int io_data_overwrite (struct io *io, const uint8_t *buf,
                              uint64_t len, uint64_t guest_off,
                              uint64_t host_off, unsigned flags)
  __attribute__ ((__warn_unused_result__));

/* Write zeroes to host space of this image's own; aligned like pwritev. */
extern int io_data_zero (struct io *io, uint64_t len,
                         uint64_t guest_off, uint64_t host_off)
  __attribute__ ((__warn_unused_result__));

/* LEN zero bytes in iovecs, at most MAX of them; returns how many.  LEN is
 * at most MAX times IO_ZEROES.
 */
#define IO_ZEROES (256 * 1024)
extern int io_data_zero_iov (struct iovec *iov, int max, uint64_t len);

/* -EIO if RUN overlaps metadata: logged, and the image is marked corrupt. */
extern int io_check_overlap (struct io *io, uint64_t off,
                             const struct map_run *run)
  __attribute__ ((__warn_unused_result__));

/* What every change of the disk does first and last: begin announces the
 * change, commits if that is due, marks it in the bitmaps, and enters the
 * epoch (leave with io_end_change).  end reports the error R, or makes the
 * request stable if FUA asks for it.  STABLE: the caller has done so for
 * the data.
 */
struct io_change {
  unsigned token;               /* of the epoch */
};
extern int io_begin_change (struct io *io, uint64_t off, uint64_t len,
                            struct io_change *change)
  __attribute__ ((__warn_unused_result__));
extern int io_end_change (struct io *io, struct io_change *change, int r,
                          bool fua, bool stable)
  __attribute__ ((__warn_unused_result__));

/* R is what a change ended with.  If there was no space, give back what is
 * deferred: true if the change should begin once more.  This cannot be
 * done inside the change, which itself keeps space from being given back.
 * *TRIES is 0 at first.
 */
extern bool io_try_again (struct io *io, int r, unsigned *tries)
  __attribute__ ((__warn_unused_result__));

/* Allocate inside LOCK_META with retries: FN is called with LOCK_META held
 * exclusively; on -EAGAIN the refcount table is grown, and FN is called
 * again.  -EUCLEAN marks the image corrupt.
 */
typedef int io_alloc_fn (struct io *io, void *opaque);
extern int io_with_alloc (struct io *io, io_alloc_fn *fn, void *opaque)
  __attribute__ ((__warn_unused_result__));

/* Write [OFF, OFF + LEN), which lies in clusters that are not writable in
 * place; as much of it as one allocation gives.  *DONE > 0 on success, or
 * 0 if the mapping changed meanwhile and must be looked up again.
 * (io-cow.c)
 */
extern int io_write_alloc (struct io *io, const uint8_t *buf, uint64_t len,
                           uint64_t off, const struct io_hints *hints,
                           uint64_t *done)
  __attribute__ ((__warn_unused_result__));

/* Write one whole cluster compressed. *STORED: false if it does not shrink
 * (nothing was done).  (io-compress.c)
 */
extern int io_write_compressed (struct io *io, const uint8_t *buf,
                                uint64_t len, uint64_t off,
                                const struct io_hints *hints, bool *stored)
  __attribute__ ((__warn_unused_result__));
/* Read from one compressed cluster. (io-compress.c) */
extern int io_read_compressed (struct io *io, void *buf, uint64_t len,
                               uint64_t off, const struct map_run *run)
  __attribute__ ((__warn_unused_result__));

/* The body of io_pwrite, and of a zero that has to write zeroes (BUF NULL):
 * inside io_begin_change. *STABLE: all was written with FUA in place.
 */
extern int io_write_range (struct io *io, const uint8_t *buf, uint64_t count,
                           uint64_t off, unsigned flags,
                           const struct io_hints *hints, bool *stable)
  __attribute__ ((__warn_unused_result__));
/* The body of io_zero, aligned to subclusters. (io-discard.c) */
extern int io_zero_range (struct io *io, uint64_t count, uint64_t off,
                          unsigned flags, const struct io_hints *hints)
  __attribute__ ((__warn_unused_result__));

#endif /* IO_H */
