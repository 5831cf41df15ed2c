/* SPDX-License-Identifier: BSD-3-Clause */
/* The order in which an image reaches the disk.
 *
 * Definitions.  A write is "stable" when a barrier (backend_flush) that
 * began after the write had completed has succeeded.  A "reference" is a
 * table entry that points to a cluster.
 *
 * I1  A cluster's stable refcount is never below the number of stable
 *     references to it.
 *       Increments are written and a barrier is passed before an entry
 *       that needs them is written.  Decrements are applied, even in
 *       memory, only after the removal of the entry is stable.
 * I2  Data of a newly allocated cluster, copied head and tail included, is
 *     stable before an L2 entry that points to it is written; unless the
 *     cluster reads as zeroes without it, and so did the guest before: then
 *     an entry that comes too early shows what was there.
 *       Entries are changed in memory only after the data write has
 *       completed; the entries that a commit writes are those of the
 *       freeze, which comes before its first barrier.
 *       (L2 tables that nothing points to yet may be written earlier.)
 * I3  A new L2 table or refcount block is stable before the pointer to it
 *     is written.
 * I4  A cluster is reused only after the removal of its last reference is
 *     stable, and after every request that may still touch it has ended.
 *       alloc.c's limbo, epoch.c.
 * I5  The header is written last, as one sector, after all that it points
 *     to is stable.
 * I6  Autoclear bits are cleared, and the dirty bit is set, before the
 *     first change that they announce.
 * I7  A flush (or FUA) succeeds only if every write acknowledged before it
 *     is stable together with the metadata to find it.
 * I8  A cached block is clean only after the write of its current
 *     generation succeeded.
 * I9  A failed metadata write that memory cannot undo, or a failed fsync,
 *     is sticky: writes and flushes get EIO from then on, and nothing is
 *     freed or reused.
 *
 * A commit, in the notation "write | barrier":
 *
 *   freeze (lock)
 *   refcount blocks | refcount table    only if the table has new pointers
 *   refcount blocks, unreachable L2 tables | L2 tables, L1 table |
 *   thaw (lock), retire freed clusters
 *
 * Steps with nothing to write are left out, so a commit of data alone is
 * one barrier, and one with metadata two.  Where no entry has to wait for
 * anything (map->ordered), the barrier before the entries is left out too:
 * they are settled (alloc-reserved.c), or are no references.
 *
 * Where no entry waits to become stable, a flush is a barrier and nothing
 * else, and several may be under way: the host combines them better than a
 * queue would.
 *
 * Locks: LOCK_COMMIT decides who commits; it is not held during I/O.  The
 * freeze and the thaw hold LOCK_META exclusively, without I/O.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "commit.h"
#include "ondisk.h"

int
commit_open (struct commit *c)
{
  int r;

  ranked_mutex_init (&c->lock, LOCK_COMMIT);
  ranked_mutex_init (&c->header_lock, LOCK_HEADER);
  pthread_cond_init (&c->ended, NULL);

  /* What an earlier server wrote may not be stable: the first flush must
   * not be skipped.
   */
  c->data_dirty = true;
  memset (c->header_buf, 0, sizeof c->header_buf);
  r = backend_pread (c->file, c->header_buf, sizeof c->header_buf, 0);
  if (r < 0)
    nbdkit_error ("%s: the header cannot be read again: %s",
                  c->name, strerror (-r));
  return r < 0 ? -EIO : 0;
}

void
commit_close (struct commit *c)
{
  ranked_mutex_destroy (&c->lock);
  ranked_mutex_destroy (&c->header_lock);
  pthread_cond_destroy (&c->ended);
}

/* I9. */
static int
fail (struct commit *c, const char *what, int r)
{
  if (!c->failed)
    nbdkit_error ("%s: %s failed: %s; what was written since the last flush "
                  "may be lost, so writes are refused from now on: "
                  "restart the server and check the image",
                  c->name, what, strerror (-r));
  c->failed = true;
  return -EIO;
}

int
commit_barrier (struct commit *c)
{
  int r = 0;

  if (c->failed)
    return -EIO;
  if (c->data_file)
    r = backend_flush (c->data_file);
  if (r == 0)
    r = backend_flush (c->file);
  if (r < 0)
    return fail (c, "making data stable", r);
  /* What another barrier was told of meanwhile may be data of this one. */
  return c->failed ? -EIO : 0;
}

int
commit_fua_failed (struct commit *c, int r)
{
  return fail (c, "a write that had to be stable at once", r);
}

/* Write the first sector.  LOCK_HEADER is held. */
static int
write_header_locked (struct commit *c)
{
  int r;

  header_patch (c->header, c->header_buf);
  r = backend_pwrite (c->file, c->header_buf, sizeof c->header_buf, 0, 0);
  if (r < 0)
    return fail (c, "writing the header", r);
  return 0;
}

int
commit_announce (struct commit *c)
{
  bool changed = false;
  int r = 0;

  if (c->failed)
    return -EIO;
  if (c->announced)
    return 0;

  MUTEX_SCOPE (&c->header_lock);

  if (c->announced)
    return 0;
  if (c->header->version >= 3 && (c->header->autoclear & ~c->autoclear_kept)) {
    c->header->autoclear &= c->autoclear_kept;
    changed = true;
  }
  if (c->lazy && !(c->header->incompatible & INCOMPAT_DIRTY)) {
    c->header->incompatible |= INCOMPAT_DIRTY;
    changed = true;
  }
  if (changed)
    r = write_header_locked (c);
  if (r == 0 && c->bitmaps)
    r = c->announce_bitmaps (c->bitmaps, &changed);
  if (r == 0 && changed)
    r = commit_barrier (c);
  if (r == 0) {
    alloc_reserve_tables (c->alloc, c->map->l1_off, c->map->nr_l1 * 8);
    c->announced = true;
  }
  return r;
}

/* What one commit writes. */
struct frozen {
  uint8_t *l1, *reftable;       /* bytes of the dirty parts, NULL = none */
  uint64_t l1_lo, l1_hi;
  uint64_t reftable_lo, reftable_hi;
  uint64_t changes;             /* map->changes at the freeze */
  bool ordered;                 /* entries wait for data or refcounts */
  bool blocks;                  /* the mcache had dirty blocks */
};

static int
freeze (struct commit *c, struct frozen *f)
{
  int r;

  memset (f, 0, sizeof *f);

  WRITE_SCOPE (c->meta);

  f->changes = c->map->changes;
  f->blocks = mcache_is_dirty (c->mcache);
  r = map_take_dirty_locked (c->map, &f->l1, &f->l1_lo, &f->l1_hi);
  if (r < 0)
    return r;
  r = refcount_take_dirty_locked (c->refcount, &f->reftable,
                                  &f->reftable_lo, &f->reftable_hi);
  if (r < 0) {
    map_release_locked (c->map, f->l1_lo, f->l1_hi, false);
    free (f->l1);
    return r;
  }
  f->ordered = c->map->ordered > c->stable || f->l1 || f->reftable;
  mcache_freeze_locked (c->mcache);
  alloc_freeze_locked (c->alloc);
  return 0;
}

static void
thaw (struct commit *c, struct frozen *f, bool reftable_written,
      bool committed)
{
  WRITE_SCOPE (c->meta);

  /* Where nothing was written there may have been no barrier. */
  if (committed && (f->blocks || f->changes != c->stable))
    alloc_reserved_stable_locked (c->alloc);

  mcache_thaw_locked (c->mcache);
  map_release_locked (c->map, f->l1_lo, f->l1_hi, committed);
  if (f->reftable && !reftable_written)
    refcount_redirty_locked (c->refcount, f->reftable_lo, f->reftable_hi);
  alloc_retire_locked (c->alloc, committed);
  if (committed)
    c->stable = f->changes;
  free (f->l1);
  free (f->reftable);
}

static bool
is_unreachable (uint64_t l1_idx, void *c)
{
  return map_is_frozen (((struct commit *) c)->map, l1_idx);
}

/* Refcounts, and with them everything that must be stable before an entry
 * of a reachable table is written, if that has to wait.
 */
static int
write_before_entries (struct commit *c, struct frozen *f,
                      bool *reftable_written)
{
  bool lazy = c->lazy && !mcache_pressure (c->mcache) && !f->reftable;
  int r;

  if (!lazy) {
    r = mcache_write_frozen (c->mcache, MCACHE_REFBLOCK, NULL, NULL);
    if (r < 0)
      return r;
  }
  if (f->reftable) {
    r = commit_barrier (c);
    if (r < 0)
      return r;
    r = backend_pwrite (c->file, f->reftable,
                        (f->reftable_hi - f->reftable_lo) * 8,
                        c->refcount->table_off + f->reftable_lo * 8, 0);
    if (r < 0)
      return r;
    *reftable_written = true;
  }
  if (!f->ordered && f->changes != c->stable)
    return 0;
  r = mcache_write_frozen (c->mcache, MCACHE_L2, is_unreachable, c);
  if (r < 0)
    return r;
  return commit_barrier (c);
}

static int
write_entries (struct commit *c, struct frozen *f)
{
  int r;

  r = mcache_write_frozen (c->mcache, MCACHE_L2, NULL, NULL);
  if (r < 0)
    return r;
  if (f->l1) {
    r = backend_pwrite (c->file, f->l1, (f->l1_hi - f->l1_lo) * 8,
                        c->map->l1_off + f->l1_lo * 8, 0);
    if (r < 0)
      return r;
  }
  return commit_barrier (c);
}

/* One commit.  Only one thread at a time. */
static int
run_commit (struct commit *c)
{
  struct frozen f;
  bool reftable_written = false, had_data;
  int r;

  if (c->failed)
    return -EIO;
  c->data_flushes++;            /* see flush_data */
  had_data = atomic_exchange (&c->data_dirty, false);
  r = freeze (c, &f);
  if (r == 0 && !f.blocks && !f.l1 && !f.reftable &&
      f.changes == c->stable) {
    /* Not only our own: data that we are asked for may be what another
     * thread, which cleared the flag, has not made stable yet.
     */
    if (had_data || c->data_flushes > 1)
      r = commit_barrier (c);
    thaw (c, &f, false, r == 0);
    goto out;
  }
  if (r < 0)
    goto out;

  r = write_before_entries (c, &f, &reftable_written);
  if (r == 0 && f.changes != c->stable)
    r = write_entries (c, &f);
  thaw (c, &f, reftable_written, r == 0);

 out:
  if (r < 0)
    c->data_dirty = true;
  c->data_flushes--;
  if (r == 0)
    alloc_reclaim (c->alloc, false);
  return c->failed ? -EIO : r;
}

/* Does no metadata wait to be written, and no space to be freed? */
static bool
is_settled (struct commit *c)
{
  READ_SCOPE (c->meta);

  return !commit_is_unstable (c) && !mcache_is_dirty (c->mcache) &&
    !alloc_has_deferred (c->alloc);
}

/* Make guest data stable; all entries that point to it are (I7).  Whoever
 * finds nothing to do must know that no barrier is under way, which may be
 * the one that its data needs: so the count goes up before the flag is
 * cleared, and the flag is read before the count.
 */
static int
flush_data (struct commit *c)
{
  int r;

  /* Who cleared the flag may have failed since: asked last. */
  if (!c->data_dirty && c->data_flushes == 0)
    return c->failed ? -EIO : 0;
  c->data_flushes++;
  c->data_dirty = false;
  r = commit_barrier (c);
  c->data_flushes--;
  return r;
}

/* Become the only committer.  LOCK_COMMIT is held. */
static void
begin_locked (struct commit *c)
{
  while (c->running)
    ranked_mutex_wait (&c->ended, &c->lock);
  c->running = true;
}

static void
end_locked (struct commit *c)
{
  c->running = false;
  pthread_cond_broadcast (&c->ended);
}

int
commit_flush (struct commit *c)
{
  uint64_t need, nr;
  int r;

  if (is_settled (c))
    return flush_data (c);
  {
    MUTEX_SCOPE (&c->lock);

    /* The commit under way may have frozen before our write. */
    need = c->started + 1;
    while (c->running && c->finished < need)
      ranked_mutex_wait (&c->ended, &c->lock);
    if (c->finished >= need)
      return c->result;
    c->running = true;
    nr = ++c->started;
  }

  r = run_commit (c);

  MUTEX_SCOPE (&c->lock);
  c->finished = nr;
  c->result = r;
  end_locked (c);
  return r;
}

bool
commit_wanted (const struct commit *c)
{
  return mcache_pressure (c->mcache) || alloc_pressure (c->alloc);
}

/* All that the new table describes is on disk except itself: write the
 * dirty blocks (their table entries are in the new table), prepare, and
 * let the header point to it.  LOCK_META is held exclusively.
 */
static int
grow_locked (struct commit *c)
{
  struct refcount_growth g;
  uint64_t old_off, old_clusters;
  int r;

  mcache_freeze_locked (c->mcache);
  r = mcache_write_frozen_locked (c->mcache, MCACHE_REFBLOCK);
  mcache_thaw_locked (c->mcache);
  if (r < 0)
    return r;
  r = refcount_prepare_grow_locked (c->refcount,
                                    refcount_table_span (c->refcount), &g);
  if (r < 0)
    return r == -EFBIG ? -ENOSPC : r;
  r = commit_barrier (c);
  if (r < 0) {
    refcount_abandon_grow (&g);
    return r;
  }
  {
    MUTEX_SCOPE (&c->header_lock);

    c->header->refcount_table_offset = g.table_off;
    c->header->refcount_table_clusters = g.nr_clusters;
    r = write_header_locked (c);
  }
  if (r == 0)
    r = commit_barrier (c);
  if (r < 0) {
    refcount_abandon_grow (&g);
    return r;
  }
  refcount_switch_locked (c->refcount, &g, &old_off, &old_clusters);
  alloc_defer_free_locked (c->alloc, old_off, old_clusters);
  return 0;
}

int
commit_grow_reftable (struct commit *c)
{
  uint64_t span;
  int r = 0;

  {
    READ_SCOPE (c->meta);
    span = refcount_table_span (c->refcount);
  }
  {
    MUTEX_SCOPE (&c->lock);
    begin_locked (c);
  }
  {
    WRITE_SCOPE (c->meta);

    /* Somebody else may have done it meanwhile. */
    if (span == refcount_table_span (c->refcount))
      r = c->failed ? -EIO : grow_locked (c);
  }
  {
    MUTEX_SCOPE (&c->lock);
    end_locked (c);
  }
  return r;
}

void
commit_mark_corrupt (struct commit *c)
{
  MUTEX_SCOPE (&c->header_lock);

  nbdkit_error ("%s: metadata overlaps guest data: the image is corrupt "
                "and writes are refused; check it, and repair it with "
                "repair=all", c->name);
  if (c->header->version >= 3) {
    c->header->incompatible |= INCOMPAT_CORRUPT;
    if (write_header_locked (c) == 0 && commit_barrier (c) < 0)
      nbdkit_debug ("%s: the corrupt bit may not be stable", c->name);
  }
  c->failed = true;
}

/* The whole first cluster, extensions and backing file name included. */
static int
write_whole_header (struct commit *c)
{
  const size_t size = (size_t) 1 << c->header->cluster_bits;
  uint8_t *buf;
  int r;

  buf = malloc (size);
  if (buf == NULL)
    return -ENOMEM;
  r = header_serialise (c->name, c->header, buf);
  if (r == 0) {
    r = backend_pwrite (c->file, buf, size, 0, 0);
    if (r < 0)
      r = fail (c, "writing the header", r);
    else
      memcpy (c->header_buf, buf, sizeof c->header_buf);
  }
  free (buf);
  return r;
}

int
commit_header (struct commit *c, bool whole)
{
  int r;

  r = commit_barrier (c);
  if (r < 0)
    return r;

  MUTEX_SCOPE (&c->header_lock);

  r = whole ? write_whole_header (c) : write_header_locked (c);
  if (r < 0)
    return r;
  return commit_barrier (c);
}

int
commit_finish (struct commit *c)
{
  bool again = true;
  int i, r;

  {
    WRITE_SCOPE (c->meta);
    alloc_reserved_give_back_locked (c->alloc);
  }
  /* Freed space changes refcounts, which the next round writes. */
  for (i = 0; again && i < 3; ++i) {
    r = commit_flush (c);
    if (r < 0)
      return r;
    alloc_reclaim (c->alloc, true);

    READ_SCOPE (c->meta);
    again = mcache_is_dirty (c->mcache) || alloc_has_deferred (c->alloc);
  }
  if (c->lazy && c->announced) {
    c->lazy = false;            /* now write the refcounts as well */
    r = commit_flush (c);
    if (r < 0)
      return r;
    c->header->incompatible &= ~INCOMPAT_DIRTY;
    r = commit_header (c, false);
    if (r < 0)
      return r;
  }
  alloc_trim_file (c->alloc, false);
  return commit_barrier (c);
}
