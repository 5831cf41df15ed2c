/* SPDX-License-Identifier: BSD-3-Clause */
/* Which block comes next, and what is in it. */

#ifndef BENCH_PLAN_H
#define BENCH_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A range of the disk cut into blocks.  Immutable once made; each
 * connection walks its own share.
 */
struct plan {
  uint64_t start;               /* byte offset of block 0 */
  uint64_t nr_blocks;
  uint64_t block_size;          /* bytes */
  uint64_t seed;
  bool random;
};

/* Byte offset of the IDX-th block of the walk.  A random walk visits
 * each block of the range once before it visits any block again.
 */
extern uint64_t plan_offset (const struct plan *plan, uint64_t idx);

/* Fill LEN bytes (a multiple of 8) with the pattern that belongs at
 * OFFSET (likewise).  No word of the pattern depends on its neighbours,
 * so that any part of the disk can be checked alone.
 */
extern void plan_fill (uint64_t seed, uint64_t offset, void *buf, size_t len);

/* Is BUF what plan_fill writes? */
extern bool plan_matches (uint64_t seed, uint64_t offset, const void *buf,
                          size_t len);

#endif /* BENCH_PLAN_H */
