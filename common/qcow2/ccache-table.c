/* SPDX-License-Identifier: BSD-3-Clause */
/* See ccache-table.h.  No I/O, no waiting. */

#include <config.h>

#include <stdlib.h>

#include "ccache-table.h"

void
ccache_table_free_list (struct ccache_entry *list)
{
  struct ccache_entry *e;

  while ((e = list) != NULL) {
    list = e->next;
    free (e->data);
    free (e);
  }
}

size_t
ccache_table_bucket (const struct ccache *cc,
                     uint64_t owner, uint64_t host_off)
{
  uint64_t h = (host_off >> REGION_BITS) + owner * 0x632be59bd9b4e019;

  h *= 0x9e3779b97f4a7c15;
  return (h >> 32) & (cc->nr_buckets - 1);
}

struct ccache_entry *
ccache_table_find_locked (struct ccache *cc, const struct ccache_key *key)
{
  struct ccache_entry *e =
    cc->buckets[ccache_table_bucket (cc, key->owner, key->host_off)];

  while (e && (e->key.host_off != key->host_off ||
               e->key.owner != key->owner))
    e = e->next;
  return e;
}

static void
lru_remove_locked (struct ccache *cc, struct ccache_entry *e)
{
  *(e->newer ? &e->newer->older : &cc->newest) = e->older;
  *(e->older ? &e->older->newer : &cc->oldest) = e->newer;
  e->in_lru = false;
}

void
ccache_table_touch_locked (struct ccache *cc, struct ccache_entry *e)
{
  if (cc->newest == e)
    return;
  if (e->in_lru)
    lru_remove_locked (cc, e);
  e->newer = NULL;
  e->older = cc->newest;
  *(cc->newest ? &cc->newest->newer : &cc->oldest) = e;
  cc->newest = e;
  e->in_lru = true;
}

void
ccache_table_add_locked (struct ccache *cc, struct ccache_entry *e)
{
  struct ccache_entry **bucket =
    &cc->buckets[ccache_table_bucket (cc, e->key.owner, e->key.host_off)];

  e->next = *bucket;
  *bucket = e;
  e->in_table = true;
  e->refs++;
}

void
ccache_table_remove_locked (struct ccache *cc, struct ccache_entry *e)
{
  struct ccache_entry **p =
    &cc->buckets[ccache_table_bucket (cc, e->key.owner, e->key.host_off)];

  while (*p != e)
    p = &(*p)->next;
  *p = e->next;
  e->next = NULL;
  e->in_table = false;
  if (e->in_lru)
    lru_remove_locked (cc, e);
}

void
ccache_table_forget_locked (struct ccache *cc, struct ccache_entry *e,
                            struct ccache_entry **garbage)
{
  ccache_table_remove_locked (cc, e);
  if (--e->refs == 0) {
    cc->stats.used -= ccache_table_entry_size (e->capacity);
    e->next = *garbage;
    *garbage = e;
  }
}

void
ccache_table_release (struct ccache *cc, struct ccache_entry *e)
{
  if (atomic_fetch_sub (&e->refs, 1) > 1)
    return;
  {
    MUTEX_SCOPE (&cc->lock);
    cc->stats.used -= ccache_table_entry_size (e->capacity);
  }
  e->next = NULL;
  ccache_table_free_list (e);
}

bool
ccache_table_reserve_locked (struct ccache *cc, size_t capacity,
                             struct ccache_entry **reuse,
                             struct ccache_entry **garbage)
{
  const uint64_t size = ccache_table_entry_size (capacity);
  struct ccache_entry *e = cc->oldest, *newer;

  *reuse = NULL;
  if (size > cc->max)
    return false;
  while (cc->stats.used > cc->max - size) {
    while (e && e->refs > 1)    /* somebody copies from it */
      e = e->newer;
    if (e == NULL)
      return false;
    newer = e->newer;
    if (e->capacity == capacity) {
      ccache_table_remove_locked (cc, e);
      *reuse = e;
      return true;
    }
    ccache_table_forget_locked (cc, e, garbage);
    e = newer;
  }
  cc->stats.used += size;
  if (cc->stats.peak < cc->stats.used)
    cc->stats.peak = cc->stats.used;
  return true;
}
