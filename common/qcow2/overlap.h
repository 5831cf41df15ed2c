/* SPDX-License-Identifier: BSD-3-Clause */
/* Which host clusters hold metadata.  Asked before every data write, so
 * that a lying table cannot make a guest write destroy the image.
 *
 * All functions: the caller holds LOCK_META, exclusively for changes,
 * shared for overlap_find.
 */

#ifndef OVERLAP_H
#define OVERLAP_H

#include <stdint.h>

enum overlap_kind {
  OVERLAP_HEADER = 1,
  OVERLAP_L1,
  OVERLAP_L2,
  OVERLAP_REFTABLE,
  OVERLAP_REFBLOCK,
  OVERLAP_SNAPSHOT_TABLE,
  OVERLAP_SNAPSHOT_L1,
  OVERLAP_BITMAPS,
  OVERLAP_CRYPTO,
};

struct overlap;

/* CLUSTER_BITS as in the header.  -ENOMEM. */
extern int overlap_create (unsigned cluster_bits, struct overlap **o)
  __attribute__ ((__warn_unused_result__));
extern void overlap_free (struct overlap *o);

/* Register, remove the clusters that [OFF, OFF + LEN) touches.  Adding a
 * cluster again replaces its kind (a hostile image may name one twice).
 * -ENOMEM.  LEN 0 is nothing.
 */
extern int overlap_add_locked (struct overlap *o, uint64_t off, uint64_t len,
                               enum overlap_kind kind)
  __attribute__ ((__warn_unused_result__));
extern void overlap_remove_locked (struct overlap *o,
                                   uint64_t off, uint64_t len);

/* Does [OFF, OFF + LEN) touch a metadata cluster?  Returns 0 or the kind.
 * Costs one hash lookup per cluster.
 */
extern enum overlap_kind overlap_find (const struct overlap *o,
                                       uint64_t off, uint64_t len);

/* End of the last metadata cluster, in bytes; 0 = none.  Walks the whole
 * registry: for the end of a session.
 */
extern uint64_t overlap_end (const struct overlap *o);

/* "L2 table" etc., for messages. */
extern const char *overlap_kind_name (enum overlap_kind kind);

#endif /* OVERLAP_H */
