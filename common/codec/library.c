/* SPDX-License-Identifier: BSD-3-Clause */
/* Loading a library when it is needed.  See library.h for why.
 *
 * Invariant: the pointers of a library are set all or not at all.
 *
 * Locks: none but the loader's.  Never unloads.
 */

#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "library.h"

int
library_load (const char *soname, const struct library_function *functions,
              size_t nr, char *why, size_t why_len)
{
  void *dl = dlopen (soname, RTLD_NOW | RTLD_LOCAL);
  const char *error;
  void *address;
  size_t i;

  for (i = 0; dl && i < nr; i++) {
    if (dlsym (dl, functions[i].name) == NULL)
      break;
  }
  if (dl == NULL || i < nr) {
    error = dlerror ();
    snprintf (why, why_len, "the library %s cannot be loaded (install the "
              "package that has it): %s", soname,
              error ? error : "out of memory");
    if (dl)
      dlclose (dl);
    return -ENOTSUP;
  }
  for (i = 0; i < nr; i++) {
    address = dlsym (dl, functions[i].name);
    memcpy (functions[i].pointer, &address, sizeof address);
  }
  return 0;
}
