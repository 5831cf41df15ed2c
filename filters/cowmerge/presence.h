/* SPDX-License-Identifier: BSD-3-Clause */
/* The presence map: which clusters the served layer has, as far as known.
 *
 * It decides only which way a write takes, never what is read or written:
 * with a wrong or forgotten entry a write costs more, and no byte is
 * wrong.  So it may forget whatever it likes, and its memory is bounded
 * (4 MiB an export, which is 1 TiB of 64k clusters).
 */

#ifndef PRESENCE_H
#define PRESENCE_H

#include <stdint.h>

enum presence_state {
  PRESENCE_UNKNOWN = 0,
  PRESENCE_PRESENT,             /* a write needs no copying */
  PRESENCE_ABSENT,              /* a write has to allocate and to copy */
  PRESENCE_ABSENT_ZERO,         /* to allocate only: all of it is zero */
};

#define PRESENCE_SLOTS 4096

struct presence_chunk;

struct presence {
  struct presence_chunk *slots[PRESENCE_SLOTS];
};

/* All of these are called with the lock of the overlay held. */

extern void presence_init (struct presence *p);
extern void presence_destroy (struct presence *p);

extern enum presence_state presence_get_locked (const struct presence *p,
                                                uint64_t idx);

/* Set clusters FIRST..LAST to S.  Where there is no memory they become, or
 * stay, unknown.
 */
extern void presence_set_locked (struct presence *p, uint64_t first,
                                 uint64_t last, enum presence_state s);

#endif /* PRESENCE_H */
