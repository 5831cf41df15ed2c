/* SPDX-License-Identifier: BSD-3-Clause */
/* Loaded into nbdkit together with the run time of a sanitizer.
 *
 * - nbdkit unloads modules before it exits.  Leaks are looked for later,
 *   and could then not be attributed to anybody: so keep the modules.
 * - Programs that nbdkit starts (--run) were not built for the sanitizer,
 *   and some crash with it: so they do not inherit LD_PRELOAD.
 * - p11-kit (gnutls, nbdkit) calls newlocale before the sanitizer is ready.
 *   The first malloc makes it ready, which is in newlocale, and there it
 *   asks for a message (dlerror), for which the C library takes and drops a
 *   lock that newlocale has.  The lock is broken from then on, and the server
 *   hangs in p11-kit's exit handler when threads have used it meanwhile.
 *   So the first malloc comes before.
 */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <locale.h>
#include <stdlib.h>

int
dlclose (void *handle)
{
  (void) handle;
  return 0;
}

locale_t
newlocale (int mask, const char *name, locale_t base)
{
  locale_t (*real) (int, const char *, locale_t);
  void *volatile p = malloc (1);

  free (p);
  real = (locale_t (*) (int, const char *, locale_t))
    dlsym (RTLD_NEXT, "newlocale");
  return real ? real (mask, name, base) : (locale_t) 0;
}

__attribute__ ((constructor)) static void
restore_preload (void)
{
  const char *preload = getenv ("NBDKIT_QCOW2_PRELOAD");

  if (preload && *preload)
    setenv ("LD_PRELOAD", preload, 1);
  else
    unsetenv ("LD_PRELOAD");
}
