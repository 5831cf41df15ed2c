/* SPDX-License-Identifier: BSD-3-Clause */
/* The presence map.
 *
 * Two bits a cluster, in chunks; a table of chunks, in which each chunk
 * has one possible place.  Where two chunks want the same place the later
 * one takes it, and what the earlier one knew is asked for again when it
 * is needed.
 *
 * Locks: the caller's.
 */

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "presence.h"

#define CHUNK_CLUSTERS 4096
#define PER_BYTE 4

struct presence_chunk {
  uint64_t nr;                  /* first cluster / CHUNK_CLUSTERS */
  uint8_t map[CHUNK_CLUSTERS / PER_BYTE];
};

void
presence_init (struct presence *p)
{
  memset (p, 0, sizeof *p);
}

void
presence_destroy (struct presence *p)
{
  for (size_t i = 0; i < PRESENCE_SLOTS; ++i)
    free (p->slots[i]);
}

static struct presence_chunk *
find (const struct presence *p, uint64_t nr)
{
  struct presence_chunk *c = p->slots[nr % PRESENCE_SLOTS];

  return c && c->nr == nr ? c : NULL;
}

enum presence_state
presence_get_locked (const struct presence *p, uint64_t idx)
{
  const struct presence_chunk *c = find (p, idx / CHUNK_CLUSTERS);
  unsigned i = idx % CHUNK_CLUSTERS;

  if (c == NULL)
    return PRESENCE_UNKNOWN;
  return (c->map[i / PER_BYTE] >> (i % PER_BYTE * 2)) & 3;
}

/* The chunk NR, empty if it was not there; or NULL. */
static struct presence_chunk *
make (struct presence *p, uint64_t nr)
{
  struct presence_chunk **slot = &p->slots[nr % PRESENCE_SLOTS];

  if (*slot == NULL) {
    *slot = malloc (sizeof **slot);
    if (*slot == NULL)
      return NULL;
  }
  else if ((*slot)->nr == nr)
    return *slot;
  memset (*slot, 0, sizeof **slot);
  (*slot)->nr = nr;
  return *slot;
}

static void
set_in_chunk (struct presence_chunk *c, unsigned first, unsigned last,
              enum presence_state s)
{
  for (unsigned i = first; i <= last; ++i) {
    if (i % PER_BYTE == 0 && i + PER_BYTE - 1 <= last) {
      /* Whole bytes at once. */
      unsigned n = (last + 1 - i) / PER_BYTE;

      memset (&c->map[i / PER_BYTE], s * 0x55, n);
      i += n * PER_BYTE - 1;
    }
    else {
      unsigned shift = i % PER_BYTE * 2;
      uint8_t *b = &c->map[i / PER_BYTE];

      *b = (*b & ~(3u << shift)) | ((unsigned) s << shift);
    }
  }
}

void
presence_set_locked (struct presence *p, uint64_t first, uint64_t last,
                     enum presence_state s)
{
  while (first <= last) {
    uint64_t nr = first / CHUNK_CLUSTERS;
    uint64_t end = (nr + 1) * CHUNK_CLUSTERS - 1;
    struct presence_chunk *c;

    if (end > last)
      end = last;
    /* To forget what is not known needs no memory. */
    c = s == PRESENCE_UNKNOWN ? find (p, nr) : make (p, nr);
    if (c)
      set_in_chunk (c, first % CHUNK_CLUSTERS, end % CHUNK_CLUSTERS, s);
    first = end + 1;
  }
}
