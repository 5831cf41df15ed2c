/* SPDX-License-Identifier: BSD-3-Clause */
/* Writing blocks out: to the plugin, whole clusters wherever it pays. */

#ifndef WRITEOUT_H
#define WRITEOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "overlay.h"

/* Write out B by NEXT, with the request FLAGS (NBDKIT_FLAG_FUA or 0).  The
 * caller holds the lock and an exclusive claim on B's cluster.  The lock
 * is released during the I/O.  0: B is below, and removed.  -errno: B is
 * as it was, to be tried again later, and the error is recorded for the
 * flushes of all connections.
 */
extern int writeout_locked (struct overlay *ov, nbdkit_next *next,
                            struct block *b, uint32_t flags);

/* Write out all that was buffered before the call, and wait for what other
 * threads write out of it.  0, or the -errno of some block that could not
 * be written; all others are tried nevertheless.
 */
extern int writeout_all (struct overlay *ov, nbdkit_next *next)
  __attribute__ ((__warn_unused_result__));

/* Write out the block that was used least recently, or wait until other
 * threads did so with theirs.  False if there is nothing to write out or
 * to wait for.
 */
extern bool writeout_victim (struct overlay *ov, nbdkit_next *next)
  __attribute__ ((__warn_unused_result__));

/* Write out one block which is due: by its age, for a flush under way, or
 * for lack of memory.  NEXT is NULL for a thread without connection, which
 * then uses one that is lent.  True if a block was written out, or tried;
 * else *WAKE becomes the time (overlay_now) when the next is due, if that
 * is sooner.
 */
extern bool writeout_due (struct overlay *ov, nbdkit_next *next,
                          int64_t *wake)
  __attribute__ ((__warn_unused_result__));

#endif /* WRITEOUT_H */
