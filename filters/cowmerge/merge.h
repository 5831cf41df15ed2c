/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests that change data: into a block, or straight down. */

#ifndef MERGE_H
#define MERGE_H

#include <stdbool.h>
#include <stdint.h>

#include "overlay.h"

/* A request, and what it needs on its way. */
struct merge_request {
  struct overlay *ov;
  nbdkit_next *next;
  bool fua;                     /* durable when it is acknowledged */
  uint32_t down_flags;          /* for the requests below: NBDKIT_FLAG_FUA,
                                   or 0 if a flush has to make up for it */
  bool can_zero;                /* the layer below has zero */
  bool no_room;                 /* buffer nothing, there is no memory */
  struct block *fresh;          /* memory for a block, or NULL */
};

/* Write COUNT bytes of BUF at OFF. */
extern int merge_write (struct merge_request *rq, const void *buf,
                        uint32_t count, uint64_t off)
  __attribute__ ((__warn_unused_result__));

/* Zero the range.  FLAGS are NBDKIT_FLAG_MAY_TRIM and _FAST_ZERO.  With
 * the latter, -ENOTSUP or -EOPNOTSUPP means that nothing has changed.
 */
extern int merge_zero (struct merge_request *rq, uint32_t count,
                       uint64_t off, uint32_t flags)
  __attribute__ ((__warn_unused_result__));

/* Trim the range.  What was buffered reads as zeroes then, or as before. */
extern int merge_trim (struct merge_request *rq, uint32_t count,
                       uint64_t off)
  __attribute__ ((__warn_unused_result__));

#endif /* MERGE_H */
