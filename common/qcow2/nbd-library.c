/* SPDX-License-Identifier: BSD-3-Clause */
/* libnbd, loaded when it is needed.  See nbd-library.h for why.
 *
 * Invariant: the functions are set all or not at all, once.
 *
 * Locks: none but that of pthread_once.
 */

#include <config.h>

#ifdef HAVE_LIBNBD

#include <pthread.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "library.h"
#include "nbd-library.h"

/* The one whose header this was compiled with. */
#define SONAME "libnbd.so.0"

struct nbd_library libnbd;

static int result;
static char why[320];

static void
load (void)
{
#define ENTRY(name) { "nbd_" #name, &libnbd.name },
  static const struct library_function functions[] = {
    NBD_LIBRARY_FUNCTIONS (ENTRY)
#ifdef LIBNBD_HAVE_NBD_SET_PREAD_INITIALIZE
    ENTRY (set_pread_initialize)
#endif
  };
#undef ENTRY

  result = library_load (SONAME, functions,
                         sizeof functions / sizeof functions[0],
                         why, sizeof why);
}

int
nbd_library_load (void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;

  pthread_once (&once, load);
  if (result < 0)
    nbdkit_error ("an image on an NBD server: %s", why);
  return result;
}

#endif /* HAVE_LIBNBD */
