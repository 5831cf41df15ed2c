/* SPDX-License-Identifier: BSD-3-Clause */
/* A block: the buffer of one cluster, which knows byte by byte what a
 * client wrote to it; and the pool that all blocks come from, which keeps
 * their memory within cowmerge-max.
 */

#ifndef BLOCK_H
#define BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "list.h"

struct block {
  /* Owned by overlay.c, protected by the overlay's lock. */
  struct block *hash_next;
  struct list lru;              /* in order of last use */
  struct list age;              /* in order of creation */
  uint64_t idx;                 /* cluster number */
  uint64_t seq;                 /* number of its creation */
  int64_t born;                 /* time of its creation, ms */
  int64_t retry;                /* not written out before, ms; 0 = at once */
  uint64_t failed;              /* tick of the last failed write-out, or 0 */
  unsigned pins;                /* readers that still look at it */
  bool indexed;                 /* found by its cluster number */
  bool zero;                    /* what was not written reads as zeroes */

  bool bounce;                  /* owned by block.c: as asked for */

  /* The content.  Changed with the overlay's lock and a claim on the
   * cluster held; so either is enough to read it.  (DATA where no bit is
   * set belongs to the holder of the claim alone.)
   */
  uint32_t size;                /* bytes of DATA: the cluster size */
  uint32_t len;                 /* bytes in use: less in the last cluster */
  uint32_t dirty;               /* bytes that are set in BITS ... */
  uint32_t low, high;           /* ... all of them in LOW..HIGH-1 */
  uint8_t *data;
  uint64_t *bits;               /* one for each byte of DATA */
};

/* Bytes of memory that a block of SIZE costs. */
extern uint64_t block_cost (uint32_t size);

/* The limit for all blocks together, in bytes.  Call once, before any
 * other of the block_get and block_put below.
 */
extern void block_pool_init (uint64_t max);

/* Is more than LEVEL sixteenths of the memory in use?  Above POOL_HIGH the
 * background threads are called, and go on until it is down to POOL_LOW: so
 * one call is worth it.
 */
#define POOL_HIGH 12
#define POOL_LOW 10
extern bool block_pool_above (unsigned level);

/* Give unused memory back to the system. */
extern void block_pool_drain (void);

/* A block for a cluster of SIZE bytes, with nothing written; or NULL where
 * the limit is reached, or there is no memory.  Never waits.  A small part
 * of the pool is kept for BOUNCE blocks, which are returned soon.
 * The caller owns it, until block_put.  Takes the pool's lock (a leaf).
 */
extern struct block *block_get (uint32_t size, bool bounce);
extern void block_put (struct block *b);

/* Write COUNT bytes at OFF of the block, from BUF, or zeroes where BUF is
 * NULL.  OFF + COUNT <= len.
 */
extern void block_fill (struct block *b, const void *buf, uint32_t count,
                        uint32_t off);

/* Has every byte been written? */
static inline bool
block_complete (const struct block *b)
{
  return b->dirty == b->len;
}

/* Find the first run of written (DIRTY) or unwritten bytes in FROM..TO-1.
 * False if there is none.
 */
extern bool block_find (const struct block *b, bool dirty,
                        uint32_t from, uint32_t to,
                        uint32_t *start, uint32_t *end);

/* Copy the written bytes in FROM..TO-1 to BUF, which is the place for the
 * byte FROM.  Unwritten ones are left alone.
 */
extern void block_copy (const struct block *b, uint32_t from, uint32_t to,
                        void *buf);

#endif /* BLOCK_H */
