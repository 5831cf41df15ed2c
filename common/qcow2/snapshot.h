/* SPDX-License-Identifier: BSD-3-Clause */
/* Internal snapshots: create, apply, delete.  Spec: "Snapshots".
 *
 * For an image that is open for writing and not being served.  Each
 * operation is atomic: a power loss leaves the image with it or without
 * it.  Refcounts are then too high, never too low, and COPIED flags may
 * disagree with them.  In version 3 the dirty bit is set meanwhile, so
 * that whoever opens the image next repairs that; version 2 has no such
 * bit, and repair=all is for the user to ask for.
 *
 * All return 0, or -errno after one message: -ENOTSUP (external data file;
 * version 2 and another disk size), -ENOENT (no such snapshot), -EEXIST,
 * -EINVAL, -ERANGE (refcount width), -ENOSPC, -EIO (broken image, or a
 * failed write, after which the image takes no more changes), -ENOMEM.
 */

#ifndef SNAPSHOT_H
#define SNAPSHOT_H

#include <time.h>

#include "core.h"

/* Keep the present content of the disk as a new snapshot NAME.  WHEN is
 * recorded as its time.  Neither NAME nor an ID of that name may exist.
 */
extern int snapshot_create (struct core *core, const char *name,
                            const struct timespec *when)
  __attribute__ ((__warn_unused_result__));

/* Make the content, and the size, of the disk that of the snapshot, which
 * stays.  In persistent bitmaps that follow changes, all is changed.
 */
extern int snapshot_apply (struct core *core, const char *id_or_name)
  __attribute__ ((__warn_unused_result__));

extern int snapshot_delete (struct core *core, const char *id_or_name)
  __attribute__ ((__warn_unused_result__));

#endif /* SNAPSHOT_H */
