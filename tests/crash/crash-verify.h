/* SPDX-License-Identifier: BSD-3-Clause */
/* What must be true of an image that is left, whatever happened.  All
 * functions that return false have said why on stderr.
 */

#ifndef CRASH_VERIFY_H
#define CRASH_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "crash-check.h"
#include "crash-run.h"

/* No errors in the metadata, except in refcounts that are marked dirty; at
 * most MAX_LEAKS leaks.
 */
extern bool crash_verify_metadata (struct backend *image, uint64_t max_leaks,
                                   struct crash_check *check);

/* The disk has a content that run->model allows, as it is set; the snapshots
 * have what they always had.
 */
extern bool crash_verify_content (struct crash_run *run, struct core *core);

/* All of the above for IMAGE; and for some, by their running number NR: the
 * image can be written to and closed, and qemu-img check is content.
 */
extern bool crash_verify_image (struct crash_run *run,
                                const struct crash_image *image,
                                uint64_t max_leaks, uint64_t nr);

/* qemu-img check has no complaint, and if DIRTY, can repair it.  Aborts if
 * not.
 */
extern void crash_verify_qemu (const struct crash_run *run,
                               struct backend *image,
                               bool leaks_allowed, bool dirty);

#endif /* CRASH_VERIFY_H */
