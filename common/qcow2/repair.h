/* SPDX-License-Identifier: BSD-3-Clause */
/* Make an image consistent again. */

#ifndef REPAIR_H
#define REPAIR_H

#include "backend.h"
#include "check-walk.h"
#include "check.h"

enum repair_mode {
  REPAIR_LEAKS,                 /* only give back what is in use for nothing,
                                   if the references can be trusted */
  REPAIR_ALL,
};

/* Check the image in FILE, which is writable and not opened otherwise, and
 * repair it as MODE says.  Problems found before the repair are reported to
 * OPTS (which may be NULL).  RES is how the image is afterwards, with what
 * was fixed; if nothing is wrong any more, the dirty and corrupt bits are
 * clear.
 *
 * Power may fail at any time: the image is then at worst as broken as before,
 * and still marked.
 *
 * 0: done, and RES tells what is left; -EINVAL, -EIO, -ENOSPC, -ENOMEM...
 * (with a message).
 */
extern int repair_run (struct backend *file, enum repair_mode mode,
                       const struct check_options *opts,
                       struct check_result *res)
  __attribute__ ((__warn_unused_result__));

/* Replace refcount table and blocks by new ones, made from the references
 * (repair-rebuild.c).  CORE must be closed afterwards.
 */
extern int repair_rebuild (struct core *core)
  __attribute__ ((__warn_unused_result__));

#endif /* REPAIR_H */
