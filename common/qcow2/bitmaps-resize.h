/* SPDX-License-Identifier: BSD-3-Clause */
/* Persistent bitmaps when the size of the disk changes.
 *
 * For admin code, between admin_begin and admin_end.  All bitmaps are
 * marked in use from begin to end, so that a power loss leaves none that
 * looks valid and is not.
 */

#ifndef BITMAPS_RESIZE_H
#define BITMAPS_RESIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "bitmaps.h"
#include "core.h"

struct bitmaps_resize {
  struct core *core;
  uint64_t old_size;            /* bytes, of the disk */
  bool active;                  /* there are bitmaps */
  struct bitmap_directory directory;
};

/* The disk will have NEW_SIZE bytes.  Like QEMU: -ENOTSUP, with a message,
 * if that is another size and one of the bitmaps is not valid, or would
 * have no bits.  Without a valid extension nothing is done.  Also -EIO,
 * -ENOMEM.
 */
extern int bitmaps_resize_begin (struct bitmaps_resize *b,
                                 struct core *core, uint64_t new_size)
  __attribute__ ((__warn_unused_result__));

/* The header has the new size, or still the old one.  The tables of the
 * bitmaps become as large as that needs; new parts of the disk count as
 * unchanged.  ALL_DIRTY: in bitmaps that follow changes everything counts
 * as changed.  An error leaves the marks.
 */
extern int bitmaps_resize_end (struct bitmaps_resize *b, bool all_dirty)
  __attribute__ ((__warn_unused_result__));

#endif /* BITMAPS_RESIZE_H */
