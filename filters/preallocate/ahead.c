/* SPDX-License-Identifier: BSD-3-Clause */
/* See ahead.h.
 *
 * Why data is safe, and reads never change:
 *
 * P1  A range is zeroed only while no write overlaps it (ranges.h), and
 *     only where the plugin said, after the last of them had ended, that
 *     it reads as zeroes.
 * P2  Nothing below the frontier is allocated ahead, and each write moves
 *     the frontier to its end before it begins.  So P1 does not depend on
 *     plugins and filters below whose extents lag behind their writes
 *     (nbdkit's cache filter in write-back mode): the frontier is kept
 *     until the server ends.
 * P3  Given back are only blocks that this filter allocated and that no
 *     request touched since (zones.h), under P1 again, and by a zero
 *     request which may trim: it reads as zeroes, while a trim promises
 *     nothing about what is read.
 *
 * A failed large step is undone at once: file systems leave allocated what
 * fitted, and the write that follows may need just that space.
 *
 * This file does not decide which plugins it is used for, and it does not
 * preallocate below the frontier.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>
#include <inttypes.h>
#include <errno.h>
#include <pthread.h>

#include <nbdkit-filter.h>

#include "scope-lock.h"
#include "ahead.h"
#include "ranges.h"
#include "zones.h"

/* One zero request.  Not larger than the largest write, since nbdkit up to
 * 1.32 emulates a larger one wrongly where the plugin has to fall back to
 * writing.
 */
#define ZERO_MAX (UINT64_C (32) << 20)

/* One question about extents, one range given back. */
#define EXTENTS_MAX (UINT64_C (1) << 30)

/* The empty end of the disk is searched for the last data in windows, and
 * not for ever, as each may be a round trip to a far server.
 */
#define SCAN_WINDOW (UINT64_C (0xfc000000))
#define SCAN_MAX 256

struct ahead {
  struct ahead *next;           /* list of all exports */
  char *exportname;
  uint64_t block, size, align;

  /* The rest is protected by ranges_lock. */
  unsigned refs;                /* connections */
  uint64_t used;                /* end of the last data, or write begun */
  uint64_t frontier;            /* >= used, and end of the last step */
  uint64_t step;                /* size of the next step, 0: no more steps */
  bool scanned;                 /* used includes the plugin's data */
  bool probed;                  /* zero requests are known to allocate */
  bool useless;                 /* they are known to write zeroes */
  bool stepping;                /* somebody makes a step */
  bool giving;                  /* somebody gives back */
  pthread_cond_t given;         /* broadcast when giving becomes false */
  struct zones zones;           /* allocated ahead, not touched since */
};

static struct ahead *aheads;    /* protected by ranges_lock */

bool
ahead_is_nospace (int err)
{
  return err == ENOSPC || err == EDQUOT || err == EFBIG;
}

static uint64_t
round_down (uint64_t i, uint64_t align)
{
  return i & ~(align - 1);
}

static uint64_t
round_up (uint64_t i, uint64_t align)
{
  return round_down (i + align - 1, align);
}

static uint64_t
min (uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

static uint64_t
max (uint64_t a, uint64_t b)
{
  return a > b ? a : b;
}

static void
free_ahead (struct ahead *a)
{
  zones_free (&a->zones);
  pthread_cond_destroy (&a->given);
  free (a->exportname);
  free (a);
}

static struct ahead *
new_ahead (const char *exportname, uint64_t block,
           uint64_t size, uint64_t align)
{
  struct ahead *a = calloc (1, sizeof *a);

  if (a == NULL)
    return NULL;
  a->exportname = strdup (exportname);
  if (a->exportname == NULL) {
    free (a);
    return NULL;
  }
  a->block = block;
  a->size = size;
  a->align = max (align, block);
  pthread_cond_init (&a->given, NULL);
  zones_init (&a->zones, block);
  return a;
}

struct ahead *
ahead_get (const char *exportname, uint64_t block,
           uint64_t size, uint64_t align)
{
  SCOPE_LOCK (&ranges_lock);
  struct ahead *a;

  for (a = aheads; a != NULL; a = a->next)
    if (strcmp (a->exportname, exportname) == 0)
      break;
  if (a == NULL) {
    a = new_ahead (exportname, block, size, align);
    if (a == NULL) {
      nbdkit_error ("preallocate: malloc: %m");
      return NULL;
    }
    a->next = aheads;
    aheads = a;
  }
  if (a->refs++ == 0 && !a->useless)
    a->step = size;             /* a new try after a full disk */
  return a;
}

void
ahead_unload (void)
{
  while (aheads) {
    struct ahead *a = aheads;

    aheads = a->next;
    free_ahead (a);
  }
}

/* Send a zero request with FLAGS for each part of [OFF, END) whose extent
 * has all of the bits in TYPE.  0 or -errno.
 */
static int
zero_extents (nbdkit_next *next, uint64_t off, uint64_t end,
              uint32_t type, uint32_t flags)
{
  while (off < end) {
    const uint64_t stop = min (end, off + EXTENTS_MAX);
    int err = 0, r = 0;
    struct nbdkit_extents *exts =
      nbdkit_extents_full (next, stop - off, off, 0, &err);

    if (exts == NULL)
      return -(err ? err : EIO);

    for (size_t i = 0; r == 0 && i < nbdkit_extents_count (exts); ++i) {
      const struct nbdkit_extent e = nbdkit_get_extent (exts, i);
      const uint64_t e_end = min (e.offset + e.length, stop);
      uint64_t o = e.offset;

      if ((e.type & type) != type)
        continue;
      for (; r == 0 && o < e_end; o += ZERO_MAX)
        r = next->zero (next, min (ZERO_MAX, e_end - o), o, flags, &err);
    }
    nbdkit_extents_free (exts);
    if (r == -1)
      return -(err ? err : EIO);
    off = stop;
  }
  return 0;
}

/* Does all of [OFF, END), at most EXTENTS_MAX bytes, read as zeroes? */
static bool
is_all_zero (nbdkit_next *next, uint64_t off, uint64_t end)
{
  int err = 0;
  bool r = true;
  struct nbdkit_extents *exts =
    nbdkit_extents_full (next, end - off, off, 0, &err);

  if (exts == NULL)
    return false;
  for (size_t i = 0; i < nbdkit_extents_count (exts); ++i)
    if (!(nbdkit_get_extent (exts, i).type & NBDKIT_EXTENT_ZERO))
      r = false;
  nbdkit_extents_free (exts);
  return r;
}

/* The end of the last extent that is not a zero hole, or 0 if that is too
 * far away to be found.  0 or -errno.
 */
static int
scan (nbdkit_next *next, uint64_t disk_size, uint64_t *last)
{
  const uint32_t hole = NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO;
  uint64_t end = disk_size;

  *last = 0;
  for (unsigned n = 0; end > 0 && *last == 0 && n < SCAN_MAX; ++n) {
    const uint64_t off = end > SCAN_WINDOW ? end - SCAN_WINDOW : 0;
    int err = 0;
    struct nbdkit_extents *exts =
      nbdkit_extents_full (next, end - off, off, 0, &err);

    if (exts == NULL)
      return -(err ? err : EIO);
    for (size_t i = nbdkit_extents_count (exts); i > 0; --i) {
      const struct nbdkit_extent e = nbdkit_get_extent (exts, i-1);

      if ((e.type & hole) != hole) {
        *last = e.offset + e.length;
        break;
      }
    }
    nbdkit_extents_free (exts);
    end = off;
  }
  return 0;
}

/* Zero [OFF, END) ahead, with nobody writing there; no other zeroing
 * overlaps it.  The lock is given up meanwhile.  0 or -errno; then nothing
 * is left allocated by this call.
 */
static int
zero_ahead_locked (struct ahead *a, nbdkit_next *next,
                   uint64_t off, uint64_t end)
{
  bool probe = !a->probed, cheap = true;
  struct range r;
  int ret;

  ranges_zero_begin_locked (&r, off, end);
  pthread_mutex_unlock (&ranges_lock);

  /* Zeroes that were written are no hole any more. */
  if (probe)
    probe = is_all_zero (next, off, end);
  ret = zero_extents (next, off, end,
                      NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO, 0);
  if (ret == 0 && probe)
    cheap = is_all_zero (next, off, end);

  pthread_mutex_lock (&ranges_lock);
  if (ret == 0 && cheap) {
    if (probe)
      a->probed = true;
    ret = zones_add (&a->zones, off, end);
  }
  else if (ret == 0)
    ret = -EOPNOTSUPP;
  if (ret < 0) {
    zones_remove (&a->zones, off, end);
    pthread_mutex_unlock (&ranges_lock);
    if (zero_extents (next, off, end,
                      NBDKIT_EXTENT_ZERO, NBDKIT_FLAG_MAY_TRIM) < 0)
      nbdkit_debug ("preallocate: could not give back %" PRIu64 "-%" PRIu64,
                    off, end);
    pthread_mutex_lock (&ranges_lock);
  }
  ranges_end_locked (&r);
  return ret;
}

/* What a failed step means for the next one. */
static void
step_failed_locked (struct ahead *a, int err, bool large)
{
  if (err == EOPNOTSUPP) {
    nbdkit_debug ("preallocate: zeroes are written here, not allocated: "
                  "export \"%s\" is not preallocated", a->exportname);
    a->useless = true;
    a->step = 0;
    return;
  }
  nbdkit_debug ("preallocate: export \"%s\": %s step: %s", a->exportname,
                large ? "large" : "small", strerror (err));
  if (ahead_is_nospace (err) && large)
    a->step = a->step / 4 < a->align ? 0 : a->step / 4;
  else
    a->step = 0;
}

/* Find the frontier, once.  The lock is given up meanwhile. */
static void
scan_locked (struct ahead *a, nbdkit_next *next, uint64_t disk_size)
{
  uint64_t last;
  int r;

  pthread_mutex_unlock (&ranges_lock);
  r = scan (next, disk_size, &last);
  pthread_mutex_lock (&ranges_lock);
  if (r < 0)
    step_failed_locked (a, -r, false);
  else {
    nbdkit_debug ("preallocate: export \"%s\": data ends at %" PRIu64,
                  a->exportname, last);
    a->scanned = true;
    a->used = max (a->used, last);
    a->frontier = max (a->frontier, last);
  }
}

/* What to zero ahead of a write of [OFF, END), which ends beyond the
 * frontier: [*FROM, *NEED) if there is little space, else [*FROM, *TO).
 * Empty if there is nothing to zero before the end of the disk.
 */
static void
plan_locked (const struct ahead *a, uint64_t off, uint64_t end,
             uint64_t disk_size, uint64_t *from, uint64_t *need, uint64_t *to)
{
  /* The first step is no more than the write, to see what it does. */
  const uint64_t align = a->probed ? a->align : a->block;

  disk_size = round_down (disk_size, a->block);
  *from = max (round_down (off, align), round_up (a->frontier, a->block));
  *need = min (round_up (end, align), disk_size);
  *to = *need;
  if (a->probed)
    *to = a->step < disk_size - *need
      ? min (round_up (*need + a->step, align), disk_size) : disk_size;
}

/* Make a step for a write of [OFF, END), which ends beyond the frontier.
 * Afterwards the frontier is at or beyond its end, or a->step is 0, or it
 * is worth another try.
 */
static void
step_locked (struct ahead *a, nbdkit_next *next, uint64_t off, uint64_t end)
{
  const int64_t disk_size = next->get_size (next);
  uint64_t from, need, to;
  int r = 0;

  if (disk_size < 0) {
    step_failed_locked (a, EIO, false);
    return;
  }
  if (!a->scanned)
    scan_locked (a, next, disk_size);
  if (a->step == 0 || end <= a->frontier)
    return;

  /* The wait is for the zeroing of another export.  The frontier may have
   * moved meanwhile.
   */
  plan_locked (a, off, end, disk_size, &from, &need, &to);
  if (ranges_wait_locked (from, to))
    return;

  if (from < to) {
    r = zero_ahead_locked (a, next, from, to);
    if (r < 0)
      step_failed_locked (a, -r, to > need);
    else if (to > need)
      a->step = min (a->step * 2, a->size);
  }
  if (r < 0 && from < need && need < to) {
    to = need;
    r = zero_ahead_locked (a, next, from, to);
    if (r < 0)
      step_failed_locked (a, -r, false);
  }
  a->frontier = max (a->frontier, r < 0 ? end : max (to, end));
}

void
ahead_begin (struct ahead *a, nbdkit_next *next,
             uint64_t off, uint64_t end, bool step, struct range *r)
{
  SCOPE_LOCK (&ranges_lock);

  for (;;) {
    if (ranges_wait_locked (off, end))
      continue;
    if (!step || end <= a->frontier || a->step == 0 || a->stepping ||
        a->giving)
      break;
    a->stepping = true;
    step_locked (a, next, off, end);
    a->stepping = false;
  }

  zones_remove (&a->zones, off, end);
  a->used = max (a->used, end);
  a->frontier = max (a->frontier, end);
  ranges_write_begin_locked (r, off, end);
}

void
ahead_end (struct range *r)
{
  SCOPE_LOCK (&ranges_lock);
  ranges_end_locked (r);
}

/* Give back the run [OFF, END), which was removed from the zones.  The
 * lock is given up meanwhile.
 */
static void
give_back_run_locked (nbdkit_next *next, uint64_t off, uint64_t end)
{
  struct range r;
  int ret;

  ranges_zero_begin_locked (&r, off, end);
  pthread_mutex_unlock (&ranges_lock);
  ret = zero_extents (next, off, end,
                      NBDKIT_EXTENT_ZERO, NBDKIT_FLAG_MAY_TRIM);
  if (ret < 0)
    nbdkit_debug ("preallocate: giving back %" PRIu64 "-%" PRIu64 ": %s",
                  off, end, strerror (-ret));
  pthread_mutex_lock (&ranges_lock);
  ranges_end_locked (&r);
}

/* Give back all.  True if there was something. */
static bool
give_back_locked (struct ahead *a, nbdkit_next *next)
{
  uint64_t from = 0, off, end;
  bool any = false;

  a->giving = true;
  while (zones_next (&a->zones, from, EXTENTS_MAX, &off, &end)) {
    /* The run may be another one after the wait. */
    if (ranges_wait_locked (off, end))
      continue;
    any = true;
    zones_remove (&a->zones, off, end);
    give_back_run_locked (next, off, end);
    from = end;
  }
  a->giving = false;
  a->frontier = a->used;
  pthread_cond_broadcast (&a->given);
  return any;
}

bool
ahead_give_back (struct ahead *a, nbdkit_next *next)
{
  SCOPE_LOCK (&ranges_lock);

  a->step = 0;

  /* Another request has the same trouble: it gives back for both. */
  if (a->giving) {
    while (a->giving)
      pthread_cond_wait (&a->given, &ranges_lock);
    return true;
  }
  return give_back_locked (a, next);
}

void
ahead_put (struct ahead *a, nbdkit_next *next)
{
  SCOPE_LOCK (&ranges_lock);

  if (--a->refs == 0 && next != NULL && !a->giving)
    give_back_locked (a, next);
}
