/* SPDX-License-Identifier: BSD-3-Clause */
/* The metadata cache as the committer sees it: freeze, write, thaw.
 *
 * Invariants: see mcache.c; in particular a block is clean again only if
 * its write succeeded and it was not changed since the freeze (I8).
 *
 * Locks: the list of frozen blocks with its links and written flags belongs
 * to the committer, of which there is one; everything else to LOCK_META.
 *
 * Does not order writes: commit.c calls in the right order.
 */

#include <config.h>

#include <stdlib.h>

#include "mcache-block.h"
#include "mcache.h"

#define MAX_RUN 64              /* blocks written by one call */

void
mcache_freeze_locked (struct mcache *mc)
{
  struct mcache_block *b;

  while (!mcache_list_is_empty (&mc->dirty)) {
    b = mc->dirty.head.next;
    mcache_list_remove (b);
    mcache_list_append (&mc->frozen, b);
    b->state = STATE_FROZEN;
    b->frozen_data = b->data;
    b->frozen_kind = b->kind;
    b->frozen_owner = b->owner;
    b->written = b->changed = false;
  }
  mc->frozen_sorted = false;
}

static int
compare_offsets (const void *a, const void *b)
{
  const struct mcache_block *x = *(struct mcache_block *const *) a;
  const struct mcache_block *y = *(struct mcache_block *const *) b;

  return x->off < y->off ? -1 : x->off > y->off;
}

/* Order the frozen blocks by offset.  The list is the committer's own, so
 * this needs no lock.  Without memory they are written in the order in
 * which they became dirty, which is as good but slower.
 */
static void
sort_frozen (struct mcache *mc)
{
  struct mcache_block *b, **array;
  size_t nr = 0, i;

  mc->frozen_sorted = true;
  for (b = mc->frozen.head.next; b != &mc->frozen.head; b = b->next)
    nr++;
  array = nr > 1 ? malloc (nr * sizeof *array) : NULL;
  if (array == NULL)
    return;
  i = 0;
  for (b = mc->frozen.head.next; b != &mc->frozen.head; b = b->next)
    array[i++] = b;
  qsort (array, nr, sizeof *array, compare_offsets);
  mcache_list_init (&mc->frozen);
  for (i = 0; i < nr; ++i)
    mcache_list_append (&mc->frozen, array[i]);
  free (array);
}

/* Write the NR blocks of RUN, which are neighbours. */
static int
write_run (struct mcache *mc, struct mcache_block **run, size_t nr)
{
  struct iovec iov[MAX_RUN];
  size_t i;
  int r;

  if (nr == 0)
    return 0;
  for (i = 0; i < nr; ++i) {
    iov[i].iov_base = run[i]->frozen_data;
    iov[i].iov_len = mc->slice_size;
  }
  r = backend_pwritev (mc->file, iov, nr, run[0]->off, 0);
  if (r < 0)
    return r;
  for (i = 0; i < nr; ++i)
    run[i]->written = true;
  return 0;
}

int
mcache_write_frozen (struct mcache *mc, enum mcache_kind kind,
                     bool (*select) (uint64_t owner, void *opaque),
                     void *opaque)
{
  struct mcache_block *run[MAX_RUN];
  struct mcache_block *b;
  size_t nr = 0;
  int r;

  if (!mc->frozen_sorted)
    sort_frozen (mc);
  for (b = mc->frozen.head.next; b != &mc->frozen.head; b = b->next) {
    if (b->written || b->frozen_kind != kind ||
        (select != NULL && !select (b->frozen_owner, opaque)))
      continue;
    if (nr == MAX_RUN ||
        (nr > 0 && run[nr-1]->off + mc->slice_size != b->off)) {
      r = write_run (mc, run, nr);
      if (r < 0)
        return r;
      nr = 0;
    }
    run[nr++] = b;
  }
  return write_run (mc, run, nr);
}

int
mcache_write_frozen_locked (struct mcache *mc, enum mcache_kind kind)
{
  return mcache_write_frozen (mc, kind, NULL, NULL);
}

static void
thaw_block (struct mcache *mc, struct mcache_block *b)
{
  if (b->frozen_data != b->data) {
    free (b->frozen_data);
    mc->nr_copies--;
  }
  b->frozen_data = NULL;
  if (b->written)
    ++*mcache_turn (mc, b->off);

  if (b->doomed) {
    b->doomed = false;
    mc->nr_blocks--;
    atomic_fetch_sub (&mc->nr_unclean, 1);
    mcache_give_spare (mc, b);
  }
  else if (b->written && !b->changed) {
    b->state = STATE_CLEAN;
    atomic_fetch_sub (&mc->nr_unclean, 1);
    mcache_list_append (&mc->clean, b);
  }
  else {
    b->state = STATE_DIRTY;
    mcache_list_append (&mc->dirty, b);
  }
}

void
mcache_thaw_locked (struct mcache *mc)
{
  struct mcache_block *b;

  while (!mcache_list_is_empty (&mc->frozen)) {
    b = mc->frozen.head.next;
    mcache_list_remove (b);
    thaw_block (mc, b);
  }
  mcache_evict (mc);
}
