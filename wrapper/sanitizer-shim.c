/* SPDX-License-Identifier: BSD-3-Clause */
/* Loaded into nbdkit together with the run time of a sanitizer.
 *
 * - nbdkit unloads modules before it exits.  Leaks are looked for later,
 *   and could then not be attributed to anybody: so keep the modules.
 * - Programs that nbdkit starts (--run) were not built for the sanitizer,
 *   and some crash with it: so they do not inherit LD_PRELOAD.
 */

#include <stdlib.h>

extern int dlclose (void *handle);

int
dlclose (void *handle)
{
  (void) handle;
  return 0;
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
