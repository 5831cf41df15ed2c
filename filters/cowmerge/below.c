/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests to the layer below, with errors as -errno.
 *
 * Invariant: a failure is never 0, whatever the layer below left in the
 * error.  No locks, no state.
 */

#include <errno.h>

#include "below.h"

static int
result (int r, int err)
{
  if (r != -1)
    return 0;
  return err > 0 ? -err : -EIO;
}

int
below_pread (nbdkit_next *next, void *buf, uint32_t count, uint64_t off)
{
  int err = 0;
  int r = next->pread (next, buf, count, off, 0, &err);

  return result (r, err);
}

int
below_pwrite (nbdkit_next *next, const void *buf, uint32_t count,
              uint64_t off, uint32_t flags)
{
  int err = 0;
  int r = next->pwrite (next, buf, count, off, flags, &err);

  return result (r, err);
}

int
below_flush (nbdkit_next *next)
{
  int err = 0;
  int r = next->flush (next, 0, &err);

  return result (r, err);
}

int
below_zero (nbdkit_next *next, uint32_t count, uint64_t off, uint32_t flags)
{
  int err = 0;
  int r = next->zero (next, count, off, flags, &err);

  return result (r, err);
}

int
below_trim (nbdkit_next *next, uint32_t count, uint64_t off, uint32_t flags)
{
  int err = 0;
  int r = next->trim (next, count, off, flags, &err);

  return result (r, err);
}

int
below_extents (nbdkit_next *next, uint32_t count, uint64_t off,
               uint32_t flags, struct nbdkit_extents *extents)
{
  int err = 0;
  int r = next->extents (next, count, off, flags, extents, &err);

  return result (r, err);
}
