/* SPDX-License-Identifier: BSD-3-Clause */
/* What shows through where a layer has no cluster: the image below, or a
 * raw file, clamped to its length and zero beyond.  Read-only, no locks of
 * its own.
 */

#ifndef BACKING_H
#define BACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"

struct io;

struct backing {
  struct io *io;                /* a qcow2 image, or */
  struct backend *raw;          /* a raw file */
  uint64_t size;                /* guest bytes */
};

/* Read guest bytes; zeroes beyond the end.  0, -EIO, -ENOMEM. */
extern int backing_pread (struct backing *b, void *buf, uint64_t len,
                          uint64_t off)
  __attribute__ ((__warn_unused_result__));

/* State of the run that starts at OFF: its length, at most MAX_LEN, and
 * IO_EXTENT_* flags (io.h).  PROBE_RAW: ask the host about holes of a raw
 * file (a system call); else it counts as data.  0, -EIO, -ENOMEM.
 */
extern int backing_extent (struct backing *b, uint64_t off, uint64_t max_len,
                           bool probe_raw, uint64_t *len, unsigned *flags)
  __attribute__ ((__warn_unused_result__));

/* Prefetch. */
extern int backing_cache (struct backing *b, uint64_t off, uint64_t len)
  __attribute__ ((__warn_unused_result__));

#endif /* BACKING_H */
