/* SPDX-License-Identifier: BSD-3-Clause */
/* Registry of the host clusters that hold metadata: a hash set of cluster
 * numbers, each with its kind.
 *
 * Invariant: no cluster is in the table twice, and no empty slot lies
 * between the home of an entry and its place (linear probing without
 * tombstones).
 *
 * Eight neighbouring clusters share a home cache line, because a write is
 * checked cluster by cluster.
 *
 * Locks: LOCK_META of the image, held by the caller.  overlap_find writes
 * nothing, so holders of the shared lock may call it at once.
 */

#include <config.h>

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "overlap.h"

#define MIN_SLOTS 256
#define KIND_BITS 4             /* of a slot; the rest is the cluster */
#define GROUP_BITS 3

struct overlap {
  unsigned cluster_bits;
  unsigned slot_bits;           /* log2 of the number of slots */
  size_t used;
  uint64_t *slots;              /* cluster << KIND_BITS | kind; 0 = empty */
};

int
overlap_create (unsigned cluster_bits, struct overlap **o)
{
  struct overlap *n = calloc (1, sizeof *n);

  if (n)
    n->slots = calloc (MIN_SLOTS, sizeof *n->slots);
  if (n == NULL || n->slots == NULL) {
    free (n);
    nbdkit_error ("out of memory for the registry of metadata clusters");
    return -ENOMEM;
  }
  n->cluster_bits = cluster_bits;
  n->slot_bits = __builtin_ctz (MIN_SLOTS);
  *o = n;
  return 0;
}

void
overlap_free (struct overlap *o)
{
  if (o == NULL)
    return;
  free (o->slots);
  free (o);
}

static size_t
home_of (const struct overlap *o, uint64_t cluster_idx)
{
  uint64_t group = (cluster_idx >> GROUP_BITS) * UINT64_C (0x9e3779b97f4a7c15);

  return group >> (64 - (o->slot_bits - GROUP_BITS)) << GROUP_BITS |
    (cluster_idx & ((1U << GROUP_BITS) - 1));
}

/* The slot that has the cluster, or the empty one where it would go. */
static size_t
find_slot (const struct overlap *o, uint64_t cluster_idx)
{
  size_t mask = ((size_t) 1 << o->slot_bits) - 1;
  size_t i = home_of (o, cluster_idx);

  while (o->slots[i] != 0 && o->slots[i] >> KIND_BITS != cluster_idx)
    i = (i + 1) & mask;
  return i;
}

static int
double_table (struct overlap *o)
{
  size_t old_nr = (size_t) 1 << o->slot_bits, i;
  uint64_t *old = o->slots;
  uint64_t *slots = calloc (old_nr * 2, sizeof *slots);

  if (slots == NULL) {
    nbdkit_error ("out of memory for the registry of metadata clusters");
    return -ENOMEM;
  }
  o->slots = slots;
  o->slot_bits++;
  for (i = 0; i < old_nr; ++i) {
    if (old[i] != 0)
      slots[find_slot (o, old[i] >> KIND_BITS)] = old[i];
  }
  free (old);
  return 0;
}

/* First and last cluster of a range that is not empty.  A range that
 * wraps around ends at the end of the address space.
 */
static void
clusters_of (const struct overlap *o, uint64_t off, uint64_t len,
             uint64_t *first, uint64_t *last)
{
  uint64_t end;

  if (__builtin_add_overflow (off, len - 1, &end))
    end = UINT64_MAX;
  *first = off >> o->cluster_bits;
  *last = end >> o->cluster_bits;
}

int
overlap_add_locked (struct overlap *o, uint64_t off, uint64_t len,
                    enum overlap_kind kind)
{
  uint64_t c, last;
  size_t i;
  int r;

  if (len == 0)
    return 0;
  clusters_of (o, off, len, &c, &last);
  for (; c <= last; ++c) {
    if (o->used >= (size_t) 1 << (o->slot_bits - 1)) {
      r = double_table (o);
      if (r < 0)
        return r;
    }
    i = find_slot (o, c);
    if (o->slots[i] == 0)
      o->used++;
    o->slots[i] = c << KIND_BITS | kind;
  }
  return 0;
}

/* Empty slot I, then move up the entries behind it that could not be found
 * any more.
 */
static void
remove_slot (struct overlap *o, size_t i)
{
  size_t mask = ((size_t) 1 << o->slot_bits) - 1;
  size_t j = i, home;

  o->used--;
  for (;;) {
    o->slots[i] = 0;
    do {
      j = (j + 1) & mask;
      if (o->slots[j] == 0)
        return;
      home = home_of (o, o->slots[j] >> KIND_BITS);
    } while (((j - home) & mask) < ((j - i) & mask));
    o->slots[i] = o->slots[j];
    i = j;
  }
}

void
overlap_remove_locked (struct overlap *o, uint64_t off, uint64_t len)
{
  uint64_t c, last;
  size_t i;

  if (len == 0)
    return;
  clusters_of (o, off, len, &c, &last);
  for (; c <= last; ++c) {
    i = find_slot (o, c);
    if (o->slots[i] != 0)
      remove_slot (o, i);
  }
}

enum overlap_kind
overlap_find (const struct overlap *o, uint64_t off, uint64_t len)
{
  uint64_t c, last, slot;

  if (len == 0)
    return 0;
  clusters_of (o, off, len, &c, &last);
  for (; c <= last; ++c) {
    slot = o->slots[find_slot (o, c)];
    if (slot != 0)
      return slot & ((1U << KIND_BITS) - 1);
  }
  return 0;
}

uint64_t
overlap_end (const struct overlap *o)
{
  size_t nr = (size_t) 1 << o->slot_bits, i;
  uint64_t end = 0;

  for (i = 0; i < nr; ++i) {
    if (o->slots[i] != 0 && (o->slots[i] >> KIND_BITS) >= end)
      end = (o->slots[i] >> KIND_BITS) + 1;
  }
  return end << o->cluster_bits;
}

const char *
overlap_kind_name (enum overlap_kind kind)
{
  switch (kind) {
  case OVERLAP_HEADER:         return "header";
  case OVERLAP_L1:             return "L1 table";
  case OVERLAP_L2:             return "L2 table";
  case OVERLAP_REFTABLE:       return "refcount table";
  case OVERLAP_REFBLOCK:       return "refcount block";
  case OVERLAP_SNAPSHOT_TABLE: return "snapshot table";
  case OVERLAP_SNAPSHOT_L1:    return "L1 table of a snapshot";
  case OVERLAP_BITMAPS:        return "bitmap";
  case OVERLAP_CRYPTO:         return "encryption header";
  }
  return "unknown metadata";
}
