/* SPDX-License-Identifier: BSD-3-Clause */
/* What a guest disk may contain: see the header.
 *
 * Sets of contents are computed for one moment from the whole list of
 * requests; only sectors that some request touched have a set of their own,
 * the others have what was there at first.
 *
 * Requests may be added by several threads at once; all else is for one.
 * No I/O.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash-model.h"

struct event {
  struct crash_change change;   /* DATA owned, never NULL */
  bool is_flush;
};

struct set {
  uint8_t (*contents)[CRASH_SECTOR];
  size_t nr, cap;               /* 0 = what was there at first */
};

struct crash_model {
  pthread_mutex_t lock;         /* the list of events, while it grows */
  uint64_t size;
  uint8_t *first;               /* rounded up to sectors with zeroes */
  struct event *events;
  size_t nr_events, cap_events;
  struct set *sets;             /* one for each sector */
  size_t nr_sectors;
};

static void *
must (void *p)
{
  if (p == NULL) {
    fprintf (stderr, "crash-model: out of memory\n");
    abort ();
  }
  return p;
}

struct crash_model *
crash_model_create (const uint8_t *data, uint64_t size)
{
  struct crash_model *m = must (calloc (1, sizeof *m));

  pthread_mutex_init (&m->lock, NULL);
  m->size = size;
  m->nr_sectors = (size + CRASH_SECTOR - 1) / CRASH_SECTOR;
  m->first = must (calloc (m->nr_sectors + 1, CRASH_SECTOR));
  m->sets = must (calloc (m->nr_sectors + 1, sizeof *m->sets));
  memcpy (m->first, data, size);
  return m;
}

void
crash_model_free (struct crash_model *m)
{
  size_t i;

  for (i = 0; i < m->nr_events; ++i)
    free ((void *) m->events[i].change.data);
  for (i = 0; i < m->nr_sectors; ++i)
    free (m->sets[i].contents);
  free (m->events);
  free (m->sets);
  free (m->first);
  pthread_mutex_destroy (&m->lock);
  free (m);
}

static void
add_event (struct crash_model *m, const struct event *e)
{
  pthread_mutex_lock (&m->lock);
  if (m->nr_events == m->cap_events) {
    m->cap_events = m->cap_events * 2 + 64;
    m->events = must (realloc (m->events,
                               m->cap_events * sizeof *m->events));
  }
  m->events[m->nr_events++] = *e;
  pthread_mutex_unlock (&m->lock);
}

void
crash_model_change (struct crash_model *m, const struct crash_change *change)
{
  struct event e = { .change = *change };
  uint8_t *data = must (calloc (1, change->len + 1));

  if (change->data)
    memcpy (data, change->data, change->len);
  e.change.data = data;
  add_event (m, &e);
}

void
crash_model_flush (struct crash_model *m, uint64_t start, uint64_t end,
                   bool ok)
{
  const struct event e = {
    .is_flush = true, .change = { .start = start, .end = end, .ok = ok },
  };

  add_event (m, &e);
}

/* ---------------------------------------------------------------------- */

/* CONTENT is not one of the elements, which may move. */
static void
set_add (struct set *s, const uint8_t *content)
{
  size_t i;

  for (i = 0; i < s->nr; ++i)
    if (memcmp (s->contents[i], content, CRASH_SECTOR) == 0)
      return;
  if (s->nr == s->cap) {
    s->cap = s->cap * 2 + 2;
    s->contents = must (realloc (s->contents, s->cap * CRASH_SECTOR));
  }
  memcpy (s->contents[s->nr++], content, CRASH_SECTOR);
}

/* Bytes [IN, IN + LEN) of the sector become DATA, for certain or maybe. */
static void
change_sector (struct crash_model *m, size_t sector, const uint8_t *data,
               size_t in, size_t len, bool certain)
{
  struct set *s = &m->sets[sector];
  uint8_t content[CRASH_SECTOR];
  size_t i, nr;

  if (certain && len == CRASH_SECTOR) {
    s->nr = 0;
    set_add (s, data);
    return;
  }
  if (s->nr == 0)
    set_add (s, m->first + sector * CRASH_SECTOR);
  nr = s->nr;
  if (certain)
    for (i = 0; i < nr; ++i)
      memcpy (s->contents[i] + in, data, len);
  else
    for (i = 0; i < nr; ++i) {
      memcpy (content, s->contents[i], CRASH_SECTOR);
      memcpy (content + in, data, len);
      set_add (s, content);
    }
}

static void
change_range (struct crash_model *m, const struct crash_change *c,
              bool certain)
{
  uint64_t off = c->off, end = c->off + c->len;

  while (off < end) {
    size_t in = off % CRASH_SECTOR;
    size_t len = CRASH_SECTOR - in < end - off ? CRASH_SECTOR - in
                 : end - off;

    change_sector (m, off / CRASH_SECTOR, c->data + (off - c->off), in, len,
                   certain);
    off += len;
  }
}

static void
forget_sets (struct crash_model *m)
{
  size_t i;

  for (i = 0; i < m->nr_sectors; ++i)
    m->sets[i].nr = 0;
}

void
crash_model_at (struct crash_model *m, uint64_t t)
{
  uint64_t covered = 0;         /* what had ended before is certain */
  size_t i;

  forget_sets (m);
  for (i = 0; i < m->nr_events; ++i) {
    const struct crash_change *c = &m->events[i].change;

    if (m->events[i].is_flush && c->ok && c->end <= t && c->start > covered)
      covered = c->start;
  }
  for (i = 0; i < m->nr_events; ++i) {
    const struct crash_change *c = &m->events[i].change;
    bool certain = c->ok && (c->end < covered || (c->fua && c->end <= t));

    if (!m->events[i].is_flush && c->start <= t)
      change_range (m, c, certain);
  }
}

void
crash_model_now (struct crash_model *m)
{
  size_t i;

  forget_sets (m);
  for (i = 0; i < m->nr_events; ++i)
    if (!m->events[i].is_flush)
      change_range (m, &m->events[i].change, m->events[i].change.ok);
}

static void
complain (const struct crash_model *m, size_t sector, const uint8_t *found)
{
  const struct set *s = &m->sets[sector];
  size_t i;

  fprintf (stderr, "guest offset 0x%zx: found %02x %02x ... %02x, "
           "allowed are", sector * CRASH_SECTOR, found[0], found[1],
           found[CRASH_SECTOR - 1]);
  for (i = 0; i < (s->nr ? s->nr : 1); ++i) {
    const uint8_t *p = s->nr ? s->contents[i]
                       : m->first + sector * CRASH_SECTOR;

    fprintf (stderr, " [%02x %02x ... %02x]", p[0], p[1],
             p[CRASH_SECTOR - 1]);
  }
  fprintf (stderr, "\n");
}

static bool
allows_sector (const struct crash_model *m, size_t sector,
               const uint8_t *found)
{
  const struct set *s = &m->sets[sector];
  size_t i;

  if (s->nr == 0)
    return memcmp (found, m->first + sector * CRASH_SECTOR,
                   CRASH_SECTOR) == 0;
  for (i = 0; i < s->nr; ++i)
    if (memcmp (found, s->contents[i], CRASH_SECTOR) == 0)
      return true;
  return false;
}

bool
crash_model_allows (struct crash_model *m, const uint8_t *data)
{
  uint8_t tail[CRASH_SECTOR] = { 0 };
  size_t i;

  for (i = 0; i < m->nr_sectors; ++i) {
    const uint8_t *found = data + i * CRASH_SECTOR;

    if (m->size - i * CRASH_SECTOR < CRASH_SECTOR) {
      memcpy (tail, found, m->size - i * CRASH_SECTOR);
      found = tail;
    }
    if (!allows_sector (m, i, found)) {
      complain (m, i, found);
      return false;
    }
  }
  return true;
}

void
crash_model_dump (const struct crash_model *m, uint64_t t)
{
  size_t i;

  for (i = 0; i < m->nr_events && m->events[i].change.start <= t; ++i) {
    const struct crash_change *c = &m->events[i].change;

    fprintf (stderr, "request: %6" PRIu64 " to %6" PRIu64 " ", c->start,
             c->end);
    if (m->events[i].is_flush)
      fprintf (stderr, "flush");
    else
      fprintf (stderr, "change 0x%" PRIx64 " + 0x%" PRIx64 " %02x%s",
               c->off, c->len, c->len ? c->data[0] : 0,
               c->fua ? " fua" : "");
    fprintf (stderr, "%s\n", c->ok ? "" : " failed");
  }
}

size_t
crash_model_open_sectors (const struct crash_model *m)
{
  size_t i, n = 0;

  for (i = 0; i < m->nr_sectors; ++i)
    n += m->sets[i].nr > 1;
  return n;
}
