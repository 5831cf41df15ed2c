/* SPDX-License-Identifier: BSD-3-Clause */
/* Geometry and entries: derived values for every cluster size, and what
 * each kind of L2 entry means.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <stdint.h>

#include "entry.h"
#include "geometry.h"

static struct geometry
make (unsigned version, unsigned cluster_bits, unsigned order,
      uint64_t incompatible, uint64_t autoclear)
{
  struct header h = {
    .version = version, .cluster_bits = cluster_bits,
    .refcount_order = order, .incompatible = incompatible,
    .autoclear = autoclear,
  };
  struct geometry g;

  geometry_init (&g, &h);
  return g;
}

static void
test_values (void)
{
  unsigned bits, order;

  for (bits = MIN_CLUSTER_BITS; bits <= MAX_CLUSTER_BITS; bits++)
    for (order = 0; order <= MAX_REFCOUNT_ORDER; order++) {
      struct geometry g = make (3, bits, order, 0, 0);

      assert (g.cluster_size == UINT64_C (1) << bits);
      assert (g.subcluster_size == g.cluster_size);
      assert (8U << g.l2_bits == g.cluster_size);
      assert (g.slice_bits <= 12 && g.slice_bits <= bits);
      assert (((UINT64_C (1) << g.refblock_bits) << order) ==
              g.cluster_size * 8);
      assert (g.refcount_max == (order == 6 ? UINT64_MAX :
                                 (UINT64_C (1) << (1U << order)) - 1));
      /* The two parts of a compressed descriptor fill bits 0 to 61. */
      assert ((g.coffset_mask | g.csize_mask << g.csize_shift) ==
              (UINT64_C (1) << 62) - 1);
      assert ((g.coffset_mask & g.csize_mask << g.csize_shift) == 0);
      assert (g.has_zero_flag && !g.extended_l2 && !g.has_data_file);
    }
}

static void
test_features (void)
{
  struct geometry g = make (2, 16, 4, 0, 0);

  assert (g.version == 2 && !g.has_zero_flag);
  g = make (3, 14, 4, INCOMPAT_EXTENDED_L2, 0);
  assert (g.extended_l2 && g.subcluster_size == 512);
  assert (g.l2_entry_size == 16 && 16U << g.l2_bits == g.cluster_size);
  g = make (3, 16, 4, INCOMPAT_DATA_FILE, AUTOCLEAR_DATA_FILE_RAW);
  assert (g.has_data_file && g.data_file_raw);
  g = make (3, 16, 4, 0, AUTOCLEAR_DATA_FILE_RAW);
  assert (!g.has_data_file && !g.data_file_raw);
}

static void
test_arithmetic (void)
{
  struct geometry g = make (3, 9, 4, 0, 0);

  /* A table of 512 bytes has 64 entries and maps 32k. */
  assert (geometry_l1_entries (&g, 0) == 0);
  assert (geometry_l1_entries (&g, 1) == 1);
  assert (geometry_l1_entries (&g, 32768) == 1);
  assert (geometry_l1_entries (&g, 32769) == 2);
  assert (geometry_l1_entries (&g, UINT64_C (1) << 37) == 4 << 20);
  assert (geometry_l1_entries (&g, (UINT64_C (1) << 37) + 1) == -EFBIG);
  assert (geometry_l1_entries (&g, UINT64_MAX) == -EFBIG);
  assert (geometry_l1_idx (&g, 32768) == 1);
  assert (geometry_l2_idx (&g, 32768) == 0);
  assert (geometry_l2_idx (&g, 32767) == 63);
  assert (geometry_clusters (&g, 0) == 0);
  assert (geometry_clusters (&g, 513) == 2);
  assert (geometry_clusters (&g, UINT64_MAX) == UINT64_C (1) << 55);
  assert (geometry_cluster_end (&g, 513) == 1024);
  assert (geometry_cluster_start (&g, 513) == 512);
  assert (geometry_in_cluster (&g, 513) == 1);

  g = make (3, 21, 4, 0, 0);
  assert (geometry_l1_entries (&g, UINT64_C (1) << 61) == 4 << 20);
}

static enum entry_type
type_of (const struct geometry *g, uint64_t v)
{
  return l2_entry_type (g, (struct l2_entry) { .v = v }, 0);
}

static void
test_standard (void)
{
  struct geometry g2 = make (2, 16, 4, 0, 0), g3 = make (3, 16, 4, 0, 0);
  struct geometry gd = make (3, 16, 4, INCOMPAT_DATA_FILE, 0);
  unsigned bit;

  assert (type_of (&g3, 0) == ENTRY_UNALLOCATED);
  assert (type_of (&g3, 1) == ENTRY_ZERO);
  assert (type_of (&g3, 0x50001) == ENTRY_ZERO_ALLOC);
  assert (type_of (&g3, 0x50000) == ENTRY_DATA);
  assert (type_of (&g3, ENTRY_COPIED | 0x50000) == ENTRY_DATA);
  assert (type_of (&g3, ENTRY_COPIED) == ENTRY_UNALLOCATED);
  assert (type_of (&g3, L2E_COMPRESSED | 0x50003) == ENTRY_COMPRESSED);
  assert (type_of (&g2, 1) == ENTRY_BROKEN);
  assert (type_of (&g2, 0x50001) == ENTRY_BROKEN);
  assert (type_of (&g2, 0x50000) == ENTRY_DATA);
  assert (type_of (&gd, ENTRY_COPIED) == ENTRY_DATA);
  assert (type_of (&gd, ENTRY_COPIED | 1) == ENTRY_ZERO_ALLOC);
  assert (type_of (&gd, L2E_COMPRESSED | 0x50003) == ENTRY_BROKEN);

  /* Reserved bits, and offsets inside a cluster. */
  for (bit = 1; bit < 62; bit++)
    if (bit < 16 || bit >= 56)
      assert (type_of (&g3, 0x50000 | UINT64_C (1) << bit) == ENTRY_BROKEN);
    else
      assert (type_of (&g3, UINT64_C (1) << bit) == ENTRY_DATA);
}

static void
test_extended (void)
{
  struct geometry g = make (3, 16, 4, INCOMPAT_EXTENDED_L2, 0);
  const uint64_t alloc7 = SUBCLUSTER_ALLOC (7), zero9 = SUBCLUSTER_ZERO (9);
  struct l2_entry e = { .v = 0x50000, .bitmap = alloc7 | zero9 };
  unsigned sub;

  for (sub = 0; sub < SUBCLUSTERS_PER_CLUSTER; sub++)
    assert (l2_entry_type (&g, e, sub) ==
            (sub == 7 ? ENTRY_DATA : sub == 9 ? ENTRY_ZERO_ALLOC :
             ENTRY_UNALLOC_ALLOC));

  e = (struct l2_entry) { .v = 0, .bitmap = zero9 };
  assert (l2_entry_type (&g, e, 9) == ENTRY_ZERO);
  assert (l2_entry_type (&g, e, 8) == ENTRY_UNALLOCATED);

  /* One rule broken anywhere breaks all of the entry. */
  e.bitmap = alloc7;
  assert (l2_entry_type (&g, e, 0) == ENTRY_BROKEN);
  e = (struct l2_entry) { .v = 0x50000,
                          .bitmap = alloc7 | SUBCLUSTER_ZERO (7) };
  assert (l2_entry_type (&g, e, 31) == ENTRY_BROKEN);
  e = (struct l2_entry) { .v = 0x50001, .bitmap = 0 };
  assert (l2_entry_type (&g, e, 0) == ENTRY_BROKEN);
  e = (struct l2_entry) { .v = 1, .bitmap = 0 };
  assert (l2_entry_type (&g, e, 0) == ENTRY_BROKEN);
  e = (struct l2_entry) { .v = L2E_COMPRESSED | 0x50003, .bitmap = 0 };
  assert (l2_entry_type (&g, e, 5) == ENTRY_COMPRESSED);
  e.bitmap = zero9;
  assert (l2_entry_type (&g, e, 5) == ENTRY_BROKEN);
}

/* Every place and length of compressed bytes survives the descriptor. */
static void
test_compressed (void)
{
  unsigned bits;

  for (bits = MIN_CLUSTER_BITS; bits <= MAX_CLUSTER_BITS; bits++) {
    struct geometry g = make (3, bits, 4, 0, 0);
    uint64_t off, len;

    for (off = 0x600000; off < 0x600000 + 1100; off += 37)
      for (len = 1; len < g.cluster_size; len += 1 + len / 3) {
        struct l2_entry e = l2_entry_make_compressed (&g, off, len);
        uint64_t end = off + len;

        assert (l2_entry_compressed (e) && !l2_entry_copied (e));
        assert (type_of (&g, e.v) == ENTRY_COMPRESSED);
        assert (l2_entry_comp_off (&g, e) == off);
        assert (off + l2_entry_comp_len (&g, e) == ((end + 511) & ~511ULL));
      }
    /* With small clusters the field is wider than an offset may be. */
    assert (type_of (&g, L2E_COMPRESSED | g.coffset_mask) ==
            (g.coffset_mask >> 56 ? ENTRY_BROKEN : ENTRY_COMPRESSED));
  }
}

static void
test_l1 (void)
{
  struct geometry g = make (3, 16, 4, 0, 0);
  struct l1_entry e = { .v = ENTRY_COPIED | 0x30000 };

  assert (l1_entry_off (e) == 0x30000 && l1_entry_valid (&g, e));
  e.v = 0x30200;
  assert (!l1_entry_valid (&g, e));
  e.v = UINT64_C (1) << 56;
  assert (!l1_entry_valid (&g, e));
  e.v = 0;
  assert (l1_entry_valid (&g, e));
}

int
main (void)
{
  test_values ();
  test_features ();
  test_arithmetic ();
  test_standard ();
  test_extended ();
  test_compressed ();
  test_l1 ();
  return 0;
}
