/* SPDX-License-Identifier: BSD-3-Clause */
/* A library that is not there, one that lacks a function, one that is. */

#undef NDEBUG
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <string.h>

#include <zlib.h>

#include "library.h"

static __typeof__ (zlibVersion) *version;
static void (*other) (void);

int
main (void)
{
  const struct library_function functions[] = {
    { "zlibVersion", &version },
    { "zlib_has_no_such_function", &other },
  };
  char why[256] = "";

  assert (library_load ("libnot-there.so.0", functions, 1, why,
                        sizeof why) == -ENOTSUP);
  assert (strstr (why, "libnot-there.so.0 cannot be loaded"));
  assert (version == NULL);

  assert (library_load ("libz.so.1", functions, 2, why, sizeof why)
          == -ENOTSUP);
  assert (strstr (why, "libz.so.1 cannot be loaded"));
  assert (strstr (why, "zlib_has_no_such_function"));
  assert (version == NULL && other == NULL);

  assert (library_load ("libz.so.1", functions, 1, why, sizeof why) == 0);
  assert (version && version ()[0] == zlibVersion ()[0] && other == NULL);
  return 0;
}
