/* SPDX-License-Identifier: BSD-3-Clause */
/* One opened image with what it needs from outside: a data file and a
 * backing file, both in memory.
 */

#ifndef FUZZ_DISK_H
#define FUZZ_DISK_H

#include "check.h"
#include "core.h"
#include "fuzz.h"

struct fuzz_disk {
  struct core *core;
  struct ccache *ccache;
  struct backend *raw;          /* backing file; NULL = none */
  struct backing backing;
};

#define FUZZ_DISK_WRITABLE      1
#define FUZZ_DISK_DISCARD       2
#define FUZZ_DISK_DETECT_ZEROES 4
#define FUZZ_DISK_ADMIN         8       /* core_open_admin */

/* DATA is the external data file, used if the image wants one; lent.  What
 * core_open returns.
 */
extern int fuzz_disk_open (struct backend *file, struct backend *data,
                           unsigned flags, struct fuzz_disk *disk)
  __attribute__ ((__warn_unused_result__));

/* Close after core_finish, whose result is returned. */
extern int fuzz_disk_close (struct fuzz_disk *disk);

/* Our own check of the image in FILE.  False: it cannot be opened, or not
 * be checked to the end.  BUDGET: bytes that the check may read, since a
 * check may take as long as the references are many.
 */
extern bool fuzz_disk_check (struct backend *file, uint64_t budget,
                             struct check_result *res);

/* Is a host cluster of CORE, which is open for writing, used for two things
 * in the same layer?  True also if that takes too long to find out.
 * (fuzz-alias.c)
 */
extern bool fuzz_disk_is_aliased (const struct core *core);

#endif /* FUZZ_DISK_H */
