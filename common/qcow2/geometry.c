/* SPDX-License-Identifier: BSD-3-Clause */
/* Values that follow from the header.
 *
 * Invariant: once initialised they never change.  Locks: none.
 * It does not check the header: header_parse did.
 */

#include <config.h>

#include <errno.h>

#include "geometry.h"
#include "ondisk.h"

void
geometry_init (struct geometry *g, const struct header *h)
{
  unsigned bits = h->cluster_bits;

  g->version = h->version;
  g->cluster_bits = bits;
  g->cluster_size = UINT64_C (1) << bits;
  g->extended_l2 = (h->incompatible & INCOMPAT_EXTENDED_L2) != 0;
  g->subcluster_bits = g->extended_l2 ? bits - 5 : bits;
  g->subcluster_size = UINT64_C (1) << g->subcluster_bits;
  g->l2_entry_size = g->extended_l2 ? 16 : 8;
  g->l2_bits = g->extended_l2 ? bits - 4 : bits - 3;
  g->slice_bits = bits < MAX_SLICE_BITS ? bits : MAX_SLICE_BITS;

  g->refcount_order = h->refcount_order;
  g->refcount_max = UINT64_MAX >> (64 - (1U << h->refcount_order));
  g->refblock_bits = bits + 3 - h->refcount_order;

  g->has_zero_flag = h->version >= 3;
  g->has_data_file = (h->incompatible & INCOMPAT_DATA_FILE) != 0;
  g->data_file_raw = g->has_data_file &&
    (h->autoclear & AUTOCLEAR_DATA_FILE_RAW) != 0;

  g->csize_shift = 62 - (bits - 8);
  g->csize_mask = (UINT64_C (1) << (bits - 8)) - 1;
  g->coffset_mask = (UINT64_C (1) << g->csize_shift) - 1;
}

int64_t
geometry_l1_entries (const struct geometry *g, uint64_t size)
{
  unsigned span_bits = geometry_l2_span_bits (g);
  uint64_t entries = (size >> span_bits) +
    !!(size & ((UINT64_C (1) << span_bits) - 1));

  if (entries > MAX_L1_SIZE / 8)
    return -EFBIG;
  return entries;
}
