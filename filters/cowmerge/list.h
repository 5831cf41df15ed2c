/* SPDX-License-Identifier: BSD-3-Clause */
/* Doubly linked lists whose links are inside their elements.
 *
 * A list is a struct list that links to itself when empty.  Whoever owns
 * the list says which lock protects it.
 */

#ifndef LIST_H
#define LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
  struct list *prev, *next;
};

static inline void
list_init (struct list *l)
{
  l->prev = l->next = l;
}

static inline bool
list_empty (const struct list *l)
{
  return l->next == l;
}

/* Add E as the last element of L. */
static inline void
list_append (struct list *l, struct list *e)
{
  e->prev = l->prev;
  e->next = l;
  l->prev->next = e;
  l->prev = e;
}

/* Take E out of its list.  E then is an empty list by itself, so that
 * removing it twice does no harm.
 */
static inline void
list_remove (struct list *e)
{
  e->prev->next = e->next;
  e->next->prev = e->prev;
  list_init (e);
}

/* The struct of type T which has E as its member M. */
#define list_entry(e, T, m) ((T *) ((char *) (e) - offsetof (T, m)))

#define list_for_each(e, l) \
  for (struct list *e = (l)->next; e != (l); e = e->next)

#endif /* LIST_H */
