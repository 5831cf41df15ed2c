/* SPDX-License-Identifier: BSD-3-Clause */
/* Private to the cache of decompressed clusters: its entries, the hash
 * table and the LRU list they are in, references, and memory.  ccache.c
 * says what they are for.
 *
 * Functions that end in _locked are called with LOCK_CCACHE held.
 */

#ifndef CCACHE_TABLE_H
#define CCACHE_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ccache.h"
#include "locks.h"

/* Entries of one bucket come from regions of the host file this large, so
 * that a range is dropped without a search of the whole table.
 */
#define REGION_BITS 12

/* How many streams of sequential reads are told from random ones. */
#define STREAMS 32

enum entry_state { FILLING, READY, GONE };

struct ccache_entry {
  struct ccache_key key;
  struct ccache_entry *next;    /* in the bucket, or of a list to free */
  struct ccache_entry *newer, *older;   /* in_lru: READY and in the table */
  enum entry_state state;
  bool in_table, in_lru;
  unsigned waiters;
  atomic_uint refs;
  size_t capacity;              /* of data */
  size_t valid;                 /* bytes of data, if READY */
  uint8_t *data;
};

struct stream {
  uint64_t owner, cluster_idx;  /* the last miss */
};

struct ccache {
  struct ranked_mutex lock;
  pthread_cond_t filled;        /* some entry with waiters left FILLING */
  uint64_t max;
  struct ccache_stats stats;    /* .used is what `max' bounds */

  struct ccache_entry *newest, *oldest;
  struct stream streams[STREAMS];
  unsigned next_stream;

  size_t nr_buckets;            /* a power of two */
  struct ccache_entry *buckets[];
};

/* What an entry with CAPACITY bytes of data counts. */
static inline uint64_t
ccache_table_entry_size (size_t capacity)
{
  return sizeof (struct ccache_entry) + capacity;
}

/* The bucket of all entries of OWNER in the region of HOST_OFF. */
extern size_t ccache_table_bucket (const struct ccache *cc, uint64_t owner,
                                   uint64_t host_off);

/* The entry of KEY that is in the table, or NULL.  No reference taken. */
extern struct ccache_entry *ccache_table_find_locked (struct ccache *cc,
                                               const struct ccache_key *key);

/* Into and out of the table; it has a reference of its own, which
 * removing leaves to the caller.
 */
extern void ccache_table_add_locked (struct ccache *cc,
                                     struct ccache_entry *e);
extern void ccache_table_remove_locked (struct ccache *cc,
                                        struct ccache_entry *e);

/* Make an entry the newest of the LRU list, be it in the list or not. */
extern void ccache_table_touch_locked (struct ccache *cc,
                                       struct ccache_entry *e);

/* Remove an entry from the table, onto GARBAGE if that frees it. */
extern void ccache_table_forget_locked (struct ccache *cc,
                                        struct ccache_entry *e,
                                        struct ccache_entry **garbage);

/* Account for an entry of CAPACITY, evicting others if need be.  If one of
 * these can be used as it is, it is put into *REUSE.  False: no room.
 */
extern bool ccache_table_reserve_locked (struct ccache *cc, size_t capacity,
                                         struct ccache_entry **reuse,
                                         struct ccache_entry **garbage)
  __attribute__ ((__warn_unused_result__));

/* Release a reference.  Takes the lock if it was the last one. */
extern void ccache_table_release (struct ccache *cc, struct ccache_entry *e);

/* Free garbage, without the lock. */
extern void ccache_table_free_list (struct ccache_entry *list);

#endif /* CCACHE_TABLE_H */
