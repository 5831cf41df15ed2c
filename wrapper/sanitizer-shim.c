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
 * - The thread sanitizer can lose a signal that comes just after a fork, as
 *   nbdkit's SIGTERM to the server does when the command of --run is quick.
 *   So nbdkit, which waits for the server to end, says it more than once.
 */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define REPEAT_US 200000
#define REPEATS 25

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

static int
has_ended (pid_t pid)
{
  siginfo_t info = { .si_pid = 0 };

  return waitid (P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == -1 ||
    info.si_pid != 0;
}

int
kill (pid_t pid, int sig)
{
  int (*real) (pid_t, int) = (int (*) (pid_t, int)) dlsym (RTLD_NEXT, "kill");
  int r = real (pid, sig);
  int i;

  for (i = 0; sig == SIGTERM && i < REPEATS && !has_ended (pid); ++i) {
    usleep (REPEAT_US);
    if (!has_ended (pid))
      real (pid, sig);
  }
  return r;
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
