/* SPDX-License-Identifier: BSD-3-Clause */
/* Typed table entries: what the 64 bits of an L1 or L2 entry mean.
 * Each kind is a struct of its own, so that they cannot be mixed up.
 * Spec: "Cluster mapping", "Extended L2 Entries".
 */

#ifndef ENTRY_H
#define ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "geometry.h"
#include "ondisk.h"

struct l1_entry { uint64_t v; };
struct l2_entry { uint64_t v; uint64_t bitmap; };       /* bitmap: ext. L2 */

enum entry_type {
  ENTRY_UNALLOCATED,    /* falls through to the backing file */
  ENTRY_ZERO,           /* reads as zeroes, no host cluster */
  ENTRY_ZERO_ALLOC,     /* reads as zeroes, host cluster kept */
  ENTRY_DATA,
  ENTRY_COMPRESSED,
  ENTRY_UNALLOC_ALLOC,  /* subcluster not allocated in a cluster that is:
                           falls through, host space kept */
  ENTRY_BROKEN,         /* breaks a rule of the spec */
};

static inline uint64_t
l1_entry_off (struct l1_entry e)
{
  return e.v & L1E_OFFSET_MASK;
}

static inline bool
l1_entry_valid (const struct geometry *g, struct l1_entry e)
{
  return (e.v & L1E_RESERVED_MASK) == 0 &&
    (l1_entry_off (e) & (g->cluster_size - 1)) == 0;
}

static inline bool
l2_entry_copied (struct l2_entry e)
{
  return (e.v & (ENTRY_COPIED | L2E_COMPRESSED)) == ENTRY_COPIED;
}

static inline bool
l2_entry_compressed (struct l2_entry e)
{
  return (e.v & L2E_COMPRESSED) != 0;
}

/* Host offset of a standard descriptor; 0 = none (except with an external
 * data file, where 0 is an offset if ENTRY_COPIED is set).
 */
static inline uint64_t
l2_entry_off (struct l2_entry e)
{
  return e.v & L2E_OFFSET_MASK;
}

/* Does E, not compressed, refer to a host cluster? */
static inline bool
l2_entry_has_cluster (const struct geometry *g, struct l2_entry e)
{
  return l2_entry_off (e) != 0 ||
    (g->has_data_file && (e.v & ENTRY_COPIED) != 0);
}

/* Byte offset in the image file of a compressed cluster's data. */
static inline uint64_t
l2_entry_comp_off (const struct geometry *g, struct l2_entry e)
{
  return e.v & g->coffset_mask;
}

/* Bytes from there to the end of its last sector: how much may have to be
 * read.  The end may lie beyond the end of the file.
 */
static inline uint64_t
l2_entry_comp_len (const struct geometry *g, struct l2_entry e)
{
  uint64_t sectors = ((e.v >> g->csize_shift) & g->csize_mask) + 1;
  return sectors * 512 - (l2_entry_comp_off (g, e) & 511);
}

/* The descriptor for LEN compressed bytes at HOST_OFF. */
static inline struct l2_entry
l2_entry_make_compressed (const struct geometry *g,
                          uint64_t host_off, uint64_t len)
{
  uint64_t sectors = ((host_off + len - 1) >> 9) - (host_off >> 9);
  struct l2_entry e = { .v = L2E_COMPRESSED | host_off |
                        (sectors << g->csize_shift) };
  return e;
}

/* What guest subcluster SUB (0 without extended L2) of the cluster that E
 * maps is.  Without extended L2, E.bitmap is not looked at.
 */
extern enum entry_type l2_entry_type (const struct geometry *g,
                                      struct l2_entry e, unsigned sub);

/* What the first 64 bits of E say: all there is to know without extended
 * L2.  With it ENTRY_DATA means that there is a host cluster, and
 * ENTRY_ZERO, ENTRY_ZERO_ALLOC do not occur.
 */
static inline enum entry_type
entry_standard_type (const struct geometry *g, struct l2_entry e)
{
  uint64_t reserved = g->has_zero_flag && !g->extended_l2
    ? L2E_RESERVED_MASK : L2E_RESERVED_MASK | L2E_ZERO;
  bool has_cluster = l2_entry_has_cluster (g, e);

  if (e.v == 0)
    return ENTRY_UNALLOCATED;
  if (e.v & L2E_COMPRESSED)
    return g->has_data_file || l2_entry_comp_off (g, e) >= MAX_HOST_OFFSET
      ? ENTRY_BROKEN : ENTRY_COMPRESSED;
  if ((e.v & reserved) || (l2_entry_off (e) & (g->cluster_size - 1)))
    return ENTRY_BROKEN;
  if (e.v & L2E_ZERO)
    return has_cluster ? ENTRY_ZERO_ALLOC : ENTRY_ZERO;
  return has_cluster ? ENTRY_DATA : ENTRY_UNALLOCATED;
}

#endif /* ENTRY_H */
