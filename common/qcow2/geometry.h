/* SPDX-License-Identifier: BSD-3-Clause */
/* Values that follow from the header and never change while the image is
 * open, and the arithmetic on guest and host addresses.  Immutable, so
 * readable without a lock.
 */

#ifndef GEOMETRY_H
#define GEOMETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "header.h"

/* Slices of tables are at most so large. */
#define MAX_SLICE_BITS 12

struct geometry {
  unsigned version;             /* 2 or 3 */
  unsigned cluster_bits;
  uint64_t cluster_size;        /* bytes */
  bool extended_l2;
  unsigned subcluster_bits;     /* == cluster_bits without extended L2 */
  uint64_t subcluster_size;     /* bytes */
  unsigned l2_entry_size;       /* 8, or 16 with extended L2 */
  unsigned l2_bits;             /* log2 of the entries of an L2 table */
  unsigned slice_bits;          /* log2 of the bytes of a table slice: the
                                   unit in which tables are cached and
                                   written; <= cluster_bits, <= 12 */
  unsigned refcount_order;
  uint64_t refcount_max;        /* largest refcount the width can hold */
  unsigned refblock_bits;       /* log2 of the entries of a refcount block */
  bool has_zero_flag;           /* version >= 3 */
  bool has_data_file;           /* guest clusters are in an external file */
  bool data_file_raw;
  unsigned csize_shift;         /* compressed descriptor: see spec */
  uint64_t csize_mask;
  uint64_t coffset_mask;
};

/* Fill G from a header that header_parse accepted.  Cannot fail. */
extern void geometry_init (struct geometry *g, const struct header *h);

/* L1 entries needed for SIZE guest bytes.  -EFBIG if the table would
 * exceed MAX_L1_SIZE.
 */
extern int64_t geometry_l1_entries (const struct geometry *g, uint64_t size)
  __attribute__ ((__warn_unused_result__));

static inline uint64_t
geometry_cluster_start (const struct geometry *g, uint64_t off)
{
  return off & ~(g->cluster_size - 1);
}

static inline uint64_t
geometry_in_cluster (const struct geometry *g, uint64_t off)
{
  return off & (g->cluster_size - 1);
}

/* OFF rounded up to a cluster; OFF <= 2^63. */
static inline uint64_t
geometry_cluster_end (const struct geometry *g, uint64_t off)
{
  return (off + g->cluster_size - 1) & ~(g->cluster_size - 1);
}

/* Clusters needed for LEN bytes. */
static inline uint64_t
geometry_clusters (const struct geometry *g, uint64_t len)
{
  return (len >> g->cluster_bits) + !!(len & (g->cluster_size - 1));
}

/* Number of guest bytes that one L2 table maps (log2). */
static inline unsigned
geometry_l2_span_bits (const struct geometry *g)
{
  return g->cluster_bits + g->l2_bits;
}

static inline uint64_t
geometry_l1_idx (const struct geometry *g, uint64_t guest_off)
{
  return guest_off >> geometry_l2_span_bits (g);
}

static inline uint64_t
geometry_l2_idx (const struct geometry *g, uint64_t guest_off)
{
  return (guest_off >> g->cluster_bits) & ((UINT64_C (1) << g->l2_bits) - 1);
}

#endif /* GEOMETRY_H */
