/* SPDX-License-Identifier: BSD-3-Clause */
/* Internal snapshots.
 *
 * Invariants, at any moment of a power loss (stable state):
 *  - The header is the switch: before it is written nothing refers to what
 *    was prepared, after it nothing refers to what will be freed (I1, I5).
 *  - While a snapshot exists, no entry of the active tables that leads to a
 *    cluster of it has the COPIED flag: flags are cleared before the header
 *    gets the snapshot, and set after it lost it.
 *
 * In the notation of commit.c ("write | barrier"), "!" is the header:
 *
 *   create   refcounts +1 | flags clear, L1 copy, table | ! |
 *   apply    refcounts of the snapshot +1 | its flags clear, new L1 | ! |
 *            refcounts of the old tables -1 |
 *   delete   table | ! | refcounts of the snapshot -1 | flags set |
 *
 * Locks: takes LOCK_META for each change; the image is not served.
 *
 * It does not save or restore the state of a virtual machine, but keeps it
 * if a snapshot has one.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "admin.h"
#include "bitmaps-resize.h"
#include "l1-walk.h"
#include "ondisk.h"
#include "snapshot.h"

/* QEMU's limit. */
#define MAX_NAME 255

static int
check_possible (const struct core *core)
{
  if (core->geo.has_data_file) {
    nbdkit_error ("%s: an image with an external data file cannot have "
                  "internal snapshots", core->name);
    return -ENOTSUP;
  }
  return 0;
}

static int
find (struct core *core, const char *id_or_name, struct snapshot_entry **e)
{
  *e = snapshot_table_find (&core->snapshots, id_or_name);
  if (*e == NULL) {
    nbdkit_error ("%s: there is no snapshot with ID or name \"%s\"",
                  core->name, id_or_name);
    return -ENOENT;
  }
  return snapshot_table_check (core->name, &core->geo, *e);
}

static uint64_t
l1_clusters (const struct core *core, uint64_t nr_l1)
{
  return geometry_clusters (&core->geo, nr_l1 * 8);
}

/* --- the snapshot table --- */

/* A snapshot table that is being replaced. */
struct new_table {
  uint64_t off, nr;             /* clusters */
  size_t bytes;
};

/* Write T to new space. */
static int
write_table (struct core *core, const struct snapshot_table *t,
             struct new_table *n)
{
  uint8_t *buf;
  int r;

  memset (n, 0, sizeof *n);
  r = snapshot_table_serialise (t, &buf, &n->bytes);
  if (r < 0) {
    if (r == -EFBIG) {
      nbdkit_error ("%s: too many snapshots, or too long names",
                    core->name);
      r = -EINVAL;
    }
    return r;
  }
  n->nr = geometry_clusters (&core->geo, n->bytes);
  r = admin_alloc (core, n->nr, OVERLAP_SNAPSHOT_TABLE, &n->off);
  if (r == 0 && n->bytes > 0)
    r = backend_pwrite (core->file, buf, n->bytes, n->off, 0);
  free (buf);
  if (r < 0 && n->off) {
    admin_free (core, n->off, n->nr, false);
    n->nr = 0;
  }
  return r;
}

/* The header gets the new table with NR_ENTRIES, stable on return; the old
 * one is freed.
 */
static int
switch_table (struct core *core, const struct new_table *n,
              uint32_t nr_entries)
{
  struct header *h = &core->header;
  uint64_t old_off = h->snapshots_offset;
  uint64_t old_nr = geometry_clusters (&core->geo, core->snapshots.bytes);
  int r;

  h->snapshots_offset = n->off;
  h->nb_snapshots = nr_entries;
  r = commit_header (&core->commit, false);
  if (r < 0)
    return r;
  admin_free (core, old_off, old_nr, true);
  core->snapshots.bytes = n->bytes;
  return 0;
}

/* The smallest number that no snapshot has as its ID, or less. */
static uint64_t
next_id (const struct snapshot_table *t)
{
  uint64_t id, max = 0;
  size_t i;

  for (i = 0; i < t->nr; i++) {
    id = strtoull (t->entries[i].id, NULL, 10);
    if (id > max && id < UINT64_MAX)
      max = id;
  }
  return max + 1;
}

/* Room for one more entry, which is not counted yet. */
static int
make_entry (struct core *core, const char *name, const struct timespec *when,
            struct snapshot_entry **e)
{
  struct snapshot_table *t = &core->snapshots;
  struct snapshot_entry *entries;
  char id[24];

  entries = reallocarray (t->entries, t->nr + 1, sizeof *entries);
  if (entries == NULL)
    return -ENOMEM;
  t->entries = entries;
  *e = &entries[t->nr];
  snprintf (id, sizeof id, "%" PRIu64, next_id (t));
  **e = (struct snapshot_entry) {
    .l1_size = core->map.nr_l1,
    .date_sec = when->tv_sec, .date_nsec = when->tv_nsec,
    .disk_size = core->header.size,
    .icount = UINT64_MAX,
    .id = strdup (id), .name = strdup (name),
  };
  if ((*e)->id && (*e)->name)
    return 0;
  free ((*e)->id);
  free ((*e)->name);
  return -ENOMEM;
}

static void
free_entry (struct snapshot_entry *e)
{
  free (e->id);
  free (e->name);
  free (e->extra);
}

/* --- create --- */

static int
check_name (const struct core *core, const char *name)
{
  if (name[0] == '\0' || strlen (name) > MAX_NAME) {
    nbdkit_error ("%s: the name of a snapshot has 1 to %d bytes",
                  core->name, MAX_NAME);
    return -EINVAL;
  }
  if (snapshot_table_find (&core->snapshots, name)) {
    nbdkit_error ("%s: there is a snapshot with ID or name \"%s\" already",
                  core->name, name);
    return -EEXIST;
  }
  if (core->snapshots.nr >= MAX_SNAPSHOTS) {
    nbdkit_error ("%s: there are %d snapshots, the most that an image can "
                  "have", core->name, MAX_SNAPSHOTS);
    return -EINVAL;
  }
  return 0;
}

/* The active tables give up their exclusive clusters, or get them back. */
static int
write_flags (struct core *core, bool clear)
{
  struct map *map = &core->map;
  int r;

  r = l1_walk_flags (core, map->l1, map->nr_l1, clear);
  if (r == 0)
    r = l1_walk_write (core, map->l1_off, map->l1, map->nr_l1);
  return r;
}

/* From the first refcount to the header.  *DAMAGED: what was done is not
 * taken back.
 */
static int
create_on_disk (struct core *core, struct snapshot_entry *e, bool *damaged)
{
  struct snapshot_table with = {
    .entries = core->snapshots.entries, .nr = core->snapshots.nr + 1,
  };
  uint64_t nr = l1_clusters (core, core->map.nr_l1);
  struct new_table table = { .off = 0 };
  int r;

  r = l1_walk_check (core, core->map.l1, core->map.nr_l1);
  if (r == 0)
    r = admin_alloc (core, nr, OVERLAP_SNAPSHOT_L1, &e->l1_table_offset);
  if (r < 0)
    return r;
  r = write_table (core, &with, &table);
  if (r == 0)
    r = l1_walk_add (core, core->map.l1, core->map.nr_l1);
  if (r < 0) {
    admin_free (core, table.off, table.nr, false);
    admin_free (core, e->l1_table_offset, nr, false);
    return r;
  }
  *damaged = true;
  r = commit_flush (&core->commit);
  if (r == 0)
    r = write_flags (core, true);
  if (r == 0)
    r = l1_walk_write (core, e->l1_table_offset, core->map.l1,
                       core->map.nr_l1);
  if (r == 0)
    r = switch_table (core, &table, with.nr);
  return r;
}

int
snapshot_create (struct core *core, const char *name,
                 const struct timespec *when)
{
  struct snapshot_entry *e;
  struct admin a;
  bool damaged = false;
  int r;

  r = check_possible (core);
  if (r == 0)
    r = check_name (core, name);
  if (r == 0)
    r = make_entry (core, name, when, &e);
  if (r < 0)
    return r;
  r = admin_begin (&a, core, true);
  if (r == 0)
    r = create_on_disk (core, e, &damaged);
  if (r == 0)
    core->snapshots.nr++;
  else
    free_entry (e);
  return admin_end (&a, r, damaged);
}

/* --- apply --- */

static int
check_apply (const struct core *core, const struct snapshot_entry *e)
{
  if (core->header.version < 3 && e->disk_size != core->header.size) {
    nbdkit_error ("%s: snapshot \"%s\" has a disk of %" PRIu64 " bytes, the "
                  "image one of %" PRIu64 ": a version 2 image with snapshots "
                  "cannot change its size", core->name, e->id, e->disk_size,
                  core->header.size);
    return -ENOTSUP;
  }
  return 0;
}

/* The tables at L1, to which nothing leads any more, go. */
static int
free_tables (struct core *core, const struct l1_entry *l1, uint64_t l1_off,
             uint64_t nr_l1)
{
  int r, r2;

  r = l1_walk_free (core, l1, nr_l1);
  if (r == 0)
    admin_free (core, l1_off, l1_clusters (core, nr_l1), true);
  r2 = admin_register_tables (core);
  return r < 0 ? r : r2;
}

/* L1 is the table of the snapshot. */
static int
apply_on_disk (struct core *core, const struct snapshot_entry *e,
               struct l1_entry *l1, bool *damaged)
{
  uint64_t nr = l1_clusters (core, e->l1_size), new_off;
  uint64_t old_off = core->map.l1_off, old_nr = core->map.nr_l1;
  struct l1_entry *old;
  int r;

  r = l1_walk_check (core, l1, e->l1_size);
  if (r == 0)
    r = l1_walk_check (core, core->map.l1, old_nr);
  if (r < 0)
    return r;
  old = malloc (old_nr * sizeof *old + 1);
  if (old == NULL)
    return -ENOMEM;
  if (old_nr > 0)
    memcpy (old, core->map.l1, old_nr * sizeof *old);
  r = admin_alloc (core, nr, OVERLAP_L1, &new_off);
  if (r < 0)
    goto out;
  r = l1_walk_add (core, l1, e->l1_size);
  if (r < 0) {
    admin_free (core, new_off, nr, false);
    goto out;
  }
  *damaged = true;
  r = commit_flush (&core->commit);
  if (r == 0)
    r = l1_walk_flags (core, l1, e->l1_size, true);
  if (r == 0)
    r = l1_walk_write (core, new_off, l1, e->l1_size);
  if (r == 0)
    r = admin_switch_l1 (core, e->disk_size, new_off, e->l1_size);
  if (r == 0)
    r = free_tables (core, old, old_off, old_nr);
 out:
  free (old);
  return r;
}

/* Bitmaps that follow changes must know that everything may have changed. */
static int
apply_with_bitmaps (struct core *core, const struct snapshot_entry *e,
                    struct l1_entry *l1, bool *damaged)
{
  struct bitmaps_resize bitmaps;
  int r, r2;

  r = bitmaps_resize_begin (&bitmaps, core, e->disk_size);
  if (r < 0)
    return r;
  r = apply_on_disk (core, e, l1, damaged);
  r2 = bitmaps_resize_end (&bitmaps, *damaged);
  return r < 0 ? r : r2;
}

int
snapshot_apply (struct core *core, const char *id_or_name)
{
  struct snapshot_entry *e;
  struct l1_entry *l1 = NULL;
  struct admin a;
  bool damaged = false;
  int r;

  r = check_possible (core);
  if (r == 0)
    r = find (core, id_or_name, &e);
  if (r == 0)
    r = check_apply (core, e);
  if (r == 0)
    r = l1_walk_read (core, e->l1_table_offset, e->l1_size, &l1);
  if (r < 0)
    return r;
  r = admin_begin (&a, core, true);
  if (r == 0)
    r = apply_with_bitmaps (core, e, l1, &damaged);
  free (l1);
  return admin_end (&a, r, damaged);
}

/* --- delete --- */

/* L1 is the table of the snapshot IDX. */
static int
delete_on_disk (struct core *core, size_t idx, const struct l1_entry *l1,
                bool *damaged)
{
  struct snapshot_table *t = &core->snapshots;
  struct snapshot_entry e = t->entries[idx];
  struct snapshot_table without = { .nr = t->nr - 1 };
  struct new_table table;
  int r;

  r = l1_walk_check (core, l1, e.l1_size);
  if (r == 0)
    r = l1_walk_check (core, core->map.l1, core->map.nr_l1);
  if (r < 0)
    return r;
  without.entries = malloc (t->nr * sizeof *without.entries);
  if (without.entries == NULL)
    return -ENOMEM;
  memcpy (without.entries, t->entries, idx * sizeof e);
  memcpy (without.entries + idx, t->entries + idx + 1,
          (without.nr - idx) * sizeof e);
  r = write_table (core, &without, &table);
  if (r == 0)
    r = commit_flush (&core->commit);
  *damaged = r == 0;
  if (r == 0)
    r = switch_table (core, &table, without.nr);
  if (r < 0) {
    free (without.entries);
    return r;
  }
  free_entry (&t->entries[idx]);
  free (t->entries);
  t->entries = without.entries;
  t->nr = without.nr;

  r = free_tables (core, l1, e.l1_table_offset, e.l1_size);
  if (r == 0)
    r = admin_settle (core);
  if (r == 0)
    r = write_flags (core, false);
  return r;
}

int
snapshot_delete (struct core *core, const char *id_or_name)
{
  struct snapshot_entry *e;
  struct l1_entry *l1 = NULL;
  struct admin a;
  bool damaged = false;
  int r;

  r = check_possible (core);
  if (r == 0)
    r = find (core, id_or_name, &e);
  if (r == 0)
    r = l1_walk_read (core, e->l1_table_offset, e->l1_size, &l1);
  if (r < 0)
    return r;
  r = admin_begin (&a, core, true);
  if (r == 0)
    r = delete_on_disk (core, e - core->snapshots.entries, l1, &damaged);
  free (l1);
  return admin_end (&a, r, damaged);
}
