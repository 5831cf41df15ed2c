/* SPDX-License-Identifier: BSD-3-Clause */
/* Make an image consistent again.
 *
 * Steps, with a barrier after each, so that power may fail in between:
 *
 *   1. check; nothing is changed if nothing is wrong
 *   2. clear the autoclear bits of features that are not known here
 *   3. repair=all: entries that have only one right form
 *   4. refcounts: single ones in place, or the whole structure anew beside
 *      the old one; then the header names it (I5)
 *   5. COPIED flags, from refcounts that are stable now (I1: a cluster must
 *      not be taken for unshared because of a count that may be lost)
 *   6. check; if nothing is corrupt, clear the dirty and corrupt bits, and
 *      cut the file after its last cluster
 *
 * Clusters to which nothing refers are given back only if no entry is broken
 * that may have referred to them, or the user wants all repaired; their
 * content is thrown away only in the first case.
 *
 * Locks: LOCK_META where the engine's modules want it held; there is one
 * thread.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "admin.h"
#include "ondisk.h"
#include "repair.h"

#define METADATA_CACHE (UINT64_C (8) << 20)

static int
open_core (struct backend *file, struct core **core)
{
  const struct core_options opts = {
    .writable = true,
    .metadata_cache = METADATA_CACHE,
  };
  int r = core_open_admin (file, &opts, core);

  if (r < 0)
    return r;
  /* Commits write refcounts at once. */
  (*core)->commit.lazy = false;
  return 0;
}

/* Step 2. */
static int
announce (struct core *core)
{
  struct header *h = &core->header;

  if (h->version < 3 || (h->autoclear & ~AUTOCLEAR_KNOWN) == 0)
    return 0;
  h->autoclear &= AUTOCLEAR_KNOWN;
  return commit_header (&core->commit, false);
}

/* ------------------------------------------------------------------
 * Single refcounts.
 */

struct fixer {
  struct core *core;
  enum repair_mode mode;
};

static int
fix_run_locked (struct core *core, uint64_t idx, uint64_t nr,
                uint64_t actual, uint64_t expected)
{
  const unsigned bits = core->geo.cluster_bits;
  int r;

  WRITE_SCOPE (&core->meta);
  if (expected > 0)
    return refcount_set_locked (&core->refcount, idx, nr, expected);
  if (actual != 1) {
    r = refcount_set_locked (&core->refcount, idx, nr, 1);
    if (r < 0)
      return r;
  }
  alloc_defer_free_locked (&core->alloc, idx << bits, nr);
  return 0;
}

static int
fix_run (void *opaque, uint64_t idx, uint64_t nr,
         uint64_t actual, uint64_t expected)
{
  struct fixer *f = opaque;
  int r;

  if (actual < expected && f->mode != REPAIR_ALL)
    return 0;
  r = fix_run_locked (f->core, idx, nr, actual, expected);
  if (r == 0 && commit_wanted (&f->core->commit))
    r = commit_flush (&f->core->commit);
  return r < 0 ? r : 1;
}

/* Steps 3 and 4. */
static int
fix_references (struct core *core, enum repair_mode mode)
{
  struct fixer f = { .core = core, .mode = mode };
  struct check_result found, ignored;
  struct check k;
  int r;

  r = check_walk_open (&k, core, NULL, &found);
  if (r < 0)
    return r;
  k.fix_entries = mode == REPAIR_ALL;
  r = check_walk_references (&k);
  if (r == 0 && k.entries_changed)
    r = commit_barrier (&core->commit);
  if (r < 0)
    goto out;

  /* Corruptions so far are those of entries, not of refcounts. */
  if (mode == REPAIR_LEAKS && (found.corruptions || found.check_errors)) {
    nbdkit_error ("%s: entries of its tables are broken, and what seems to be "
                  "leaked may be what they referred to: nothing was given "
                  "back; use repair=all", core->name);
    goto out;
  }
  core->alloc.discard = found.corruptions == 0;

  k.res = &ignored;
  memset (&ignored, 0, sizeof ignored);
  if (!k.needs_rebuild)
    r = check_compare (&k, NULL, NULL);
  if (r < 0)
    goto out;
  if (k.needs_rebuild || ignored.check_errors) {
    if (mode == REPAIR_ALL)
      r = repair_rebuild (core);
    goto out;
  }
  r = check_compare (&k, fix_run, &f);
  if (r == 0)
    r = admin_settle (core);

 out:
  check_walk_close (&k);
  return r;
}

/* Step 5. */
static int
fix_flags (struct core *core, enum repair_mode mode,
           struct check_result *res)
{
  struct check k;
  int r;

  r = check_walk_open (&k, core, NULL, res);
  if (r < 0)
    return r;
  r = check_walk_references (&k);
  if (r == 0)
    r = check_compare (&k, NULL, NULL);
  if (r == 0)
    r = check_copied (&k, mode == REPAIR_ALL ||
                      (!res->corruptions && !res->leaks &&
                       !res->check_errors));
  check_walk_close (&k);
  if (r == 0 && res->corruptions_fixed > 0) {
    r = commit_barrier (&core->commit);
    if (r == 0)
      r = check_run (core, NULL, res);
  }
  return r;
}

/* Step 6. */
static int
mark_clean (struct core *core)
{
  struct header *h = &core->header;
  int r = 0;

  if (h->incompatible & (INCOMPAT_DIRTY | INCOMPAT_CORRUPT)) {
    h->incompatible &= ~(INCOMPAT_DIRTY | INCOMPAT_CORRUPT);
    r = commit_header (&core->commit, false);
  }
  if (r == 0) {
    alloc_trim_file (&core->alloc, true);
    r = commit_barrier (&core->commit);
  }
  return r;
}

/* ------------------------------------------------------------------ */

static bool
needs_repair (const struct core *core, const struct check_result *res)
{
  return res->corruptions || res->leaks || res->check_errors ||
    (core->header.incompatible & (INCOMPAT_DIRTY | INCOMPAT_CORRUPT));
}

int
repair_run (struct backend *file, enum repair_mode mode,
            const struct check_options *opts, struct check_result *res)
{
  struct check_result before;
  struct core *core;
  int r;

  memset (res, 0, sizeof *res);
  r = open_core (file, &core);
  if (r < 0)
    return r;
  r = check_run (core, opts, res);
  if (r < 0 || !needs_repair (core, res))
    goto out;
  before = *res;
  r = announce (core);
  if (r == 0)
    r = fix_references (core, mode);
  if (r < 0)
    goto out;

  core_close (core);
  r = open_core (file, &core);
  if (r < 0)
    return r;
  r = fix_flags (core, mode, res);
  if (r == 0 && !res->corruptions && !res->check_errors)
    r = mark_clean (core);
  res->corruptions_fixed = before.corruptions > res->corruptions ?
    before.corruptions - res->corruptions : 0;
  res->leaks_fixed = before.leaks > res->leaks ?
    before.leaks - res->leaks : 0;

 out:
  core_close (core);
  return r;
}
