/* SPDX-License-Identifier: BSD-3-Clause */
/* libnbd, loaded when it is needed.  See nbd-library.h for why.
 *
 * Invariant: the functions are set all or not at all, once.
 *
 * Locks: none but that of pthread_once.  Does not unload: libnbd keeps
 * state per thread.
 */

#include <config.h>

#ifdef HAVE_LIBNBD

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "nbd-library.h"

/* The one whose header this was compiled with. */
#define SONAME "libnbd.so.0"

struct nbd_library libnbd;

static bool is_loaded;
static char load_error[256] = "out of memory";

static void
load (void)
{
  void *dl = dlopen (SONAME, RTLD_NOW | RTLD_LOCAL);
  bool ok = dl != NULL;
  const char *why;

#define LOAD(name) \
  if (ok) { \
    libnbd.name = (__typeof__ (libnbd.name)) dlsym (dl, "nbd_" #name); \
    ok = libnbd.name != NULL; \
  }
  NBD_LIBRARY_FUNCTIONS (LOAD)
#ifdef LIBNBD_HAVE_NBD_SET_PREAD_INITIALIZE
  LOAD (set_pread_initialize)
#endif
#undef LOAD
  is_loaded = ok;
  if (!ok && (why = dlerror ()) != NULL)
    snprintf (load_error, sizeof load_error, "%s", why);
}

int
nbd_library_load (void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;

  pthread_once (&once, load);
  if (is_loaded)
    return 0;
  nbdkit_error ("an image on an NBD server needs libnbd, which cannot be "
                "loaded (install the package that has " SONAME "): %s",
                load_error);
  return -ENOTSUP;
}

#endif /* HAVE_LIBNBD */
