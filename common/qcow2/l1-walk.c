/* SPDX-License-Identifier: BSD-3-Clause */
/* Everything that an L1 table refers to.
 *
 * Invariant: a table that l1_walk_check accepted and nobody changed gives
 * the same references, in the same order, at each walk; so a walk that
 * failed half way can be taken back by another one over the same part.
 *
 * Locks: LOCK_META, exclusively, for each run of references; not held
 * while a table is read.  Memory: one L2 table, whatever the size of the
 * image.
 *
 * It does not order anything on disk: its callers do, with commit.h.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "l1-walk.h"
#include "ondisk.h"
#include "table-list.h"

/* What is done with NR clusters at HOST_OFF that are referred to: guest
 * data, or one L2 table (TABLE).
 */
typedef int ref_fn (struct core *core, uint64_t host_off, uint64_t nr,
                    bool table, void *opaque);

struct walk {
  struct core *core;
  uint8_t *table;               /* one L2 table */
  ref_fn *fn;
  void *opaque;
  uint64_t run_off, run_nr;     /* references not reported yet */
};

static int
broken (const struct core *core, uint64_t l1_idx, const char *what,
        uint64_t value)
{
  nbdkit_error ("%s: L1 entry %" PRIu64 ": %s 0x%" PRIx64 ": the image must "
                "be repaired first (repair=all)",
                core->name, l1_idx, what, value);
  return -EIO;
}

static int
read_table (struct core *core, uint64_t l1_idx, struct l1_entry e,
            uint8_t *table)
{
  int r;

  if (!l1_entry_valid (&core->geo, e))
    return broken (core, l1_idx, "not a valid entry:", e.v);
  r = backend_pread (core->file, table, core->geo.cluster_size,
                     l1_entry_off (e));
  if (r == -ENODATA)
    return broken (core, l1_idx, "the L2 table is not in the file:",
                   l1_entry_off (e));
  return r;
}

static struct l2_entry
table_entry (const struct geometry *g, const uint8_t *table, uint64_t i)
{
  const uint8_t *p = table + i * g->l2_entry_size;

  return (struct l2_entry) {
    .v = get_be64 (p), .bitmap = g->extended_l2 ? get_be64 (p + 8) : 0,
  };
}

/* The clusters that E refers to; *NR may be 0.  False: E is broken. */
static bool
entry_clusters (const struct geometry *g, struct l2_entry e,
                uint64_t *host_off, uint64_t *nr)
{
  uint64_t end;

  *nr = 0;
  switch (l2_entry_type (g, e, 0)) {
  case ENTRY_BROKEN:
    return false;
  case ENTRY_COMPRESSED:
    end = l2_entry_comp_off (g, e) + l2_entry_comp_len (g, e);
    *host_off = geometry_cluster_start (g, l2_entry_comp_off (g, e));
    *nr = geometry_clusters (g, end - *host_off);
    return true;
  default:
    *host_off = l2_entry_off (e);
    *nr = *host_off && !g->has_data_file ? 1 : 0;
    return true;
  }
}

static int
report_run (struct walk *w)
{
  uint64_t nr = w->run_nr;

  w->run_nr = 0;
  return nr ? w->fn (w->core, w->run_off, nr, false, w->opaque) : 0;
}

/* Report neighbours together. */
static int
add_to_run (struct walk *w, uint64_t host_off, uint64_t nr)
{
  int r;

  if (w->run_nr &&
      w->run_off + (w->run_nr << w->core->geo.cluster_bits) == host_off) {
    w->run_nr += nr;
    return 0;
  }
  r = report_run (w);
  w->run_off = host_off;
  w->run_nr = nr;
  return r;
}

/* The clusters of one L2 table, then the table itself. */
static int
walk_table (struct walk *w, uint64_t l1_idx, struct l1_entry e)
{
  const struct geometry *g = &w->core->geo;
  uint64_t i, host_off = 0, nr;
  struct l2_entry l2;
  int r;

  r = read_table (w->core, l1_idx, e, w->table);
  for (i = 0; r == 0 && i < UINT64_C (1) << g->l2_bits; i++) {
    l2 = table_entry (g, w->table, i);
    if (!entry_clusters (g, l2, &host_off, &nr))
      return broken (w->core, l1_idx, "the L2 table has the broken entry",
                     l2.v);
    if (nr > 0)
      r = add_to_run (w, host_off, nr);
  }
  if (r == 0)
    r = report_run (w);
  if (r == 0)
    r = w->fn (w->core, l1_entry_off (e), 1, true, w->opaque);
  return r;
}

static int
walk (struct core *core, const struct l1_entry *l1, uint64_t nr,
      ref_fn *fn, void *opaque)
{
  struct walk w = { .core = core, .fn = fn, .opaque = opaque };
  uint64_t i;
  int r = 0;

  w.table = malloc (core->geo.cluster_size);
  if (w.table == NULL)
    return -ENOMEM;
  for (i = 0; r == 0 && i < nr; i++) {
    if (l1_entry_valid (&core->geo, l1[i]) && l1_entry_off (l1[i]) == 0)
      continue;
    w.run_nr = 0;
    r = walk_table (&w, i, l1[i]);
    if (r == 0 && core->writable && commit_wanted (&core->commit))
      r = commit_flush (&core->commit);
  }
  free (w.table);
  return r;
}

/* --- check --- */

static int
check_ref (struct core *core, uint64_t host_off, uint64_t nr, bool table,
           void *opaque)
{
  const struct geometry *g = &core->geo;
  const uint64_t *file_end = opaque;
  uint64_t idx = host_off >> g->cluster_bits, end = idx + nr, value, same;
  enum overlap_kind kind;
  int r;

  if (host_off >= *file_end ||
      nr > geometry_clusters (g, *file_end - host_off)) {
    nbdkit_error ("%s: %" PRIu64 " clusters at offset 0x%" PRIx64 " are used "
                  "but not in the file: the image must be repaired first "
                  "(repair=all)", core->name, nr, host_off);
    return -EIO;
  }

  WRITE_SCOPE (&core->meta);

  kind = overlap_find (core->overlap, host_off, nr << g->cluster_bits);
  if (kind != 0 && !(table && kind == OVERLAP_L2)) {
    nbdkit_error ("%s: %" PRIu64 " clusters at offset 0x%" PRIx64 " are used "
                  "for %s, but there is other metadata there (%s): the image "
                  "must be repaired first (repair=all)", core->name, nr,
                  host_off, table ? "an L2 table" : "data",
                  overlap_kind_name (kind));
    return -EIO;
  }
  for (; idx < end; idx += same) {
    r = refcount_run_locked (&core->refcount, idx, end - idx, &value, &same);
    if (r < 0)
      return r;
    if (value == 0) {
      nbdkit_error ("%s: the cluster at offset 0x%" PRIx64 " is used but has "
                    "refcount 0: the image must be repaired first "
                    "(repair=all)", core->name, idx << g->cluster_bits);
      return -EIO;
    }
  }
  return 0;
}

/* A table that is named a million times would be walked, and its references
 * counted, a million times.
 */
static int
check_named_once (struct core *core, const struct l1_entry *l1, uint64_t nr)
{
  struct table_list tables = { .nr = 0 };
  uint64_t i;
  size_t n;
  int r = 0;

  for (i = 0; r == 0 && i < nr; i++)
    if (l1_entry_off (l1[i]) != 0)
      r = table_list_add (&tables, l1_entry_off (l1[i]), 1);
  table_list_settle (&tables);
  for (n = 0; r == 0 && n < tables.nr; n++) {
    if (tables.names[n].times == 1)
      continue;
    nbdkit_error ("%s: the L2 table at offset 0x%" PRIx64 " is named by "
                  "%" PRIu64 " entries of an L1 table: such an image can be "
                  "read and written, but not changed as a whole; copy it "
                  "first (qemu-img convert)", core->name,
                  tables.names[n].off, tables.names[n].times);
    r = -EIO;
  }
  table_list_free (&tables);
  return r;
}

int
l1_walk_check (struct core *core, const struct l1_entry *l1, uint64_t nr)
{
  int64_t size = backend_size (core->file);
  uint64_t file_end;
  int r;

  if (size < 0)
    return size;
  file_end = size;
  r = check_named_once (core, l1, nr);
  return r == 0 ? walk (core, l1, nr, check_ref, &file_end) : r;
}

/* --- add --- */

struct adding {
  uint64_t done;                /* calls that succeeded */
  uint64_t undo;                /* calls to take back */
};

static int
add_ref (struct core *core, uint64_t host_off, uint64_t nr, bool table,
         void *opaque)
{
  struct adding *a = opaque;
  int r;

  (void) table;
  {
    WRITE_SCOPE (&core->meta);
    r = refcount_add_locked (&core->refcount,
                             host_off >> core->geo.cluster_bits, nr, 1);
  }
  if (r == 0)
    a->done++;
  else if (r == -ERANGE)
    nbdkit_error ("%s: the cluster at offset 0x%" PRIx64 " cannot have one "
                  "more reference: the refcounts of this image have %u bits",
                  core->name, host_off, 1U << core->geo.refcount_order);
  return r;
}

static int
take_back_ref (struct core *core, uint64_t host_off, uint64_t nr,
               bool table, void *opaque)
{
  struct adding *a = opaque;

  (void) table;
  if (a->undo == 0)
    return -ECANCELED;
  a->undo--;

  WRITE_SCOPE (&core->meta);
  return refcount_add_locked (&core->refcount,
                              host_off >> core->geo.cluster_bits, nr, -1);
}

int
l1_walk_add (struct core *core, const struct l1_entry *l1, uint64_t nr)
{
  struct adding a = { .done = 0 };
  int r, r2;

  r = walk (core, l1, nr, add_ref, &a);
  if (r == 0)
    return 0;
  a.undo = a.done;
  r2 = walk (core, l1, nr, take_back_ref, &a);
  if (r2 < 0 && r2 != -ECANCELED)
    nbdkit_error ("%s: refcounts could not be taken back: space is leaked "
                  "until a check repairs it (repair=leaks)", core->name);
  return r == -EAGAIN ? -EIO : r;
}

/* --- free --- */

static int
free_ref (struct core *core, uint64_t host_off, uint64_t nr, bool table,
          void *opaque)
{
  (void) opaque;

  WRITE_SCOPE (&core->meta);

  /* A table that was shared with the active disk when that was opened, or
   * copied since, is in the registry.
   */
  if (table)
    overlap_remove_locked (core->overlap, host_off, core->geo.cluster_size);
  mcache_forget_locked (core->mcache, host_off, nr << core->geo.cluster_bits);
  alloc_defer_free_locked (&core->alloc, host_off, nr);
  return 0;
}

int
l1_walk_free (struct core *core, const struct l1_entry *l1, uint64_t nr)
{
  return walk (core, l1, nr, free_ref, NULL);
}

/* --- flags --- */

/* Set or clear the flag of the entry at P: *CHANGED if it was different. */
static int
put_flag (struct core *core, uint64_t host_off, uint64_t *v, bool clear,
          bool *changed)
{
  uint64_t value = 0, want;
  int r;

  if (!clear) {
    r = refcount_get_locked (&core->refcount,
                             host_off >> core->geo.cluster_bits, &value);
    if (r < 0)
      return r;
  }
  want = value == 1 ? ENTRY_COPIED : 0;
  if ((*v & ENTRY_COPIED) != want)
    *changed = true;
  *v = (*v & ~ENTRY_COPIED) | want;
  return 0;
}

static int
table_flags (struct core *core, uint64_t l2_off, uint8_t *table, bool clear)
{
  const struct geometry *g = &core->geo;
  bool changed = false;
  uint64_t i;
  int r = 0;

  {
    WRITE_SCOPE (&core->meta);

    for (i = 0; r == 0 && i < UINT64_C (1) << g->l2_bits; i++) {
      struct l2_entry e = table_entry (g, table, i);

      if (l2_entry_compressed (e) || l2_entry_off (e) == 0)
        continue;
      r = put_flag (core, l2_entry_off (e), &e.v, clear, &changed);
      put_be64 (table + i * g->l2_entry_size, e.v);
    }
    mcache_forget_locked (core->mcache, l2_off, g->cluster_size);
  }
  if (r == 0 && changed)
    r = backend_pwrite (core->file, table, g->cluster_size, l2_off, 0);
  return r;
}

int
l1_walk_flags (struct core *core, struct l1_entry *l1, uint64_t nr,
               bool clear)
{
  uint8_t *table;
  bool changed;
  uint64_t i;
  int r = 0;

  table = malloc (core->geo.cluster_size);
  if (table == NULL)
    return -ENOMEM;
  for (i = 0; r == 0 && i < nr; i++) {
    if (l1_entry_off (l1[i]) == 0)
      continue;
    r = read_table (core, i, l1[i], table);
    if (r == 0)
      r = table_flags (core, l1_entry_off (l1[i]), table, clear);
    if (r == 0) {
      WRITE_SCOPE (&core->meta);
      r = put_flag (core, l1_entry_off (l1[i]), &l1[i].v, clear, &changed);
    }
  }
  free (table);
  return r;
}

/* --- the L1 table itself --- */

int
l1_walk_read (struct core *core, uint64_t host_off, uint64_t nr,
              struct l1_entry **l1)
{
  uint8_t *raw;
  uint64_t i;
  int r = 0;

  *l1 = malloc (nr * sizeof **l1 + 1);
  if (*l1 == NULL)
    return -ENOMEM;
  raw = (uint8_t *) *l1;
  if (nr > 0)
    r = backend_pread (core->file, raw, nr * 8, host_off);
  if (r == -ENODATA) {
    nbdkit_error ("%s: the L1 table at offset 0x%" PRIx64 " with %" PRIu64
                  " entries is not in the file: it is truncated",
                  core->name, host_off, nr);
    r = -EIO;
  }
  if (r < 0) {
    free (*l1);
    *l1 = NULL;
    return r;
  }
  for (i = 0; i < nr; i++)
    (*l1)[i].v = get_be64 (raw + i * 8);
  return 0;
}

int
l1_walk_write (struct core *core, uint64_t host_off,
               const struct l1_entry *l1, uint64_t nr)
{
  uint64_t bytes = geometry_cluster_end (&core->geo, nr * 8), i;
  uint8_t *buf;
  int r;

  if (nr == 0)
    return 0;
  buf = calloc (1, bytes);
  if (buf == NULL)
    return -ENOMEM;
  for (i = 0; i < nr; i++)
    put_be64 (buf + i * 8, l1[i].v);
  r = backend_pwrite (core->file, buf, bytes, host_off, 0);
  free (buf);
  return r;
}
