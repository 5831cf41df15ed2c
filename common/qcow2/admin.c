/* SPDX-License-Identifier: BSD-3-Clause */
/* What the operations on an image that is not being served have in common.
 *
 * Invariant: the dirty bit is stable before the first refcount changes that
 * does not follow from a change of the mapping, and is cleared only after
 * all refcounts and flags are stable (I6).
 *
 * Locks: takes LOCK_META for each change; none is held by the caller.
 * Barriers are commit.c's.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "admin.h"
#include "bitmaps.h"
#include "ondisk.h"

int
admin_begin (struct admin *a, struct core *core, bool refcounts)
{
  struct commit *c = &core->commit;
  int r;

  a->core = core;
  a->lazy = c->lazy;

  r = commit_announce (c);
  c->lazy = false;
  if (r == 0)
    r = commit_flush (c);
  if (r == 0 && refcounts && core->header.version >= 3 &&
      !(core->header.incompatible & INCOMPAT_DIRTY)) {
    core->header.incompatible |= INCOMPAT_DIRTY;
    r = commit_header (c, false);
  }
  return r;
}

/* Flush and reclaim make work for each other, but less each time. */
int
admin_settle (struct core *core)
{
  bool again = true;
  int r;

  while (again) {
    r = commit_flush (&core->commit);
    if (r < 0)
      return r;
    alloc_reclaim (&core->alloc, true);

    READ_SCOPE (&core->meta);
    again = mcache_is_dirty (core->mcache) ||
      alloc_has_deferred (&core->alloc);
  }
  return 0;
}

/* As after a clean close. */
static int
finish (struct core *core)
{
  struct commit *c = &core->commit;
  int r = 0;

  if (core->bitmaps)
    r = bitmaps_store (core->bitmaps);
  if (r == 0)
    r = admin_settle (core);
  if (r == 0)
    r = commit_finish (c);
  if (r == 0 && (core->header.incompatible & INCOMPAT_DIRTY)) {
    core->header.incompatible &= ~INCOMPAT_DIRTY;
    r = commit_header (c, false);
  }
  return r;
}

int
admin_end (struct admin *a, int r, bool damaged)
{
  struct commit *c = &a->core->commit;
  int r2 = 0;

  if (!commit_has_failed (c) && !(r < 0 && damaged))
    r2 = finish (a->core);
  c->lazy = a->lazy;
  /* The next change must be announced anew. */
  c->announced = false;
  return r < 0 ? r : r2;
}

static int
try_alloc (struct core *core, uint64_t nr, enum overlap_kind kind,
           uint64_t *host_off)
{
  uint64_t len = nr << core->geo.cluster_bits;
  bool virgin;
  int r;

  WRITE_SCOPE (&core->meta);

  r = alloc_exactly_locked (&core->alloc, nr, host_off, &virgin);
  if (r < 0)
    return r;
  mcache_forget_locked (core->mcache, *host_off, len);
  r = overlap_add_locked (core->overlap, *host_off, len, kind);
  if (r < 0) {
    alloc_release_locked (&core->alloc, *host_off, nr);
    *host_off = 0;
  }
  return r;
}

int
admin_alloc (struct core *core, uint64_t nr, enum overlap_kind kind,
             uint64_t *host_off)
{
  int r;

  *host_off = 0;
  if (nr == 0)
    return 0;
  do {
    r = try_alloc (core, nr, kind, host_off);
    if (r == -EAGAIN && (r = commit_grow_reftable (&core->commit)) == 0)
      r = -EAGAIN;
  } while (r == -EAGAIN);
  if (r == -EUCLEAN) {
    commit_mark_corrupt (&core->commit);
    r = -EIO;
  }
  if (r == -ENOSPC)
    nbdkit_error ("%s: no space for %" PRIu64 " more clusters of metadata",
                  core->name, nr);
  return r;
}

void
admin_free (struct core *core, uint64_t host_off, uint64_t nr, bool stable)
{
  uint64_t len = nr << core->geo.cluster_bits;

  if (nr == 0)
    return;

  WRITE_SCOPE (&core->meta);

  overlap_remove_locked (core->overlap, host_off, len);
  mcache_forget_locked (core->mcache, host_off, len);
  if (stable)
    alloc_defer_free_locked (&core->alloc, host_off, nr);
  else
    alloc_release_locked (&core->alloc, host_off, nr);
}

int
admin_register_tables (struct core *core)
{
  const struct map *map = &core->map;
  uint64_t i;
  int r = 0;

  WRITE_SCOPE (&core->meta);

  for (i = 0; r == 0 && i < map->nr_l1; i++)
    if (l1_entry_off (map->l1[i]) && l1_entry_valid (&core->geo, map->l1[i]))
      r = overlap_add_locked (core->overlap, l1_entry_off (map->l1[i]),
                              core->geo.cluster_size, OVERLAP_L2);
  /* Without a full registry the next write could destroy a table. */
  if (r < 0)
    core->commit.failed = true;
  return r;
}

/* The L2 tables of MAP are no longer those of the active disk. */
static void
forget_tables_locked (struct core *core, const struct map *map)
{
  uint64_t i, off;

  for (i = 0; i < map->nr_l1; i++) {
    off = l1_entry_off (map->l1[i]);
    if (off == 0 || !l1_entry_valid (&core->geo, map->l1[i]))
      continue;
    overlap_remove_locked (core->overlap, off, core->geo.cluster_size);
    mcache_forget_locked (core->mcache, off, core->geo.cluster_size);
  }
}

int
admin_switch_l1 (struct core *core, uint64_t size, uint64_t l1_off,
                 uint64_t nr_l1)
{
  struct header *h = &core->header;
  struct map new;
  int r;

  r = map_open (&new, core->name, &core->geo, core->file, core->mcache,
                &core->alloc, core->overlap, &core->meta, size, l1_off,
                nr_l1);
  if (r < 0)
    return r;
  h->size = size;
  h->l1_table_offset = l1_off;
  h->l1_size = nr_l1;
  r = commit_header (&core->commit, false);
  if (r < 0) {                  /* sticky: nobody uses the map again */
    map_close (&new);
    return r;
  }

  {
    WRITE_SCOPE (&core->meta);

    forget_tables_locked (core, &core->map);
    map_close (&core->map);
    core->map = new;
    core->commit.stable = core->map.changes;
  }
  core->io.size = size;
  return admin_register_tables (core);
}
