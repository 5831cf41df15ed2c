/* SPDX-License-Identifier: BSD-3-Clause */
/* The requests in progress: which bytes are being written, and which are
 * being zeroed ahead or given back.
 *
 * A write never runs at the same time as a zeroing that overlaps it, of
 * whatever connection and export: exports of two names may well be the
 * same bytes (plugins are free to ignore the name).
 */

#ifndef RANGES_H
#define RANGES_H

#include <stdbool.h>
#include <stdint.h>
#include <pthread.h>

/* The one lock of this filter: protects this list, and the state in
 * ahead.c.  Never held across a request to the plugin.
 */
extern pthread_mutex_t ranges_lock;

/* Owned by the caller, usually on its stack; in the list from _begin to
 * _end.
 */
struct range {
  uint64_t off, end;
  bool zeroing;
  struct range *prev, *next;
};

/* Wait until no zeroing overlaps [OFF, END).  True if there was one, so
 * that the lock was given up meanwhile.
 */
extern bool ranges_wait_locked (uint64_t off, uint64_t end);

/* Begin a write.  No zeroing overlaps it (the caller called
 * ranges_wait_locked since it took the lock).
 */
extern void ranges_write_begin_locked (struct range *r,
                                       uint64_t off, uint64_t end);

/* Begin a zeroing, and wait for the writes that overlap it; later writes
 * wait for it.  No other zeroing overlaps it (as above).
 */
extern void ranges_zero_begin_locked (struct range *r,
                                      uint64_t off, uint64_t end);

extern void ranges_end_locked (struct range *r);

#endif /* RANGES_H */
