/* SPDX-License-Identifier: BSD-3-Clause */
/* Grow or shrink the disk of an image that is not being served. */

#ifndef RESIZE_H
#define RESIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "core.h"

/* Give the disk of CORE, open for writing, SIZE bytes, rounded up to 512.
 * New space reads as zeroes, also where a backing file is longer than the
 * disk was, or the clusters hold something from before it was shrunk.  Data
 * beyond the new end is given up, only if SHRINK allows that.  Snapshots
 * keep their sizes, bitmaps follow.
 *
 * Atomic: a power loss leaves the disk with the old or with the new size,
 * at the cost of leaked clusters.
 *
 * 0, also if nothing changes; or after one message: -EINVAL (smaller and
 * not SHRINK), -EFBIG (too large for the cluster size), -ENOTSUP (version 2
 * with snapshots; a bitmap that is inconsistent), -ENOSPC, -EIO, -ENOMEM.
 */
extern int resize_image (struct core *core, uint64_t size, bool shrink)
  __attribute__ ((__warn_unused_result__));

#endif /* RESIZE_H */
