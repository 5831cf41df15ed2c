/* SPDX-License-Identifier: BSD-3-Clause */
/* The set of blocks that were allocated ahead and that nobody has written
 * since: what is to be given back on close.
 *
 * A bitmap in zones of 32768 blocks (128 MiB of 4k blocks cost 4 KiB),
 * which exist only where a bit is set.  No lock: the caller has one.
 */

#ifndef ZONES_H
#define ZONES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct zone;

struct zones {
  uint64_t block;               /* power of two, bytes */
  struct zone **ptr;            /* ordered by zone number */
  size_t len, cap;
};

extern void zones_init (struct zones *zs, uint64_t block);
extern void zones_free (struct zones *zs);

/* Add the blocks that lie wholly in [OFF, END).  0, or -ENOMEM: then some
 * of them may have been added.
 */
extern int zones_add (struct zones *zs, uint64_t off, uint64_t end)
  __attribute__ ((__warn_unused_result__));

/* Remove each block that [OFF, END) touches. */
extern void zones_remove (struct zones *zs, uint64_t off, uint64_t end);

/* The first run of blocks at or after FROM (a multiple of the block
 * size), at most MAX bytes of it.  False if there is none.
 */
extern bool zones_next (const struct zones *zs, uint64_t from, uint64_t max,
                        uint64_t *off, uint64_t *end);

#endif /* ZONES_H */
