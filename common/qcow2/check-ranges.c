/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranges that may overlap, as disjoint ones: sort where they begin and end,
 * and walk along.
 *
 * Locks: none; one thread.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "check-ranges.h"

int
check_ranges_add (struct check_ranges *r, uint64_t start, uint64_t end)
{
  struct check_edge *edges;
  size_t room;

  if (start >= end)
    return 0;
  if (r->nr + 2 > r->room) {
    room = r->room ? 2 * r->room : 64;
    edges = reallocarray (r->edges, room, sizeof *edges);
    if (edges == NULL) {
      nbdkit_error ("out of memory for the check");
      return -ENOMEM;
    }
    r->edges = edges;
    r->room = room;
  }
  r->edges[r->nr++] = (struct check_edge) { .at = start, .change = 1 };
  r->edges[r->nr++] = (struct check_edge) { .at = end, .change = -1 };
  return 0;
}

static int
compare_edges (const void *a, const void *b)
{
  const struct check_edge *x = a, *y = b;

  return x->at < y->at ? -1 : x->at > y->at;
}

int
check_ranges_each (struct check_ranges *r, check_range_fn *fn, void *opaque)
{
  uint64_t times = 0;
  size_t i;
  int ret = 0;

  if (r->nr > 0)
    qsort (r->edges, r->nr, sizeof *r->edges, compare_edges);
  for (i = 0; ret == 0 && i + 1 < r->nr; ++i) {
    times += r->edges[i].change;
    if (times > 0 && r->edges[i].at < r->edges[i + 1].at)
      ret = fn (opaque, r->edges[i].at, r->edges[i + 1].at, times);
  }
  return ret;
}

void
check_ranges_free (struct check_ranges *r)
{
  free (r->edges);
  *r = (struct check_ranges) { 0 };
}
