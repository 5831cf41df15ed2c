/* SPDX-License-Identifier: BSD-3-Clause */
/* Is an image consistent?  In the terms of `qemu-img check'. */

#ifndef CHECK_H
#define CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "core.h"

struct check_result {
  uint64_t corruptions;         /* data is, or may become, wrong */
  uint64_t leaks;               /* clusters that are in use for nothing */
  uint64_t check_errors;        /* what could not be checked */
  uint64_t corruptions_fixed, leaks_fixed; /* by repair.c */

  uint64_t total_clusters;      /* of the guest disk */
  uint64_t allocated_clusters;  /* of the active layer; so the next two */
  uint64_t compressed_clusters;
  uint64_t fragmented_clusters;
  uint64_t image_end_off;       /* end of the last cluster in use */
};

/* All may be NULL.  Called in the thread that checks. */
struct check_options {
  /* DONE out of TOTAL, of some unit; not more often than makes sense for a
   * terminal.  The last call says that all is done.
   */
  void (*progress) (void *opaque, uint64_t done, uint64_t total);
  /* One line, without newline, about one problem that was found. */
  void (*problem) (void *opaque, const char *text);
  void *opaque;
};

/* Check the image of CORE, which may be open read-only.  What is in the file
 * is checked: everything was committed, and no request is being served.
 * Nothing is changed.
 *
 * 0: the check is complete, and RES tells what it found.  -errno: it could
 * not be finished (-EIO; -ENOMEM, also for an image with more than 10^9
 * clusters in use); RES then has check_errors > 0, and what was found.
 *
 * Memory: about one byte for each host cluster in use.
 */
extern int check_run (struct core *core, const struct check_options *opts,
                      struct check_result *res)
  __attribute__ ((__warn_unused_result__));

/* RES in one or a few lines of text, each ended by a newline. */
extern void check_describe (const struct check_result *res,
                            char *buf, size_t len);

#endif /* CHECK_H */
