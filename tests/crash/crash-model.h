/* SPDX-License-Identifier: BSD-3-Clause */
/* What a guest disk may contain: after a power loss at some moment, or now,
 * given what clients did and what they were told.
 *
 * The unit is a sector of 512 bytes, which is written whole or not at all.
 * At a given moment a sector has a set of contents that are allowed.  A
 * request that is certain replaces the set; a request that may have
 * happened, wholly or in part, adds to it.
 *
 * Moments are those of crash_clock (backend-crash.h).  The start and end of
 * each request must be moments of their own (crash_clock_tick).  Requests of
 * which neither ended before the other began must not touch the same sector.
 */

#ifndef CRASH_MODEL_H
#define CRASH_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CRASH_SECTOR 512

struct crash_model;

/* A disk that contains SIZE bytes at DATA (copied), for certain.  Aborts
 * without memory, as do all functions here.
 */
extern struct crash_model *crash_model_create (const uint8_t *data,
                                               uint64_t size);
extern void crash_model_free (struct crash_model *m);

/* A request that changes the disk, from moment START to END, with its
 * result.  DATA is copied; NULL = zeroes.  A failed one may have had any
 * part of its effect.
 */
struct crash_change {
  uint64_t off, len;
  const uint8_t *data;
  uint64_t start, end;
  bool ok, fua;
};
extern void crash_model_change (struct crash_model *m,
                                const struct crash_change *change);

/* A flush. */
extern void crash_model_flush (struct crash_model *m, uint64_t start,
                               uint64_t end, bool ok);

/* What is allowed after a power loss at moment T: what a successful flush
 * (or FUA) covered that had ended by then is certain; what had begun, is
 * possible.
 */
extern void crash_model_at (struct crash_model *m, uint64_t t);

/* What a client may read now: what succeeded is certain. */
extern void crash_model_now (struct crash_model *m);

/* Is this content allowed?  Of SIZE bytes, at offset 0, by the last call of
 * crash_model_at or crash_model_now.  If not, says where, and what was
 * found, on stderr.
 */
extern bool crash_model_allows (struct crash_model *m, const uint8_t *data);

/* The requests, for people: those that began up to moment T. */
extern void crash_model_dump (const struct crash_model *m, uint64_t t);

/* The number of sectors with more than one allowed content. */
extern size_t crash_model_open_sectors (const struct crash_model *m);

#endif /* CRASH_MODEL_H */
