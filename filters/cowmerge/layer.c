/* SPDX-License-Identifier: BSD-3-Clause */
/* What the plugin's layer has.
 *
 * One question covers a window of many clusters, since most of its cost
 * does not depend on the length.  While it is under way an exclusive claim
 * on the window keeps all changes out, so that the answer is true when it
 * is entered, and stays so: every change of a cluster in this server comes
 * by this filter, which updates the map under a claim of its own.
 *
 * Invariant: the hint is set only around the call, in the thread that
 * makes it.
 *
 * Locks: the overlay's, not across the question.
 */

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>

#include <dlfcn.h>

#include "qcow2-hints.h"
#include "scope-lock.h"

#include "below.h"
#include "layer.h"

/* Clusters that are asked for together. */
#define WINDOW 1024

/* Does the plugin know the member M of the hints? */
#define KNOWN(hints, m) \
  ((hints)->size >= offsetof (struct qcow2_hints, m) + sizeof (hints)->m)

static qcow2_hints_fn *get_hints;
static bool whole_clusters;

int
layer_init (void)
{
  const struct qcow2_hints *hints;

  get_hints = (qcow2_hints_fn *) dlsym (RTLD_DEFAULT, QCOW2_HINTS_SYMBOL);
  if (get_hints == NULL) {
    nbdkit_error ("cowmerge: this filter needs nbdkit-qcow2-plugin below it, "
                  "since no other plugin can tell which clusters of an image "
                  "have to be copied before a write: use it as "
                  "\"nbdkit --filter=cowmerge qcow2 FILE\"");
    return -1;
  }
  hints = get_hints ();
  if (hints->version != QCOW2_HINTS_VERSION ||
      !KNOWN (hints, layer_extents)) {
    nbdkit_error ("cowmerge: this filter and nbdkit-qcow2-plugin are of "
                  "different versions (hints %d and %" PRIu32 "): install "
                  "both from the same release",
                  QCOW2_HINTS_VERSION, hints->version);
    return -1;
  }
  /* Set in this thread from .config_complete to .after_fork. */
  if (hints->compress) {
    nbdkit_error ("cowmerge: this filter must stand above the compress "
                  "filter, so that whole clusters reach that: put "
                  "--filter=cowmerge before --filter=compress");
    return -1;
  }
  return 0;
}

void
layer_ready (void)
{
  whole_clusters = get_hints ()->compress;
}

bool
layer_whole_clusters (void)
{
  return whole_clusters;
}

/* The extents of this layer in COUNT bytes from OFF, as far as one answer
 * goes, or all of them if FULL.  NULL if there is no answer.
 */
static struct nbdkit_extents *
ask (nbdkit_next *next, uint32_t count, uint64_t off, bool full)
{
  struct qcow2_hints *hints = get_hints ();
  struct nbdkit_extents *exts;
  int r = 0, err;

  if (full) {
    hints->layer_extents = true;
    exts = nbdkit_extents_full (next, count, off, 0, &err);
    hints->layer_extents = false;
    return exts;
  }

  exts = nbdkit_extents_new (off, off + count);
  if (exts == NULL)
    return NULL;
  hints->layer_extents = true;
  r = below_extents (next, count, off, 0, exts);
  hints->layer_extents = false;
  if (r < 0) {
    nbdkit_extents_free (exts);
    return NULL;
  }
  return exts;
}

enum presence_state
layer_state_written (void)
{
  /* It may be compressed, and then the next write has to copy it. */
  return whole_clusters ? PRESENCE_UNKNOWN : PRESENCE_PRESENT;
}

int
layer_ask (nbdkit_next *next, uint64_t size, struct layer_facts *facts)
{
  /* Two places, since a filter may remember what it was last told. */
  const uint64_t offs[] = { 0, size - 1 };
  struct qcow2_hints *hints = get_hints ();
  struct nbdkit_extents *exts;

  facts->disk = facts->grain = 0;
  if (!KNOWN (hints, layer_grain))
    return 0;
  hints->layer_disk = hints->layer_grain = 0;
  for (unsigned i = 0; i < 2 && hints->layer_disk == 0; ++i) {
    exts = ask (next, 1, offs[i], false);
    nbdkit_extents_free (exts);
  }
  facts->disk = hints->layer_disk;
  facts->grain = hints->layer_grain;
  if (facts->disk == 0) {
    nbdkit_error ("cowmerge: the plugin cannot be asked which disk this is, "
                  "since a filter below cowmerge answers block status "
                  "requests by itself, or lets them fail: put it above "
                  "(before) cowmerge");
    return -EINVAL;
  }
  return 0;
}

static enum presence_state
state_of (uint32_t type)
{
  if (!(type & NBDKIT_EXTENT_HOLE))
    return PRESENCE_PRESENT;
  return type & NBDKIT_EXTENT_ZERO ? PRESENCE_ABSENT_ZERO : PRESENCE_ABSENT;
}

/* Of two parts of a cluster: a write to one that is present in part is
 * left to the plugin.
 */
static enum presence_state
join (enum presence_state a, enum presence_state b)
{
  if (a == PRESENCE_UNKNOWN)
    return b;
  return a < b ? a : b;
}

/* Enter clusters FIRST..LAST, but only those not known already. */
static void
enter_locked (struct overlay *ov, uint64_t first, uint64_t last,
              enum presence_state s)
{
  for (uint64_t idx = first; idx <= last; ++idx)
    if (presence_get_locked (&ov->presence, idx) == PRESENCE_UNKNOWN)
      presence_set_locked (&ov->presence, idx, idx, s);
}

/* Go through extents that start at the start of a cluster.  Clusters which
 * they cover whole are entered.
 */
static void
enter_extents_locked (struct overlay *ov, const struct nbdkit_extents *exts)
{
  const size_t nr = nbdkit_extents_count (exts);
  enum presence_state part = PRESENCE_UNKNOWN;

  for (size_t i = 0; i < nr; ++i) {
    struct nbdkit_extent e = nbdkit_get_extent (exts, i);
    enum presence_state s = state_of (e.type);
    uint64_t end = e.offset + e.length;
    uint64_t first = e.offset >> ov->shift;
    uint64_t last = (end - 1) >> ov->shift;     /* END's cluster, if inside */
    bool ends_inside = (end & (ov->cluster - 1)) != 0 && end != ov->size;

    if ((e.offset & (ov->cluster - 1)) != 0) {
      part = join (part, s);
      if (first == last && ends_inside)
        continue;
      enter_locked (ov, first, first, part);
      first++;
    }
    part = PRESENCE_UNKNOWN;
    if (ends_inside) {
      if (first <= last)
        part = s;
      if (last == 0)
        continue;
      last--;
    }
    if (first <= last)
      enter_locked (ov, first, last, s);
  }
}

/* What to ask for: the clusters around IDX in its window of which nothing is
 * known.  Not more, because what is claimed stops.
 */
static void
range_locked (const struct overlay *ov, uint64_t idx,
              uint64_t *first, uint64_t *last)
{
  const uint64_t start = idx / WINDOW * WINDOW;
  uint64_t end = start + WINDOW;

  if (end > ov->nr_clusters)
    end = ov->nr_clusters;
  for (*first = idx; *first > start; --*first)
    if (presence_get_locked (&ov->presence, *first - 1) != PRESENCE_UNKNOWN)
      break;
  for (*last = idx; *last + 1 < end; ++*last)
    if (presence_get_locked (&ov->presence, *last + 1) != PRESENCE_UNKNOWN)
      break;
}

void
layer_learn (struct overlay *ov, nbdkit_next *next, uint64_t idx)
{
  uint64_t first, last, off;
  struct nbdkit_extents *exts;
  struct claim claim;
  bool known;

  {
    OVERLAY_LOCK (ov);
    range_locked (ov, idx, &first, &last);
    claim_begin_locked (&ov->claims, &ov->lock, &claim, first, last, true);
    ov->counts.queries++;
    known = presence_get_locked (&ov->presence, idx) != PRESENCE_UNKNOWN;
  }

  /* The answer may end before IDX; then IDX is asked for alone. */
  for (int full = 0; full <= 1 && !known; ++full) {
    if (full)
      first = last = idx;
    off = first << ov->shift;
    exts = ask (next, ((last - first) << ov->shift) +
                      overlay_cluster_len (ov, last), off, full);
    OVERLAY_LOCK (ov);
    if (exts)
      enter_extents_locked (ov, exts);
    nbdkit_extents_free (exts);
    known = presence_get_locked (&ov->presence, idx) != PRESENCE_UNKNOWN;
  }

  OVERLAY_LOCK (ov);
  /* No answer: leave this cluster to the plugin. */
  if (!known)
    presence_set_locked (&ov->presence, idx, idx, PRESENCE_PRESENT);
  claim_end_locked (&ov->claims, &claim);
}
