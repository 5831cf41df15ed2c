/* SPDX-License-Identifier: BSD-3-Clause */
/* Guest ranges whose mapping is being changed.
 *
 * Invariant: of two ranges in the list that overlap, the one that came
 * first owns, and the other one waits.  So a wide range (a trim of the
 * whole disk) is not starved by a stream of small ones, and who waits for
 * whom cannot form a circle.
 *
 * Lock: LOCK_INFLIGHT protects the list, and is never held while waiting.
 * The list is as long as there are requests under way, so it is walked.
 */

#include <config.h>

#include <stddef.h>

#include "inflight.h"

void
inflight_init (struct inflight *f)
{
  ranked_mutex_init (&f->lock, LOCK_INFLIGHT);
  pthread_cond_init (&f->changed, NULL);
  f->owned = NULL;
}

void
inflight_destroy (struct inflight *f)
{
  pthread_cond_destroy (&f->changed);
  ranked_mutex_destroy (&f->lock);
}

/* Is a range before R in the list that overlaps it? */
static bool
must_wait_locked (const struct inflight *f, const struct inflight_range *r)
{
  const struct inflight_range *p;

  for (p = f->owned; p != r; p = p->next) {
    if (p->start < r->end && r->start < p->end)
      return true;
  }
  return false;
}

void
inflight_begin (struct inflight *f, struct inflight_range *r,
                uint64_t start, uint64_t end)
{
  struct inflight_range **tail;

  r->start = start;
  r->end = end;
  r->next = NULL;

  MUTEX_SCOPE (&f->lock);
  for (tail = &f->owned; *tail != NULL; tail = &(*tail)->next)
    ;
  *tail = r;
  while (must_wait_locked (f, r))
    ranked_mutex_wait (&f->changed, &f->lock);
}

void
inflight_shrink (struct inflight *f, struct inflight_range *r, uint64_t end)
{
  MUTEX_SCOPE (&f->lock);
  if (end < r->end) {
    r->end = end;
    pthread_cond_broadcast (&f->changed);
  }
}

void
inflight_end (struct inflight *f, struct inflight_range *r)
{
  struct inflight_range **p;

  MUTEX_SCOPE (&f->lock);
  for (p = &f->owned; *p != r; p = &(*p)->next)
    ;
  *p = r->next;
  pthread_cond_broadcast (&f->changed);
}
