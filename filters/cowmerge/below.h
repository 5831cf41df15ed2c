/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests to the layer below, with errors as -errno.
 *
 * The rest of the filter returns 0 or -errno, and only the callbacks in
 * cowmerge.c translate that to nbdkit's -1 and *err.  Each function here
 * returns 0, or minus the error of the layer below, and blocks until that
 * has answered; so none may be called with a lock held.
 */

#ifndef BELOW_H
#define BELOW_H

#include <stdint.h>

#include <nbdkit-filter.h>

extern int below_pread (nbdkit_next *next, void *buf, uint32_t count,
                        uint64_t off)
  __attribute__ ((__warn_unused_result__));
extern int below_pwrite (nbdkit_next *next, const void *buf, uint32_t count,
                         uint64_t off, uint32_t flags)
  __attribute__ ((__warn_unused_result__));
extern int below_flush (nbdkit_next *next)
  __attribute__ ((__warn_unused_result__));
extern int below_zero (nbdkit_next *next, uint32_t count, uint64_t off,
                       uint32_t flags)
  __attribute__ ((__warn_unused_result__));
extern int below_trim (nbdkit_next *next, uint32_t count, uint64_t off,
                       uint32_t flags)
  __attribute__ ((__warn_unused_result__));
extern int below_extents (nbdkit_next *next, uint32_t count, uint64_t off,
                          uint32_t flags, struct nbdkit_extents *extents)
  __attribute__ ((__warn_unused_result__));

#endif /* BELOW_H */
