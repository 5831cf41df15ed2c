/* SPDX-License-Identifier: BSD-3-Clause */
/* nbdkit's log functions, for programs that link the engine without a
 * server: unit tests, the crash simulator, fuzzers.
 *
 * Errors go to stderr.  Debug messages do only if the environment variable
 * QCOW2_TEST_DEBUG is set.  A test that counts or compares messages defines
 * functions of its own, which take precedence.
 *
 * Threads: any may call these; each message is written in one piece.
 */

#include <config.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

__attribute__ ((format (printf, 2, 0))) static void
print_message (const char *kind, const char *fmt, va_list args)
{
  flockfile (stderr);
  fprintf (stderr, "%s: ", kind);
  vfprintf (stderr, fmt, args);
  fprintf (stderr, "\n");
  funlockfile (stderr);
}

__attribute__ ((weak, format (printf, 1, 2))) void
nbdkit_error (const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  print_message ("error", fmt, args);
  va_end (args);
}

__attribute__ ((weak, format (printf, 1, 2))) void
nbdkit_debug (const char *fmt, ...)
{
  va_list args;

  if (getenv ("QCOW2_TEST_DEBUG") == NULL)
    return;
  va_start (args, fmt);
  print_message ("debug", fmt, args);
  va_end (args);
}
