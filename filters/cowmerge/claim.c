/* SPDX-License-Identifier: BSD-3-Clause */
/* Claims on ranges of clusters.
 *
 * There are about as many claims as there are requests in flight, so a
 * list that is searched from its start beats any clever structure.
 *
 * Invariant: of two claims in the list that overlap, and of which one is
 * exclusive, only the earlier is granted.
 *
 * Locks: the caller's; claim.h says when it is released.
 */

#include "claim.h"

void
claim_init (struct claims *cs)
{
  list_init (&cs->list);
  pthread_cond_init (&cs->cond, NULL);
  cs->waiters = 0;
}

void
claim_destroy (struct claims *cs)
{
  pthread_cond_destroy (&cs->cond);
}

/* Does a claim before END in the list (not END itself) stand in the way? */
static bool
conflict (const struct claims *cs, const struct list *end,
          uint64_t first, uint64_t last, bool exclusive)
{
  for (const struct list *e = cs->list.next; e != end; e = e->next) {
    const struct claim *c = list_entry (e, const struct claim, link);

    if (c->first <= last && first <= c->last && (exclusive || c->exclusive))
      return true;
  }
  return false;
}

bool
claim_begin_locked (struct claims *cs, pthread_mutex_t *lock,
                    struct claim *c, uint64_t first, uint64_t last,
                    bool exclusive)
{
  bool waited = false;

  c->first = first;
  c->last = last;
  c->exclusive = exclusive;
  list_append (&cs->list, &c->link);

  while (conflict (cs, &c->link, first, last, exclusive)) {
    waited = true;
    claim_wait_locked (cs, lock);
  }
  return waited;
}

bool
claim_try_locked (struct claims *cs, struct claim *c, uint64_t idx)
{
  if (conflict (cs, &cs->list, idx, idx, true))
    return false;
  c->first = c->last = idx;
  c->exclusive = true;
  list_append (&cs->list, &c->link);
  return true;
}

void
claim_end_locked (struct claims *cs, struct claim *c)
{
  list_remove (&c->link);
  claim_wake_locked (cs);
}

void
claim_wait_locked (struct claims *cs, pthread_mutex_t *lock)
{
  cs->waiters++;
  pthread_cond_wait (&cs->cond, lock);
  cs->waiters--;
}

void
claim_wake_locked (struct claims *cs)
{
  if (cs->waiters > 0)
    pthread_cond_broadcast (&cs->cond);
}
