/* SPDX-License-Identifier: BSD-3-Clause */
/* Which tables are named, and how often.
 *
 * Names are collected as they come.  When there is no more room they are
 * sorted, and what was named several times becomes one; only if that does
 * not help is there more room.  So memory follows what is named, not how
 * often.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "table-list.h"

#define MIN_ROOM ((size_t) 4096)
#define MAX_ROOM ((size_t) 1 << 26)

static int
compare_names (const void *a, const void *b)
{
  const struct table_name *x = a, *y = b;

  return x->off < y->off ? -1 : x->off > y->off;
}

void
table_list_settle (struct table_list *l)
{
  size_t i, n = 0;

  if (l->nr == 0)
    return;
  qsort (l->names, l->nr, sizeof *l->names, compare_names);
  for (i = 1; i < l->nr; ++i) {
    if (l->names[i].off == l->names[n].off)
      l->names[n].times += l->names[i].times;
    else
      l->names[++n] = l->names[i];
  }
  l->nr = n + 1;
}

static int
make_room (struct table_list *l)
{
  struct table_name *names = NULL;
  size_t room = l->room ? l->room * 2 : MIN_ROOM;

  table_list_settle (l);
  if (l->room > 0 && l->nr <= l->room / 2)
    return 0;
  if (room <= MAX_ROOM)
    names = reallocarray (l->names, room, sizeof *names);
  if (names == NULL) {
    nbdkit_error ("the image has too many L2 tables to be walked with the "
                  "memory there is");
    return -ENOMEM;
  }
  l->names = names;
  l->room = room;
  return 0;
}

int
table_list_add (struct table_list *l, uint64_t off, uint64_t times)
{
  int r;

  if (l->nr > 0 && l->names[l->nr - 1].off == off) {
    l->names[l->nr - 1].times += times;
    return 0;
  }
  if (l->nr == l->room) {
    r = make_room (l);
    if (r < 0)
      return r;
  }
  l->names[l->nr++] = (struct table_name) { .off = off, .times = times };
  return 0;
}

void
table_list_free (struct table_list *l)
{
  free (l->names);
  *l = (struct table_list) { 0 };
}
