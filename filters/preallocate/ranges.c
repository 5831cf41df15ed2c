/* SPDX-License-Identifier: BSD-3-Clause */
/* See ranges.h.
 *
 * Nothing can wait in a circle: a write waits for zeroings only before it
 * is in the list, and a zeroing in the list waits for writes only, which
 * are in the plugin by then and end by themselves.
 *
 * The list is as long as there are requests in flight, a few dozens; it
 * is searched from one end to the other.
 */

#include <config.h>

#include <stddef.h>

#include "ranges.h"

pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;

/* Broadcast when a range leaves the list that somebody may wait for. */
static pthread_cond_t ranges_cond = PTHREAD_COND_INITIALIZER;
static unsigned ranges_waiting;

static struct range *ranges;

static bool
overlaps_locked (uint64_t off, uint64_t end, bool zeroing)
{
  for (struct range *r = ranges; r != NULL; r = r->next)
    if (r->zeroing == zeroing && r->off < end && off < r->end)
      return true;
  return false;
}

static bool
wait_locked (uint64_t off, uint64_t end, bool zeroing)
{
  bool waited = false;

  while (overlaps_locked (off, end, zeroing)) {
    waited = true;
    ranges_waiting++;
    pthread_cond_wait (&ranges_cond, &ranges_lock);
    ranges_waiting--;
  }
  return waited;
}

static void
link_locked (struct range *r, uint64_t off, uint64_t end, bool zeroing)
{
  *r = (struct range) {
    .off = off, .end = end, .zeroing = zeroing, .next = ranges
  };
  if (ranges)
    ranges->prev = r;
  ranges = r;
}

bool
ranges_wait_locked (uint64_t off, uint64_t end)
{
  return wait_locked (off, end, true);
}

void
ranges_write_begin_locked (struct range *r, uint64_t off, uint64_t end)
{
  link_locked (r, off, end, false);
}

void
ranges_zero_begin_locked (struct range *r, uint64_t off, uint64_t end)
{
  link_locked (r, off, end, true);
  wait_locked (off, end, false);
}

void
ranges_end_locked (struct range *r)
{
  if (r->prev)
    r->prev->next = r->next;
  else
    ranges = r->next;
  if (r->next)
    r->next->prev = r->prev;
  if (ranges_waiting)
    pthread_cond_broadcast (&ranges_cond);
}
