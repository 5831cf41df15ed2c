/* SPDX-License-Identifier: BSD-3-Clause */
/* Entries of L2 tables in slices: shared by the files of the map. */

#ifndef MAP_ENTRY_H
#define MAP_ENTRY_H

#include <inttypes.h>
#include <stdint.h>

#include "entry.h"
#include "geometry.h"
#include "map.h"

/* Offset in the image file of the slice that has the L2 entry of
 * GUEST_OFF in the table at L2_OFF, and where in the slice.
 */
static inline uint64_t
map_entry_slice (const struct geometry *geo, uint64_t l2_off,
                 uint64_t guest_off, uint64_t *in_slice)
{
  uint64_t byte = geometry_l2_idx (geo, guest_off) * geo->l2_entry_size;
  uint64_t mask = (UINT64_C (1) << geo->slice_bits) - 1;

  *in_slice = byte & mask;
  return l2_off + (byte & ~mask);
}

static inline struct l2_entry
map_entry_get (const struct geometry *geo, const uint8_t *p)
{
  struct l2_entry e = { .v = get_be64 (p) };

  if (geo->extended_l2)
    e.bitmap = get_be64 (p + 8);
  return e;
}

static inline void
map_entry_put (const struct geometry *geo, uint8_t *p, struct l2_entry e)
{
  put_be64 (p, e.v);
  if (geo->extended_l2)
    put_be64 (p + 8, e.bitmap);
}

/* Clip LEN so that OFF + LEN does not cross a multiple of 1 << BITS. */
static inline uint64_t
map_entry_clip (uint64_t off, uint64_t len, unsigned bits)
{
  uint64_t room = (UINT64_C (1) << bits) - (off & ((UINT64_C (1) << bits) - 1));

  return len < room ? len : room;
}

/* The one message about a broken entry for GUEST_OFF. */
extern void map_lookup_complain (const struct map *map, uint64_t guest_off);

#endif /* MAP_ENTRY_H */
