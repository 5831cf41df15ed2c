/* SPDX-License-Identifier: BSD-3-Clause */
/* Follow the active L1 table, and those of snapshots.
 *
 * Invariant: no byte of the file is read more than twice for the tables of
 * one kind, however often it is named: L1 tables that overlap are read once
 * (check-tables.h), L2 tables that are named again are walked once
 * (table-list.h).  Misaligned L2 tables could overlap each other, so
 * their number is limited.
 *
 * Locks: none needed, nobody else uses the image.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "check-tables.h"
#include "check-walk.h"
#include "entry.h"
#include "ondisk.h"
#include "table-list.h"

/* More misaligned tables than clusters of the file that are tolerated. */
#define MISALIGNED_EXTRA 1024

int
check_l1_misaligned (struct check *k)
{
  if (k->nr_misaligned++ < k->nr_clusters + MISALIGNED_EXTRA)
    return 0;
  k->res->check_errors++;
  nbdkit_error ("%s: more than %" PRIu64 " L2 tables are not at the start of "
                "a cluster: the image is broken beyond what a check or a "
                "repair can do", k->core->name,
                k->nr_clusters + MISALIGNED_EXTRA);
  return -EIO;
}

/* L1 tables of one kind: active, or of snapshots. */
struct l1_walk {
  struct check *k;
  bool active;
  struct check_tables l1;
  struct table_list l2;         /* that they name */
};

/* One L1 entry, at offset OFF of the file, which counts TIMES times. */
static int
note_l2 (void *opaque, uint64_t off, uint64_t v, uint64_t times)
{
  struct l1_walk *w = opaque;
  struct check *k = w->k;
  const struct geometry *geo = &k->core->geo;
  const struct l1_entry e = { .v = v };
  const uint64_t l2_off = l1_entry_off (e);
  int r;

  check_walk_progress (k, times);
  if (e.v == 0)
    return 0;
  if (e.v & L1E_RESERVED_MASK) {
    k->res->corruptions += times;
    check_walk_problem (k, "L1 table entry at offset 0x%" PRIx64 ": 0x%" PRIx64
                        " has reserved bits set", off, e.v);
  }
  if (geometry_in_cluster (geo, l2_off) != 0) {
    k->res->corruptions += times;
    check_walk_problem (k, "L1 table entry at offset 0x%" PRIx64 ": 0x%" PRIx64
                        " is not the start of a cluster", off, l2_off);
  }
  r = check_walk_add (k, l2_off, geo->cluster_size, times, "L2 table");
  if (r == 0 && l2_off < k->file_len) {
    r = table_list_add (&w->l2, l2_off, times);
    if (r < 0)
      k->res->check_errors++;
  }
  return r;
}

static struct l1_walk
begin (struct check *k, bool active)
{
  return (struct l1_walk) {
    .k = k, .active = active, .l1 = { .k = k, .what = "L1 table" },
  };
}

/* All that the tables noted so far lead to, unless R says that noting them
 * has failed.
 */
static int
walk_noted (struct l1_walk *w, int r)
{
  struct check *k = w->k;
  const struct table_name *t;
  size_t i;

  if (r == 0)
    r = check_tables_each (&w->l1, note_l2, w);
  table_list_settle (&w->l2);
  for (i = 0; r == 0 && i < w->l2.nr; ++i) {
    t = &w->l2.names[i];
    if (geometry_in_cluster (&k->core->geo, t->off) != 0)
      r = check_l1_misaligned (k);
    if (r == 0)
      r = check_walk_l2 (k, t->off, t->times, w->active);
  }
  check_tables_free (&w->l1);
  table_list_free (&w->l2);
  return r;
}

static int
walk_active (struct check *k)
{
  const struct header *h = &k->core->header;
  struct l1_walk w = begin (k, true);
  int r = check_tables_add (&w.l1, h->l1_table_offset, h->l1_size);

  return walk_noted (&w, r);
}

static int
walk_snapshots (struct check *k)
{
  const struct snapshot_table *t = &k->core->snapshots;
  const struct snapshot_entry *s;
  struct l1_walk w = begin (k, false);
  size_t i;
  int r = 0;

  if (k->core->geo.has_data_file && t->nr > 0) {
    k->res->corruptions++;
    check_walk_problem (k, "the image has snapshots, but its data is in an "
                        "external file, which they do not protect");
  }
  for (i = 0; r == 0 && i < t->nr; ++i) {
    s = &t->entries[i];
    if (geometry_in_cluster (&k->core->geo, s->l1_table_offset) != 0 ||
        s->l1_size > MAX_L1_SIZE / 8) {
      k->res->corruptions++;
      check_walk_problem (k, "snapshot %s (%s): position or size of its L1 "
                          "table is out of range", s->id, s->name);
      continue;
    }
    r = check_tables_add (&w.l1, s->l1_table_offset, s->l1_size);
  }
  return walk_noted (&w, r);
}

int
check_l1_walk (struct check *k)
{
  int r = walk_active (k);

  return r == 0 ? walk_snapshots (k) : r;
}
