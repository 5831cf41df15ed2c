/* SPDX-License-Identifier: BSD-3-Clause */
/* Reference check of an image, for the crash tests: simple, and written
 * independently of the engine, of which it uses only the offsets in
 * ondisk.h.
 */

#ifndef CRASH_CHECK_H
#define CRASH_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"

struct crash_check {
  uint64_t errors;              /* refcount too low, entries that lie */
  uint64_t leaks;               /* clusters with too high a refcount */
  bool dirty, corrupt;          /* bits of the header */
  uint64_t file_clusters;       /* length of the file */
  uint64_t used_clusters;       /* referenced or counted, the highest + 1 */
};

/* Walk the whole image.  With VERBOSE each finding is printed on stderr.
 * 0, or -EINVAL if it is so broken that there is nothing to walk.
 */
extern int crash_check (struct backend *b, bool verbose,
                        struct crash_check *result)
  __attribute__ ((__warn_unused_result__));

#endif /* CRASH_CHECK_H */
