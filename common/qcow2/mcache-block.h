/* SPDX-License-Identifier: BSD-3-Clause */
/* The inside of the metadata cache: shared by its files. */

#ifndef MCACHE_BLOCK_H
#define MCACHE_BLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "locks.h"
#include "mcache.h"

#define TURNS 256

enum block_state { STATE_CLEAN, STATE_DIRTY, STATE_FROZEN };

struct mcache_block {
  uint64_t off;
  struct mcache_block *hash_next;
  struct mcache_block *prev, *next; /* in the list of its state */
  uint8_t *data;
  uint64_t owner;
  uint64_t get_nr;              /* when it was last handed out */
  enum mcache_kind kind;
  enum block_state state;
  _Atomic bool referenced;      /* since the eviction hand last passed */

  uint8_t *frozen_data;
  uint64_t frozen_owner;
  enum mcache_kind frozen_kind;
  bool written;
  bool changed;                 /* since the freeze */
  bool doomed;
};

/* A list with a sentinel: only prev and next of HEAD are used. */
struct block_list {
  struct mcache_block head;
};

struct mcache {
  struct backend *file;
  struct ranked_rwlock *meta;
  unsigned slice_bits;
  size_t slice_size;
  size_t max_blocks;
  size_t nr_blocks;             /* doomed ones too */
  size_t nr_copies;             /* frozen_data that is not data */
  _Atomic size_t nr_unclean;    /* dirty or frozen */

  unsigned hash_bits;
  struct mcache_block **hash;

  struct block_list clean;      /* least recently inserted first */
  struct block_list dirty;
  struct block_list frozen;
  bool frozen_sorted;

  struct mcache_block *spare;   /* by hash_next; with their data */
  size_t nr_spare;

  /* Counts the blocks handed out by mcache_get_locked: the last few of
   * them are not evicted, since their users may still hold the lock.
   */
  uint64_t newest_get;

  /* Counts, by hash, events that make bytes stale that were read without
   * the lock: a write of a block, a new block, a forgotten block.
   */
  uint64_t turns[TURNS];
};

static inline void
mcache_list_init (struct block_list *l)
{
  l->head.prev = l->head.next = &l->head;
}

static inline bool
mcache_list_is_empty (const struct block_list *l)
{
  return l->head.next == &l->head;
}

static inline void
mcache_list_remove (struct mcache_block *b)
{
  b->prev->next = b->next;
  b->next->prev = b->prev;
}

static inline void
mcache_list_append (struct block_list *l, struct mcache_block *b)
{
  b->prev = l->head.prev;
  b->next = &l->head;
  b->prev->next = b;
  l->head.prev = b;
}

/* Neighbouring slices get neighbouring buckets. */
static inline size_t
mcache_bucket (const struct mcache *mc, uint64_t off)
{
  uint64_t slice = off >> mc->slice_bits;
  uint64_t h = (slice >> 3) * UINT64_C (0x9e3779b97f4a7c15);

  return (h >> (64 - mc->hash_bits)) ^ (slice & 7);
}

static inline uint64_t *
mcache_turn (struct mcache *mc, uint64_t off)
{
  return &mc->turns[mcache_bucket (mc, off) % TURNS];
}

/* Keep a block, which is in no list, for the next one that is needed.
 * LOCK_META is held exclusively.
 */
extern void mcache_give_spare (struct mcache *mc, struct mcache_block *b);

/* Drop clean blocks until there is room.  LOCK_META is held exclusively. */
extern void mcache_evict (struct mcache *mc);

#endif /* MCACHE_BLOCK_H */
