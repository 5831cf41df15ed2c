/* SPDX-License-Identifier: BSD-3-Clause */
/* Is one host cluster used for two things in the same layer?
 *
 * A check finds nothing wrong with that if the refcount says so, neither
 * ours nor QEMU's.  But when one of the two is written, the flag that says
 * "this is the only reference" stays wrong at the other, and where one of
 * them is metadata the write is refused.  So such images are not held to
 * staying right.
 */

#include <config.h>

#include <string.h>

#include "fuzz-disk.h"
#include "ondisk.h"

#define MAX_USES 20000

struct uses {
  const struct core *core;
  bool full;
  size_t nr;
  uint64_t clusters[MAX_USES];  /* number << 1 | compressed */
};

static void
add (struct uses *u, uint64_t off, uint64_t len, bool compressed)
{
  uint64_t c = off >> u->core->geo.cluster_bits;
  uint64_t last = (off + len - 1) >> u->core->geo.cluster_bits;

  for (; len > 0 && c <= last && !u->full; ++c) {
    u->full = u->nr == MAX_USES;
    if (!u->full)
      u->clusters[u->nr++] = c << 1 | compressed;
  }
}

static void
add_l2 (struct uses *u, uint64_t off)
{
  const struct geometry *geo = &u->core->geo;
  uint8_t *l2 = malloc (geo->cluster_size);
  uint64_t i, v;

  add (u, off, geo->cluster_size, false);
  if (l2 == NULL || backend_pread_padded (u->core->file, l2,
                                          geo->cluster_size, off) < 0)
    u->full = true;
  for (i = 0; i < geo->cluster_size && !u->full; i += geo->l2_entry_size) {
    v = get_be64 (l2 + i);
    if (v & L2E_COMPRESSED)
      add (u, v & geo->coffset_mask, 512 * (1 + ((v >> geo->csize_shift) &
                                                 geo->csize_mask)), true);
    else if ((v & L2E_OFFSET_MASK) && !geo->has_data_file)
      add (u, v & L2E_OFFSET_MASK, geo->cluster_size, false);
  }
  free (l2);
}

static void
add_l1 (struct uses *u, uint64_t off, uint64_t nr)
{
  uint8_t buf[4096];
  uint64_t i, j, n, v;

  add (u, off, nr * 8, false);
  for (i = 0; i < nr && !u->full; i += n) {
    n = nr - i < sizeof buf / 8 ? nr - i : sizeof buf / 8;
    if (backend_pread_padded (u->core->file, buf, n * 8, off + i * 8) < 0)
      u->full = true;
    for (j = 0; j < n && !u->full; ++j) {
      v = get_be64 (buf + j * 8) & L1E_OFFSET_MASK;
      if (v)
        add_l2 (u, v);
    }
  }
}

static void
add_refcounts (struct uses *u)
{
  const struct refcount *rc = &u->core->refcount;
  uint64_t i;

  add (u, rc->table_off, rc->nr_entries * 8, false);
  for (i = 0; i < rc->nr_entries; ++i)
    if (rc->table[i])
      add (u, rc->table[i], u->core->geo.cluster_size, false);
}

static int
compare (const void *a, const void *b)
{
  const uint64_t *x = a, *y = b;

  return *x < *y ? -1 : *x > *y;
}

static bool
has_twice (struct uses *u)
{
  size_t i;

  qsort (u->clusters, u->nr, sizeof u->clusters[0], compare);
  for (i = 1; i < u->nr; ++i)
    if (u->clusters[i] >> 1 == u->clusters[i-1] >> 1 &&
        !(u->clusters[i] & u->clusters[i-1] & 1))
      return true;
  return u->full;
}

bool
fuzz_disk_is_aliased (const struct core *core)
{
  const struct header *h = &core->header;
  const struct snapshot_table *t = &core->snapshots;
  static struct uses u;
  bool twice = false;
  size_t i;

  u = (struct uses) { .core = core };
  add (&u, 0, core->geo.cluster_size, false);
  add_refcounts (&u);
  if (h->nb_snapshots)
    add (&u, h->snapshots_offset, t->bytes, false);
  if (h->has_crypto)
    add (&u, h->crypto_offset, h->crypto_length, false);
  for (i = 0; i < t->nr; ++i)
    add (&u, t->entries[i].l1_table_offset,
         t->entries[i].l1_size * UINT64_C (8), false);
  add_l1 (&u, h->l1_table_offset, h->l1_size);
  twice = has_twice (&u);
  for (i = 0; i < t->nr && !twice; ++i) {
    u.nr = 0;
    add_l1 (&u, t->entries[i].l1_table_offset, t->entries[i].l1_size);
    twice = has_twice (&u);
  }
  return twice;
}
