/* SPDX-License-Identifier: BSD-3-Clause */
/* What an L2 entry says about one subcluster.
 *
 * Invariant: an entry that breaks any rule of the specification is
 * ENTRY_BROKEN for each of its subclusters, whichever is asked for, so
 * that no part of it is trusted.  Locks: none.
 */

#include <config.h>

#include "entry.h"

enum entry_type
l2_entry_type (const struct geometry *g, struct l2_entry e, unsigned sub)
{
  enum entry_type type = entry_standard_type (g, e);
  uint64_t alloc = e.bitmap & UINT32_MAX, zero = e.bitmap >> 32;

  if (!g->extended_l2)
    return type;
  switch (type) {
  case ENTRY_UNALLOCATED:
    if (alloc)
      return ENTRY_BROKEN;      /* allocated, but where? */
    return (zero >> sub) & 1 ? ENTRY_ZERO : ENTRY_UNALLOCATED;
  case ENTRY_DATA:
    if (alloc & zero)
      return ENTRY_BROKEN;
    if ((alloc >> sub) & 1)
      return ENTRY_DATA;
    return (zero >> sub) & 1 ? ENTRY_ZERO_ALLOC : ENTRY_UNALLOC_ALLOC;
  case ENTRY_COMPRESSED:
    return e.bitmap ? ENTRY_BROKEN : ENTRY_COMPRESSED;
  case ENTRY_ZERO:              /* bit 0 is reserved in extended entries */
  case ENTRY_ZERO_ALLOC:
  case ENTRY_UNALLOC_ALLOC:
  case ENTRY_BROKEN:
    break;
  }
  return ENTRY_BROKEN;
}
