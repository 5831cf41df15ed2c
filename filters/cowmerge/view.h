/* SPDX-License-Identifier: BSD-3-Clause */
/* What clients see: the blocks of the overlay over what is below. */

#ifndef VIEW_H
#define VIEW_H

#include <stdint.h>

#include "overlay.h"

/* Read COUNT bytes at OFF.  Only what is not buffered is read below. */
extern int view_read (struct overlay *ov, nbdkit_next *next, void *buf,
                      uint32_t count, uint64_t off)
  __attribute__ ((__warn_unused_result__));

/* Extents of the range, in which buffered clusters are data. */
extern int view_extents (struct overlay *ov, nbdkit_next *next,
                         uint32_t count, uint64_t off, uint32_t flags,
                         struct nbdkit_extents *extents)
  __attribute__ ((__warn_unused_result__));

#endif /* VIEW_H */
