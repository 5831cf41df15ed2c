/* SPDX-License-Identifier: BSD-3-Clause */
/* Allocating ahead over plugins that know nothing of this filter.
 *
 * Before a write that ends beyond the frontier (the highest offset that
 * is allocated or was written), the zero holes that the plugin reports
 * from there on are allocated with a zero request that may not trim.
 * What of that was not written by the time that the last connection
 * closes is given back.
 *
 * All functions take the lock themselves.
 */

#ifndef AHEAD_H
#define AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include <nbdkit-filter.h>

#include "ranges.h"

/* What the connections of one export share. */
struct ahead;

/* The state of the export, shared with its other connections.  BLOCK is
 * the unit of what is zeroed, a power of two; SIZE and ALIGN are the
 * filter's parameters.  NULL if there is no memory (error logged).  To be
 * given back with ahead_put.
 */
extern struct ahead *ahead_get (const char *exportname, uint64_t block,
                                uint64_t size, uint64_t align);

/* The connection ends.  If it was the last one, the unused rest is given
 * back through NEXT (NULL if the plugin cannot be called any more: then it
 * stays allocated).
 */
extern void ahead_put (struct ahead *a, nbdkit_next *next);

/* Call before a write, or a zero request that may not trim, of the bytes
 * [OFF, END): makes a step if it is time for one (STEP is true for
 * writes), and waits for a step of others that overlaps.  R is for
 * ahead_end, to be called after the request.  Cannot fail: where nothing
 * can be allocated ahead, nothing is.
 */
extern void ahead_begin (struct ahead *a, nbdkit_next *next,
                         uint64_t off, uint64_t end, bool step,
                         struct range *r);
extern void ahead_end (struct range *r);

/* Give back at once what is allocated ahead, since a request failed for
 * want of space, and do not allocate ahead any more.  True if there was
 * something, so that the request is worth another try.  Not between
 * ahead_begin and ahead_end.
 */
extern bool ahead_give_back (struct ahead *a, nbdkit_next *next);

/* Free the states of all exports (no connection is left). */
extern void ahead_unload (void);

/* True for errno values that say that there is no space, no quota, or
 * that the file would be too large.
 */
extern bool ahead_is_nospace (int err);

#endif /* AHEAD_H */
