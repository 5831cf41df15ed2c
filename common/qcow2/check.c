/* SPDX-License-Identifier: BSD-3-Clause */
/* Compare what an image says about its clusters with what its references
 * (check-walk.c) say.
 *
 * Invariant: nothing is changed, unless check_copied is told to fix.
 * Locks: none needed, nobody else uses the image, and refcount blocks are
 * read through a cache of the check's own.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "check-walk.h"
#include "check.h"
#include "entry.h"
#include "ondisk.h"
#include "table-list.h"

/* ------------------------------------------------------------------
 * Refcounts.
 */

/* A run of clusters that differ in the same way. */
struct differ {
  check_differ_fn *fn;
  void *opaque;
  uint64_t idx, nr, actual, expected;
};

static int
report_run (struct check *k, struct differ *d)
{
  int r = 0;

  if (d->nr == 0)
    return 0;
  if (d->fn)
    r = d->fn (d->opaque, d->idx, d->nr, d->actual, d->expected);
  if (r < 0)
    return r;
  if (r == 0) {
    if (d->actual < d->expected)
      k->res->corruptions += d->nr;
    else
      k->res->leaks += d->nr;
    check_walk_problem (k, "%s: %" PRIu64 " clusters from %" PRIu64 " on: "
                        "refcount %" PRIu64 ", references %" PRIu64,
                        d->actual < d->expected ? "corrupt" : "leaked",
                        d->nr, d->idx, d->actual, d->expected);
  }
  d->nr = 0;
  return 0;
}

static int
add_to_run (struct check *k, struct differ *d, uint64_t idx,
            uint64_t actual, uint64_t expected)
{
  int r;

  if (d->nr > 0 && d->idx + d->nr == idx && d->actual == actual &&
      d->expected == expected) {
    d->nr++;
    return 0;
  }
  r = report_run (k, d);
  d->idx = idx;
  d->nr = 1;
  d->actual = actual;
  d->expected = expected;
  return r;
}

static void
in_use (struct check *k, uint64_t idx)
{
  k->res->image_end_off = (idx + 1) << k->core->geo.cluster_bits;
}

/* Clusters [IDX, END), all with refcount 0. */
static int
compare_unused (struct check *k, struct differ *d, uint64_t idx,
                uint64_t end)
{
  int r = 0;

  while (r == 0 && (idx = check_count_next (k->counts, idx)) < end) {
    in_use (k, idx);
    r = add_to_run (k, d, idx, 0, check_count_get (k->counts, idx));
    ++idx;
  }
  return r;
}

/* Clusters [IDX, END), which have a block that can be read. */
static int
compare_block (struct check *k, struct differ *d, uint64_t idx,
               uint64_t end)
{
  uint64_t actual, expected, nr;
  int r;

  for (; idx < end; idx += nr) {
    r = refcount_run_locked (&k->refcount, idx, end - idx, &actual, &nr);
    if (r < 0) {
      k->res->check_errors += end - idx;
      return 0;
    }
    if (actual == 0) {
      r = compare_unused (k, d, idx, idx + nr);
      if (r < 0)
        return r;
      continue;
    }
    for (; nr > 0; ++idx, --nr) {
      expected = check_count_get (k->counts, idx);
      if (expected != actual) {
        r = add_to_run (k, d, idx, actual, expected);
        if (r < 0)
          return r;
      }
    }
    in_use (k, idx - 1);
  }
  return 0;
}

int
check_compare (struct check *k, check_differ_fn *fn, void *opaque)
{
  const uint64_t span = refcount_block_span (&k->refcount);
  struct differ d = { .fn = fn, .opaque = opaque };
  uint64_t idx, end, b;
  int r = 0;

  /* The first cluster is in use whatever the image says. */
  in_use (k, 0);
  for (idx = 0, b = 0; r == 0 && idx < k->nr_clusters; idx = end, ++b) {
    end = k->nr_clusters;
    if (b < k->refcount.nr_entries && end - idx > span)
      end = idx + span;
    if (b >= k->refcount.nr_entries || k->refcount.table[b] == 0) {
      if (check_count_next (k->counts, idx) < end)
        k->needs_rebuild = true;
      r = compare_unused (k, &d, idx, end);
    }
    else if (k->broken_blocks[b / 8] & 1U << b % 8) {
      k->res->check_errors += end - idx;
      check_walk_problem (k, "refcount block %" PRIu64 " cannot be read",
                          b);
    }
    else
      r = compare_block (k, &d, idx, end);
  }
  if (r == 0)
    r = report_run (k, &d);
  if (r < 0)
    k->res->check_errors++;
  return r;
}

/* ------------------------------------------------------------------
 * COPIED flags.
 */

/* Is the COPIED flag of ENTRY right, if it refers to OFF?  True also where
 * nobody knows.
 */
static bool
copied_is_right (struct check *k, uint64_t entry, uint64_t off,
                 uint64_t *value)
{
  const uint64_t c = off >> k->core->geo.cluster_bits;
  const uint64_t b = c >> k->core->geo.refblock_bits;

  if (b < k->refcount.nr_entries &&
      (k->broken_blocks[b / 8] & 1U << b % 8))
    return true;
  if (refcount_get_locked (&k->refcount, c, value) < 0)
    return true;
  return (*value == 1) == ((entry & ENTRY_COPIED) != 0);
}

/* TIMES: so often the table is named. */
static void
wrong_copied (struct check *k, uint64_t table_off, uint64_t i,
              uint64_t entry, uint64_t value, uint64_t times, bool fix)
{
  check_walk_problem (k, "table at offset 0x%" PRIx64 ", entry %" PRIu64
                      ": 0x%" PRIx64 " has a wrong COPIED flag "
                      "(refcount %" PRIu64 ")", table_off, i, entry, value);
  if (fix)
    k->res->corruptions_fixed++;
  else
    k->res->corruptions += times;
}

static int
copied_of_l2 (struct check *k, uint64_t off, uint64_t times, bool fix)
{
  const struct geometry *geo = &k->core->geo;
  const uint64_t nr = UINT64_C (1) << geo->l2_bits;
  uint64_t i, v, value, lo = nr, hi = 0;
  enum check_kind kind;
  bool right;
  int r;

  if (off >= k->file_len)       /* all zero */
    return 0;
  if (geometry_in_cluster (geo, off) != 0) {
    r = check_l1_misaligned (k);
    if (r < 0)
      return r;
  }
  r = check_walk_read (k, k->l2, geo->cluster_size, off, "L2 table");
  if (r < 0)
    return r;
  for (i = 0; i < nr; ++i) {
    v = get_be64 (k->l2 + i * geo->l2_entry_size);
    kind = check_walk_kind (geo, v);
    if (kind != CHECK_DATA && kind != CHECK_ZERO_ALLOC)
      continue;
    value = 1;                  /* of clusters in an external file */
    right = geo->has_data_file ? (v & ENTRY_COPIED) != 0 :
      copied_is_right (k, v, v & L2E_OFFSET_MASK, &value);
    if (right)
      continue;
    wrong_copied (k, off, i, v, value, times, fix);
    put_be64 (k->l2 + i * geo->l2_entry_size, v ^ ENTRY_COPIED);
    if (lo > i)
      lo = i;
    hi = i + 1;
  }
  if (fix && lo < hi)
    r = backend_pwrite (k->core->file, k->l2 + lo * geo->l2_entry_size,
                        (hi - lo) * geo->l2_entry_size,
                        off + lo * geo->l2_entry_size, 0);
  return r;
}

/* The flags of the table; notes in L2 what it leads to. */
static int
copied_of_l1 (struct check *k, uint8_t *l1, struct table_list *l2, bool fix)
{
  const struct header *h = &k->core->header;
  uint64_t i, v, off, value, lo = h->l1_size, hi = 0;
  int r = 0;

  for (i = 0; r == 0 && i < h->l1_size; ++i) {
    check_walk_progress (k, 1);
    v = get_be64 (l1 + i * 8);
    off = v & L1E_OFFSET_MASK;
    if (off == 0)
      continue;
    if (!copied_is_right (k, v, off, &value)) {
      wrong_copied (k, h->l1_table_offset, i, v, value, 1, fix);
      put_be64 (l1 + i * 8, v ^ ENTRY_COPIED);
      if (lo > i)
        lo = i;
      hi = i + 1;
    }
    r = table_list_add (l2, off, 1);
  }
  if (r == 0 && fix && lo < hi)
    r = backend_pwrite (k->core->file, l1 + lo * 8, (hi - lo) * 8,
                        h->l1_table_offset + lo * 8, 0);
  return r;
}

int
check_copied (struct check *k, bool fix)
{
  const struct header *h = &k->core->header;
  const uint64_t bytes = h->l1_size * UINT64_C (8);
  uint8_t *l1 = malloc (bytes + 1);
  struct table_list l2 = { .nr = 0 };
  size_t i;
  int r;

  if (l1 == NULL) {
    nbdkit_error ("%s: out of memory for the check", k->core->name);
    k->res->check_errors++;
    return -ENOMEM;
  }
  k->nr_misaligned = 0;
  r = check_walk_read (k, l1, bytes, h->l1_table_offset, "L1 table");
  if (r == 0)
    r = copied_of_l1 (k, l1, &l2, fix);
  table_list_settle (&l2);
  for (i = 0; r == 0 && i < l2.nr; ++i)
    r = copied_of_l2 (k, l2.names[i].off, l2.names[i].times, fix);
  table_list_free (&l2);
  free (l1);
  return r;
}

/* ------------------------------------------------------------------ */

int
check_run (struct core *core, const struct check_options *opts,
           struct check_result *res)
{
  struct check k;
  int r;

  r = check_walk_open (&k, core, opts, res);
  if (r < 0)
    return r;
  r = check_walk_references (&k);
  if (r == 0)
    r = check_compare (&k, NULL, NULL);
  if (r == 0)
    r = check_copied (&k, false);
  if (opts && opts->progress)
    opts->progress (opts->opaque, k.work_total, k.work_total);
  check_walk_close (&k);
  return r;
}

static double
percent (uint64_t part, uint64_t whole)
{
  return whole ? 100.0 * part / whole : 0;
}

void
check_describe (const struct check_result *res, char *buf, size_t len)
{
  uint64_t alloc = res->allocated_clusters;
  int n = 0;

  if (res->corruptions_fixed || res->leaks_fixed)
    n = snprintf (buf, len, "repaired: %" PRIu64 " errors, %" PRIu64
                  " leaked clusters\n", res->corruptions_fixed,
                  res->leaks_fixed);
  if (n < 0 || (size_t) n >= len)
    return;
  snprintf (buf + n, len - n,
            "%s: %" PRIu64 " errors, %" PRIu64 " leaked clusters, "
            "%" PRIu64 " internal errors of the check\n"
            "%" PRIu64 "/%" PRIu64 " = %.2f%% allocated, "
            "%.2f%% fragmented, %.2f%% compressed clusters\n"
            "image end offset: %" PRIu64 "\n",
            res->corruptions ? "corrupt" : res->check_errors ?
            "not fully checked" : res->leaks ? "leaks" : "clean",
            res->corruptions, res->leaks, res->check_errors,
            alloc, res->total_clusters,
            percent (alloc, res->total_clusters),
            percent (res->fragmented_clusters, alloc),
            percent (res->compressed_clusters, alloc),
            res->image_end_off);
}
