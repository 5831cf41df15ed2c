/* SPDX-License-Identifier: BSD-3-Clause */
/* What is to be done to an image before it is served: check, repair, resize,
 * internal snapshots.
 */

#ifndef JOBS_H
#define JOBS_H

#include <stdbool.h>

#include "check.h"
#include "image.h"

/* check=true: print what is wrong, change nothing, and exit as qemu-img
 * check does: 0 clean, 1 it could not be checked, 2 corrupt, 3 leaks.
 */
extern void jobs_check (const char *name, bool uri)
  __attribute__ ((__noreturn__));

/* How the repairs of an image that is being opened are reported. */
extern const struct check_options jobs_check_options;

/* snapshot-apply=, snapshot-delete=, resize=, snapshot-create=, in this
 * order, as far as they were asked for.  0 or -errno after a message.
 */
extern int jobs_run (struct image *image)
  __attribute__ ((__warn_unused_result__));

#endif /* JOBS_H */
