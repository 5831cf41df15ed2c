/* SPDX-License-Identifier: BSD-3-Clause */
/* Write-back cache of table slices.
 *
 * Invariants:
 *  - A block is in the hash table unless it is doomed (forgotten while it
 *    is frozen); it is in exactly one of three lists: clean, dirty,
 *    frozen.
 *  - The bytes at frozen_data, and frozen_kind and frozen_owner, do not
 *    change between mcache_freeze_locked and mcache_thaw_locked: the
 *    committer reads them without a lock.  frozen_data == data as long as
 *    nobody changed the block since.
 *  - A frozen block is written even if it is doomed: a table written in
 *    the same commit may still point to it.  So the space of a forgotten
 *    block may be reused only after the commit under way has ended, which
 *    alloc_defer_free_locked sees to.
 *  - Between the moment when a block was found absent, and the moment when
 *    bytes that were read without the lock are inserted, nothing else was
 *    stored at its place: see turns.
 *
 * Locks: LOCK_META of the image protects everything but the list of frozen
 * blocks with its links and written flags, which belongs to the committer.
 * Only mcache_load and mcache_write_frozen do I/O without the lock.
 *
 * The cache does not order writes, and does not know what blocks mean.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "mcache-block.h"
#include "mcache.h"

#define MIN_BLOCKS 256          /* whatever MAX_BYTES says */
#define KEPT_GETS 64            /* see newest_gets */
#define MAX_SPARE 64
#define MAX_LOAD_TRIES 3

static struct mcache_block *
lookup (const struct mcache *mc, uint64_t off)
{
  struct mcache_block *b = mc->hash[mcache_bucket (mc, off)];

  while (b != NULL && b->off != off)
    b = b->hash_next;
  return b;
}

static void
hash_insert (struct mcache *mc, struct mcache_block *b)
{
  struct mcache_block **head = &mc->hash[mcache_bucket (mc, b->off)];

  b->hash_next = *head;
  *head = b;
}

static void
hash_remove (struct mcache *mc, struct mcache_block *b)
{
  struct mcache_block **p = &mc->hash[mcache_bucket (mc, b->off)];

  while (*p != b)
    p = &(*p)->hash_next;
  *p = b->hash_next;
}

static void
free_block (struct mcache_block *b)
{
  free (b->data);
  free (b);
}

/* A block for OFF that is in no list yet.  META need not be held. */
static struct mcache_block *
allocate_block (const struct mcache *mc, uint64_t off)
{
  struct mcache_block *b = calloc (1, sizeof *b);

  if (b != NULL)
    b->data = malloc (mc->slice_size);
  if (b == NULL || b->data == NULL) {
    free (b);
    nbdkit_error ("%s: out of memory for the metadata cache",
                  mc->file->name);
    return NULL;
  }
  b->off = off;
  return b;
}

static struct mcache_block *
take_spare (struct mcache *mc, uint64_t off)
{
  struct mcache_block *b = mc->spare;
  uint8_t *data;

  if (b == NULL)
    return allocate_block (mc, off);
  mc->spare = b->hash_next;
  mc->nr_spare--;
  data = b->data;
  memset (b, 0, sizeof *b);
  b->data = data;
  b->off = off;
  return b;
}

void
mcache_give_spare (struct mcache *mc, struct mcache_block *b)
{
  if (mc->nr_spare >= MAX_SPARE) {
    free_block (b);
    return;
  }
  b->hash_next = mc->spare;
  mc->spare = b;
  mc->nr_spare++;
}

/* Make room: drop clean blocks, the least recently inserted first, those
 * that were used since the last visit one round later.
 */
void
mcache_evict (struct mcache *mc)
{
  size_t tries = 2 * mc->nr_blocks;
  struct mcache_block *b;

  while (mc->nr_blocks > mc->max_blocks && tries-- > 0) {
    b = mc->clean.head.next;
    if (b == &mc->clean.head)
      return;
    mcache_list_remove (b);
    if (b->get_nr + KEPT_GETS > mc->newest_get && b->get_nr != 0) {
      mcache_list_append (&mc->clean, b);
      continue;
    }
    if (atomic_load_explicit (&b->referenced, memory_order_relaxed)) {
      atomic_store_explicit (&b->referenced, false, memory_order_relaxed);
      mcache_list_append (&mc->clean, b);
      continue;
    }
    hash_remove (mc, b);
    mc->nr_blocks--;
    mcache_give_spare (mc, b);
  }
}

static void
insert_clean (struct mcache *mc, struct mcache_block *b)
{
  mc->nr_blocks++;
  mcache_evict (mc);
  b->state = STATE_CLEAN;
  hash_insert (mc, b);
  mcache_list_append (&mc->clean, b);
}

static int
read_slice (struct mcache *mc, void *buf, uint64_t off)
{
  int r = backend_pread (mc->file, buf, mc->slice_size, off);

  if (r == -ENODATA) {
    nbdkit_error ("%s: table at offset 0x%" PRIx64 " lies beyond the end "
                  "of the file; the file is truncated or corrupt: "
                  "check it with qemu-img check", mc->file->name, off);
    return -EIO;
  }
  return r;
}

int
mcache_create (struct backend *file, unsigned slice_bits, uint64_t max_bytes,
               struct ranked_rwlock *meta, struct mcache **mc)
{
  struct mcache *n = calloc (1, sizeof *n);

  if (n == NULL)
    goto no_memory;
  n->file = file;
  n->meta = meta;
  n->slice_bits = slice_bits;
  n->slice_size = (size_t) 1 << slice_bits;
  n->max_blocks = max_bytes / (n->slice_size + sizeof (struct mcache_block));
  if (n->max_blocks < MIN_BLOCKS)
    n->max_blocks = MIN_BLOCKS;
  n->hash_bits = 8;
  while (n->hash_bits < 28 && (size_t) 1 << n->hash_bits < n->max_blocks)
    n->hash_bits++;
  n->hash = calloc ((size_t) 1 << n->hash_bits, sizeof *n->hash);
  if (n->hash == NULL)
    goto no_memory;
  mcache_list_init (&n->clean);
  mcache_list_init (&n->dirty);
  mcache_list_init (&n->frozen);
  *mc = n;
  return 0;

 no_memory:
  free (n);
  nbdkit_error ("%s: out of memory for the metadata cache", file->name);
  return -ENOMEM;
}

static void
free_list (struct block_list *l)
{
  struct mcache_block *b, *next;

  for (b = l->head.next; b != &l->head; b = next) {
    next = b->next;
    if (b->frozen_data != b->data)
      free (b->frozen_data);
    free_block (b);
  }
}

void
mcache_free (struct mcache *mc)
{
  struct mcache_block *b;

  if (mc == NULL)
    return;
  free_list (&mc->clean);
  free_list (&mc->dirty);
  free_list (&mc->frozen);
  while ((b = mc->spare) != NULL) {
    mc->spare = b->hash_next;
    free_block (b);
  }
  free (mc->hash);
  free (mc);
}

/* The flag is written only where it changes, so that lookups of one hot
 * block do not pass its cache line around.
 */
static void
mark_referenced (struct mcache_block *b)
{
  if (!atomic_load_explicit (&b->referenced, memory_order_relaxed))
    atomic_store_explicit (&b->referenced, true, memory_order_relaxed);
}

const uint8_t *
mcache_peek (struct mcache *mc, uint64_t host_off)
{
  struct mcache_block *b = lookup (mc, host_off);

  if (b == NULL)
    return NULL;
  mark_referenced (b);
  return b->data;
}

/* B was read while TURN was current.  Insert it unless somebody else did;
 * false if what was read may be stale.
 */
static bool
try_insert (struct mcache *mc, struct mcache_block *b, uint64_t *turn)
{
  WRITE_SCOPE (mc->meta);
  if (lookup (mc, b->off) != NULL) {
    mcache_give_spare (mc, b);
    return true;
  }
  if (*mcache_turn (mc, b->off) != *turn) {
    *turn = *mcache_turn (mc, b->off);
    return false;
  }
  insert_clean (mc, b);
  return true;
}

int
mcache_load (struct mcache *mc, uint64_t host_off)
{
  struct mcache_block *b;
  uint64_t turn;
  int i, r;

  {
    READ_SCOPE (mc->meta);
    if (mcache_peek (mc, host_off) != NULL)
      return 0;
    turn = *mcache_turn (mc, host_off);
  }

  b = allocate_block (mc, host_off);
  if (b == NULL)
    return -ENOMEM;
  for (i = 0; i < MAX_LOAD_TRIES; ++i) {
    r = read_slice (mc, b->data, host_off);
    if (r < 0) {
      free_block (b);
      return r;
    }
    if (try_insert (mc, b, &turn))
      return 0;
  }
  free_block (b);

  WRITE_SCOPE (mc->meta);
  return mcache_visit_locked (mc, host_off, &b);
}

int
mcache_visit_locked (struct mcache *mc, uint64_t host_off,
                     struct mcache_block **block)
{
  struct mcache_block *b = lookup (mc, host_off);
  int r;

  if (b == NULL) {
    b = take_spare (mc, host_off);
    if (b == NULL)
      return -ENOMEM;
    r = read_slice (mc, b->data, host_off);
    if (r < 0) {
      mcache_give_spare (mc, b);
      return r;
    }
    insert_clean (mc, b);
  }
  else
    mark_referenced (b);
  *block = b;
  return 0;
}

int
mcache_get_locked (struct mcache *mc, uint64_t host_off,
                   struct mcache_block **block)
{
  int r = mcache_visit_locked (mc, host_off, block);

  if (r == 0)
    (*block)->get_nr = ++mc->newest_get;
  return r;
}

/* Take B out of sight.  Its space holds something else from now on. */
static void
forget_block (struct mcache *mc, struct mcache_block *b)
{
  hash_remove (mc, b);
  if (b->state == STATE_FROZEN) {
    b->doomed = true;
    return;
  }
  if (b->state == STATE_DIRTY)
    atomic_fetch_sub (&mc->nr_unclean, 1);
  mcache_list_remove (b);
  mc->nr_blocks--;
  mcache_give_spare (mc, b);
}

int
mcache_new_locked (struct mcache *mc, uint64_t host_off,
                   struct mcache_block **block)
{
  struct mcache_block *b = take_spare (mc, host_off);
  struct mcache_block *old;

  if (b == NULL)
    return -ENOMEM;
  /* What a lookup with an outdated table entry may have brought in. */
  old = lookup (mc, host_off);
  if (old != NULL)
    forget_block (mc, old);
  ++*mcache_turn (mc, host_off);
  memset (b->data, 0, mc->slice_size);
  insert_clean (mc, b);
  b->get_nr = ++mc->newest_get;
  *block = b;
  return 0;
}

const uint8_t *
mcache_data (const struct mcache_block *block)
{
  return block->data;
}

uint8_t *
mcache_dirty_locked (struct mcache *mc, struct mcache_block *block,
                     enum mcache_kind kind, uint64_t owner)
{
  uint8_t *copy;

  if (block->state == STATE_FROZEN) {
    if (block->data == block->frozen_data) {
      copy = malloc (mc->slice_size);
      if (copy == NULL) {
        nbdkit_error ("%s: out of memory for the metadata cache",
                      mc->file->name);
        return NULL;
      }
      memcpy (copy, block->data, mc->slice_size);
      block->data = copy;
      mc->nr_copies++;
    }
    block->changed = true;
  }
  else if (block->state == STATE_CLEAN) {
    mcache_list_remove (block);
    mcache_list_append (&mc->dirty, block);
    block->state = STATE_DIRTY;
    atomic_fetch_add (&mc->nr_unclean, 1);
  }
  block->kind = kind;
  block->owner = owner;
  mark_referenced (block);
  return block->data;
}

void
mcache_forget_locked (struct mcache *mc, uint64_t off, uint64_t len)
{
  struct mcache_block *b;
  uint64_t end, o;

  if (len == 0)
    return;
  if (__builtin_add_overflow (off, len, &end))
    end = UINT64_MAX;
  o = off >> mc->slice_bits << mc->slice_bits;
  for (; o < end; o += mc->slice_size) {
    ++*mcache_turn (mc, o);
    b = lookup (mc, o);
    if (b != NULL)
      forget_block (mc, b);
    if (o > UINT64_MAX - mc->slice_size)
      break;
  }
}

bool
mcache_is_dirty (const struct mcache *mc)
{
  return atomic_load (&mc->nr_unclean) > 0;
}

/* Half of the cache stays for lookups. */
bool
mcache_pressure (const struct mcache *mc)
{
  return atomic_load_explicit (&mc->nr_unclean, memory_order_relaxed) >=
    mc->max_blocks / 2;
}

uint64_t
mcache_memory (const struct mcache *mc)
{
  size_t blocks = mc->nr_blocks + mc->nr_spare;

  return blocks * (mc->slice_size + sizeof (struct mcache_block)) +
    mc->nr_copies * mc->slice_size +
    sizeof *mc + ((uint64_t) sizeof *mc->hash << mc->hash_bits);
}
