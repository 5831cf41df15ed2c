/* SPDX-License-Identifier: BSD-3-Clause */
/* Everything that an L1 table refers to, for admin code that changes many
 * refcounts at once: internal snapshots, resize.
 *
 * No requests are being served, and everything was committed: tables are
 * read from the file, not from the mcache, in one read each.  The functions
 * take LOCK_META themselves and commit when the mcache asks for it; callers
 * hold no lock.
 */

#ifndef L1_WALK_H
#define L1_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "core.h"

/* Can each reference from the NR entries of L1 be trusted?  Tables are
 * readable and each is named once, entries keep the rules, clusters lie in
 * the file, hold no other metadata, and have a refcount.  -EIO with a
 * message that names the broken entry; -ENOMEM.
 */
extern int l1_walk_check (struct core *core, const struct l1_entry *l1,
                          uint64_t nr)
  __attribute__ ((__warn_unused_result__));

/* One more reference for every cluster that is referred to, the L2 tables
 * included.  In memory; the next commit makes it stable.  On failure what
 * was added is taken back.  -ERANGE with a message: the refcount width
 * does not allow it; -EIO, -ENOMEM.
 */
extern int l1_walk_add (struct core *core, const struct l1_entry *l1,
                        uint64_t nr)
  __attribute__ ((__warn_unused_result__));

/* One reference less, now that the table itself is gone for good (stable):
 * what nobody refers to any more is freed.  L2 tables leave the overlap
 * registry; those that the active disk has as well must be put back
 * (admin_register_tables).  An error leaks the rest.
 */
extern int l1_walk_free (struct core *core, const struct l1_entry *l1,
                         uint64_t nr)
  __attribute__ ((__warn_unused_result__));

/* Write the COPIED flags of the L2 tables, and set those of L1 in memory:
 * to what the refcounts say, or with CLEAR to 0.  The caller writes L1, and
 * passes the barrier.
 */
extern int l1_walk_flags (struct core *core, struct l1_entry *l1,
                          uint64_t nr, bool clear)
  __attribute__ ((__warn_unused_result__));

/* The NR entries at HOST_OFF of the file.  *L1 is allocated, the caller
 * frees it.  -EIO with a message, -ENOMEM.
 */
extern int l1_walk_read (struct core *core, uint64_t host_off, uint64_t nr,
                         struct l1_entry **l1)
  __attribute__ ((__warn_unused_result__));

/* The reverse; the rest of the last cluster becomes zero. */
extern int l1_walk_write (struct core *core, uint64_t host_off,
                          const struct l1_entry *l1, uint64_t nr)
  __attribute__ ((__warn_unused_result__));

#endif /* L1_WALK_H */
