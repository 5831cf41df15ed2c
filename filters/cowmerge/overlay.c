/* SPDX-License-Identifier: BSD-3-Clause */
/* Overlays: the blocks of an export, and which overlays there are.
 *
 * One overlay for each disk, made with its first connection and ended with
 * its last; so that all connections see the same buffered data and the
 * multi-conn promise of the plugin stays true.  The plugin tells which
 * connections share a disk, since the export name does not: a plugin that
 * serves one image takes any name.
 *
 * The life of a block:
 *
 *   free --insert--> filling --writeout_locked--> being written out
 *                       ^                             |      |
 *                       +--------- failed ------------+      | written
 *   free <--last pin--- removed <----------------------------+
 *                       ^
 *     filling ----------+ overwritten or trimmed as a whole
 *
 * What changes a block (filling, writing out, removing) holds an exclusive
 * claim on its cluster: so a request for a cluster that is being written
 * out waits for that; there is no second generation of a block.  Readers
 * take no claim: they pin the block, and copy from it with the lock held.
 *
 * Invariants:
 *
 * O1  A byte that a client was told is written is either in a block that
 *     is found by its cluster number, or below.
 * O2  Of a cluster that has a block, nobody but the holder of an exclusive
 *     claim sends a write below.
 * O3  A block that holds acknowledged data goes away only after the write
 *     that took it down, or that replaced all of it, has succeeded.
 *
 * Locks: the registry's, then an overlay's, then the pool's (block.c) and
 * the background threads' (writer.c).  None is held across I/O.
 *
 * Does no I/O itself.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "scope-lock.h"

#include "overlay.h"

static struct {
  pthread_mutex_t lock;
  struct list list;
} registry = {
  .lock = PTHREAD_MUTEX_INITIALIZER,
  .list = { &registry.list, &registry.list },
};

static const size_t nr_buckets = 1024;

static void
destroy (struct overlay *ov)
{
  claim_destroy (&ov->claims);
  presence_destroy (&ov->presence);
  pthread_mutex_destroy (&ov->lock);
  free (ov->buckets);
  free ((char *) ov->key.name);
  free (ov);
}

static struct overlay *
create (const struct overlay_key *key, uint64_t size, uint32_t cluster,
        uint32_t grain)
{
  struct overlay *ov = calloc (1, sizeof *ov);

  if (ov == NULL)
    return NULL;
  ov->key.name = strdup (key->name);
  ov->key.disk = key->disk;
  ov->buckets = calloc (nr_buckets, sizeof *ov->buckets);
  ov->bucket_mask = nr_buckets - 1;
  ov->size = size;
  ov->cluster = cluster;
  /* A part of a cluster that is not known to be one is not one. */
  ov->grain = cluster;
  if (grain > 0 && grain < cluster && (grain & (grain - 1)) == 0)
    ov->grain = grain;
  ov->shift = __builtin_ctz (cluster);
  ov->nr_clusters = size / cluster + !!(size % cluster);
  pthread_mutex_init (&ov->lock, NULL);
  claim_init (&ov->claims);
  presence_init (&ov->presence);
  list_init (&ov->lru);
  list_init (&ov->age);
  list_init (&ov->lenders);
  if (ov->key.name == NULL || ov->buckets == NULL) {
    destroy (ov);
    return NULL;
  }
  return ov;
}

static bool
same_disk (const struct overlay_key *a, const struct overlay_key *b)
{
  if (a->disk != 0 && b->disk != 0)
    return a->disk == b->disk;
  return strcmp (a->name, b->name) == 0;
}

int
overlay_attach (const struct overlay_key *key, uint64_t size,
                uint32_t cluster, uint32_t grain, struct overlay **ret)
{
  struct overlay *ov;

  SCOPE_LOCK (&registry.lock);
  list_for_each (e, &registry.list) {
    ov = list_entry (e, struct overlay, link);
    if (!same_disk (&ov->key, key))
      continue;
    if (ov->size != size || ov->cluster != cluster) {
      nbdkit_error ("cowmerge: export \"%s\": size or preferred block size "
                    "differ from what its other connections have "
                    "(%" PRIu64 " and %" PRIu32 " bytes); close these first",
                    key->name, ov->size, ov->cluster);
      return -EINVAL;
    }
    ov->connections++;
    ov->refs++;
    *ret = ov;
    return 0;
  }

  ov = create (key, size, cluster, grain);
  if (ov == NULL) {
    nbdkit_error ("cowmerge: export \"%s\": out of memory", key->name);
    return -ENOMEM;
  }
  ov->connections = ov->refs = 1;
  list_append (&registry.list, &ov->link);
  *ret = ov;
  return 0;
}

/* Nobody has the overlay any more.  Blocks that are left are those which
 * the plugin refused to the last.
 */
static void
drop (struct overlay *ov)
{
  if (ov->nr_blocks > 0)
    nbdkit_error ("cowmerge: export \"%s\": %zu clusters with data that was "
                  "written but never flushed are lost, since writing them "
                  "to the plugin failed: %s",
                  ov->key.name, ov->nr_blocks, strerror (-ov->error));
  while (!list_empty (&ov->lru)) {
    struct block *b = list_entry (ov->lru.next, struct block, lru);

    list_remove (&b->lru);
    list_remove (&b->age);
    block_put (b);
  }
  destroy (ov);
}

/* Returns true if this was the last reference. */
static bool
unref_locked (struct overlay *ov)
{
  if (--ov->refs > 0)
    return false;
  return true;
}

void
overlay_detach (struct overlay *ov)
{
  bool last, none_left = false;

  {
    SCOPE_LOCK (&registry.lock);
    if (--ov->connections == 0)
      list_remove (&ov->link);
    last = unref_locked (ov);
    none_left = list_empty (&registry.list);
  }
  if (last)
    drop (ov);
  if (none_left)
    block_pool_drain ();
}

bool
overlay_each (bool (*f) (struct overlay *ov, void *opaque), void *opaque)
{
  struct overlay *ov, *previous = NULL;
  bool found = false, last;
  struct list *e;

  do {
    {
      SCOPE_LOCK (&registry.lock);
      /* One that left the registry meanwhile links to itself: then the
       * walk ends, and its caller comes back soon.
       */
      e = previous ? previous->link.next : registry.list.next;
      if (e == &registry.list || (previous && e == &previous->link))
        ov = NULL;
      else {
        ov = list_entry (e, struct overlay, link);
        ov->refs++;
      }
      last = previous && unref_locked (previous);
    }
    if (last)
      drop (previous);
    if (ov)
      found = f (ov, opaque);
    previous = ov;
  } while (ov && !found);

  if (previous) {
    {
      SCOPE_LOCK (&registry.lock);
      last = unref_locked (previous);
    }
    if (last)
      drop (previous);
  }
  return found;
}

int64_t
overlay_now (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_MONOTONIC, &ts);
  return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static struct block **
bucket (const struct overlay *ov, uint64_t idx)
{
  return &ov->buckets[idx & ov->bucket_mask];
}

struct block *
overlay_find_locked (const struct overlay *ov, uint64_t idx)
{
  struct block *b;

  for (b = *bucket (ov, idx); b; b = b->hash_next)
    if (b->idx == idx)
      return b;
  return NULL;
}

static int
compare (const void *ap, const void *bp)
{
  const uint64_t *a = ap, *b = bp;

  return *a < *b ? -1 : *a > *b;
}

int
overlay_list_blocks (struct overlay *ov, uint64_t first, uint64_t last,
                     struct overlay_blocks *ret)
{
  OVERLAY_LOCK (ov);
  ret->nr = 0;
  ret->idx = malloc (ov->nr_blocks * sizeof *ret->idx + 1);
  if (ret->idx == NULL) {
    nbdkit_error ("cowmerge: malloc: %m");
    return -ENOMEM;
  }
  list_for_each (e, &ov->lru) {
    uint64_t idx = list_entry (e, struct block, lru)->idx;

    if (idx >= first && idx <= last)
      ret->idx[ret->nr++] = idx;
  }
  qsort (ret->idx, ret->nr, sizeof *ret->idx, compare);
  return 0;
}

/* Keep the chains short.  Without memory they get longer, that is all. */
static void
grow_locked (struct overlay *ov)
{
  size_t nr = (ov->bucket_mask + 1) * 2;
  struct block **buckets = calloc (nr, sizeof *buckets);

  if (buckets == NULL)
    return;
  free (ov->buckets);
  ov->buckets = buckets;
  ov->bucket_mask = nr - 1;
  list_for_each (e, &ov->lru) {
    struct block *b = list_entry (e, struct block, lru);

    b->hash_next = *bucket (ov, b->idx);
    *bucket (ov, b->idx) = b;
  }
}

static void
set_nr_blocks_locked (struct overlay *ov, size_t nr)
{
  __atomic_store_n (&ov->nr_blocks, nr, __ATOMIC_RELEASE);
}

void
overlay_insert_locked (struct overlay *ov, struct block *b, uint64_t idx)
{
  if (ov->nr_blocks > ov->bucket_mask)
    grow_locked (ov);

  b->idx = idx;
  b->len = overlay_cluster_len (ov, idx);
  b->seq = ++ov->ticks;
  b->born = overlay_now ();
  b->indexed = true;
  b->hash_next = *bucket (ov, idx);
  *bucket (ov, idx) = b;
  list_append (&ov->lru, &b->lru);
  list_append (&ov->age, &b->age);
  set_nr_blocks_locked (ov, ov->nr_blocks + 1);
}

void
overlay_remove_locked (struct overlay *ov, struct block *b)
{
  struct block **p = bucket (ov, b->idx);

  while (*p != b)
    p = &(*p)->hash_next;
  *p = b->hash_next;
  list_remove (&b->lru);
  list_remove (&b->age);
  b->indexed = false;
  set_nr_blocks_locked (ov, ov->nr_blocks - 1);
  if (b->pins == 0)
    block_put (b);
}

void
overlay_touch_locked (struct overlay *ov, struct block *b)
{
  list_remove (&b->lru);
  list_append (&ov->lru, &b->lru);
}

void
overlay_pin_locked (struct block *b)
{
  b->pins++;
}

void
overlay_unpin_locked (struct overlay *ov, struct block *b)
{
  if (--b->pins > 0 || b->indexed)
    return;
  block_put (b);
  claim_wake_locked (&ov->claims);
}
