/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit test of refcount.c and refcount-grow.c: random operations against an
 * array, for all widths; what was committed is what a new open finds.
 */

#include <config.h>

#include <stdarg.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "refcount.h"
#include "test-image.h"
#include "test-mem.h"

static struct test_image t;
static uint64_t *model;
static uint64_t nr_model;
static uint64_t blocks_known;   /* entries of the table in the model */
static unsigned errors;

void
nbdkit_error (const char *fmt, ...)
{
  (void) fmt;
  errors++;
}

static void
test_entries (void)
{
  uint8_t p[512];
  uint64_t values[4096], seed = 5, max;
  unsigned order, i, n, k;

  for (order = 0; order <= 6; ++order) {
    n = sizeof p * 8 >> order;
    max = UINT64_MAX >> (64 - (1U << order));
    memset (p, 0, sizeof p);
    memset (values, 0, sizeof values);
    for (k = 0; k < 20000; ++k) {
      i = test_below (&seed, n);
      values[i] = test_random (&seed) & max;
      refcount_entry_set (p, i, order, values[i]);
      i = test_below (&seed, n);
      CHECK (refcount_entry_get (p, i, order) == values[i]);
    }
  }
  /* Bit 0 is the least significant one; wider ones are big-endian. */
  memset (p, 0, sizeof p);
  refcount_entry_set (p, 9, 0, 1);
  CHECK (p[1] == 2);
  refcount_entry_set (p, 1, 2, 5);
  CHECK (p[0] == 0x50);
  refcount_entry_set (p, 1, 4, 0x1234);
  CHECK (p[2] == 0x12 && p[3] == 0x34);
}

static void
grow_model (uint64_t nr)
{
  if (nr <= nr_model)
    return;
  model = realloc (model, nr * sizeof *model);
  CHECK (model != NULL);
  memset (model + nr_model, 0, (nr - nr_model) * sizeof *model);
  nr_model = nr;
}

/* Blocks that were made have a reference. */
static void
find_new_blocks (void)
{
  static uint64_t seen[1 << 20];
  uint64_t i, c;

  if (blocks_known == 0)
    memset (seen, 0, sizeof seen);
  for (i = 0; i < t.rc.nr_entries; ++i) {
    if (t.rc.table[i] == seen[i])
      continue;
    CHECK (seen[i] == 0);
    seen[i] = t.rc.table[i];
    c = seen[i] >> t.geo.cluster_bits;
    grow_model (c + 1);
    if (blocks_known > 0) {
      CHECK (model[c] == 0);
      model[c] = 1;
    }
    CHECK (overlap_find (t.overlap, seen[i], 1) == OVERLAP_REFBLOCK);
  }
  blocks_known = i;
}

static void
grow (uint64_t need_idx)
{
  uint64_t off, clusters, i;

  test_image_grow_locked (&t, need_idx, &off, &clusters);
  find_new_blocks ();
  for (i = 0; i < t.header.refcount_table_clusters; ++i) {
    grow_model ((t.rc.table_off >> t.geo.cluster_bits) + i + 1);
    CHECK (model[(t.rc.table_off >> t.geo.cluster_bits) + i] == 0);
    model[(t.rc.table_off >> t.geo.cluster_bits) + i] = 1;
  }
  CHECK_OK (refcount_add_locked (&t.rc, off >> t.geo.cluster_bits,
                                 clusters, -1));
  for (i = 0; i < clusters; ++i) {
    CHECK (model[(off >> t.geo.cluster_bits) + i] == 1);
    model[(off >> t.geo.cluster_bits) + i] = 0;
  }
}

static bool
may_add (uint64_t idx, uint64_t nr, int delta, int *expected)
{
  uint64_t i;

  *expected = 0;
  for (i = idx; i < idx + nr; ++i) {
    if (delta < 0 && model[i] == 0)
      *expected = -EIO;
    if (delta > 0 && model[i] == t.geo.refcount_max)
      *expected = -ERANGE;
    if (*expected)
      return false;
  }
  return true;
}

static void
random_add (uint64_t *seed, uint64_t limit)
{
  uint64_t nr = 1 + test_below (seed, 150), i;
  uint64_t idx = test_below (seed, limit - nr);
  int delta = test_below (seed, 5) < 3 ? 1 : -1;
  int expected, r;
  bool ok;

  if (test_below (seed, 2))
    nr = 1;
  for (;;) {
    ok = may_add (idx, nr, delta, &expected);
    r = refcount_add_locked (&t.rc, idx, nr, delta);
    find_new_blocks ();
    if (r != -EAGAIN)
      break;
    CHECK (delta > 0);
    grow (t.rc.nr_entries << t.geo.refblock_bits);
  }
  CHECK (r == expected);
  for (i = 0; ok && i < nr; ++i)
    model[idx + i] += delta;
}

static void
compare (uint64_t idx)
{
  uint64_t value, nr, i, found;
  uint64_t max = 500;

  CHECK_OK (refcount_get_locked (&t.rc, idx, &value));
  CHECK (value == model[idx]);
  if (max > nr_model - idx)
    max = nr_model - idx;
  CHECK_OK (refcount_run_locked (&t.rc, idx, max, &value, &nr));
  CHECK (nr >= 1 && nr <= max);
  for (i = 0; i < nr; ++i)
    CHECK (model[idx + i] == value);

  CHECK_OK (refcount_find_free_locked (&t.rc, idx, max, &found, &nr));
  for (i = idx; i < found && i < nr_model; ++i)
    CHECK (model[i] != 0);
  for (i = found; i < found + nr && i < nr_model; ++i)
    CHECK (model[i] == 0);
  CHECK (nr == max || found + nr >= nr_model || model[found + nr] != 0);
}

static void
compare_all (void)
{
  uint64_t i, value, end = 0;

  for (i = 0; i < nr_model; ++i) {
    CHECK_OK (refcount_get_locked (&t.rc, i, &value));
    CHECK (value == model[i]);
    if (value > 0)
      end = i + 1;
  }
  CHECK_OK (refcount_end_locked (&t.rc, &value));
  CHECK (value == end);
}

static void
test_model (unsigned cluster_bits, unsigned order, uint64_t limit)
{
  uint64_t seed = 100 + cluster_bits * 8 + order, i;

  test_image_make (&t, cluster_bits, order);
  nr_model = blocks_known = 0;
  grow_model (limit + 200);
  model[0] = model[1] = model[2] = 1;
  find_new_blocks ();

  WRITE_SCOPE (&t.meta);
  for (i = 0; i < 4000; ++i) {
    random_add (&seed, limit);
    compare (test_below (&seed, limit));
    if (mcache_pressure (t.mcache))
      test_image_commit_locked (&t);
    if (i % 1000 == 999) {
      test_image_commit_locked (&t);
      test_image_close (&t);
      test_image_open (&t);
      compare_all ();
    }
  }
  compare_all ();
}

/* Many tables in a row. */
static void
test_growth (unsigned cluster_bits, unsigned order)
{
  test_image_make (&t, cluster_bits, order);
  nr_model = blocks_known = 0;
  grow_model (3);
  model[0] = model[1] = model[2] = 1;
  find_new_blocks ();

  WRITE_SCOPE (&t.meta);
  while (refcount_table_span (&t.rc) < 1 << 20)
    grow (refcount_table_span (&t.rc));
  test_image_commit_locked (&t);
  test_image_close (&t);
  test_image_open (&t);
  compare_all ();
}

static void
test_growth_limits (void)
{
  struct refcount_growth g;
  uint64_t off, clusters;

  test_image_make (&t, 9, 6);
  WRITE_SCOPE (&t.meta);
  errors = 0;
  CHECK (refcount_prepare_grow_locked (&t.rc, UINT64_C (1) << 26, &g) ==
         -EFBIG);
  CHECK (errors == 1);
  test_image_grow_locked (&t, (UINT64_C (1) << 26) - 1, &off, &clusters);
  CHECK (t.rc.nr_entries == MAX_REFTABLE_SIZE / 8);
  CHECK (refcount_prepare_grow_locked (&t.rc, refcount_table_span (&t.rc),
                                       &g) == -EFBIG);

  /* A failed write leaves everything as it was. */
  test_image_close (&t);
  backend_close (&t.mem.b);
  test_image_make (&t, 9, 6);
  t.mem.fail_write = -EIO;
  CHECK (refcount_prepare_grow_locked (&t.rc, 5000, &g) == -EIO);
  CHECK (overlap_end (t.overlap) == 3 * 512);
  t.mem.max_len = 100000;
  CHECK (refcount_prepare_grow_locked (&t.rc, 1 << 20, &g) == -ENOSPC);
  t.mem.b.fixed_size = true;
  CHECK (refcount_prepare_grow_locked (&t.rc, 1 << 20, &g) == -ENOSPC);
}

static void
test_broken (void)
{
  uint64_t value, found, nr;

  test_image_make (&t, 9, 4);           /* 256 clusters a block */
  WRITE_SCOPE (&t.meta);
  CHECK_OK (refcount_add_locked (&t.rc, 3, 253, 1));
  CHECK_OK (refcount_add_locked (&t.rc, 513, 1, 1));
  t.rc.table[1] = 512 * 7 + 1;          /* unaligned */
  t.rc.table[3] = 512 * 1000000;        /* beyond the end of the file */
  errors = 0;
  CHECK (refcount_get_locked (&t.rc, 256, &value) == -EIO);
  CHECK (refcount_get_locked (&t.rc, 300, &value) == -EIO);
  CHECK (errors == 1);
  CHECK (refcount_add_locked (&t.rc, 255, 2, 1) == -EIO);
  CHECK_OK (refcount_get_locked (&t.rc, 255, &value));
  CHECK (value == 1);                   /* all or nothing */
  CHECK (errors == 1);
  CHECK_OK (refcount_find_free_locked (&t.rc, 0, 10, &found, &nr));
  CHECK (found == 514 && nr == 10);     /* 512 is the new block */
  CHECK_OK (refcount_find_free_locked (&t.rc, 760, 100, &found, &nr));
  CHECK (found == 760 && nr == 8);
  CHECK_OK (refcount_find_free_locked (&t.rc, 768, 100, &found, &nr));
  CHECK (found == 1024 && nr == 100);
  CHECK (errors == 2);
  CHECK (refcount_free_run_locked (&t.rc, 800, 5) == 0);
  CHECK (refcount_find_free_locked (&t.rc, refcount_limit (&t.rc), 1,
                                    &found, &nr) == -EFBIG);
  CHECK (refcount_add_locked (&t.rc, refcount_limit (&t.rc) - 1, 2, 1) ==
         -ENOSPC);

  /* A lying table: a new block would lie on metadata. */
  CHECK_OK (overlap_add_locked (t.overlap, 1024 * 512, 1, OVERLAP_L1));
  CHECK (refcount_add_locked (&t.rc, 1030, 1, 1) == -EUCLEAN);
  CHECK (t.rc.table[4] == 0);
}

/* The maker wants the whole range of the block, and of others. */
static void
test_whole_range (void)
{
  uint64_t i, value;

  test_image_make (&t, 9, 6);           /* 64 clusters a block */
  WRITE_SCOPE (&t.meta);
  CHECK_OK (refcount_add_locked (&t.rc, 64, 64 * 5, 1));
  for (i = 64; i < 64 * 6; ++i) {
    CHECK_OK (refcount_get_locked (&t.rc, i, &value));
    CHECK (value == 1);
  }
  for (i = 1; i < 6; ++i)
    CHECK (t.rc.table[i] >= 64 * 6 * 512);
  for (i = 1; i < 7; ++i) {
    CHECK_OK (refcount_get_locked (&t.rc, t.rc.table[i] / 512, &value));
    CHECK (value == 1);
  }
}

int
main (void)
{
  unsigned order;

  test_entries ();
  for (order = 0; order <= 6; ++order) {
    test_model (9, order, 20000);
    test_image_free (&t);
    test_model (12, order, 9000);
    test_image_free (&t);
    test_model (16, order, 5000);
    test_image_free (&t);
    test_growth (9, order);
    test_image_free (&t);
    test_growth (10, order);
    test_image_free (&t);
  }
  test_growth_limits ();
  test_image_free (&t);
  test_broken ();
  test_image_free (&t);
  test_whole_range ();
  test_image_free (&t);
  free (model);
  return 0;
}
