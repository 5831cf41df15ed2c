/* SPDX-License-Identifier: BSD-3-Clause */
/* nbdkit's log functions, for fuzzers: millions of messages must not be
 * shown, but they are formatted, since a bad argument is a finding too.
 */

#include <config.h>

#include <stdarg.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "fuzz.h"

static unsigned errors;

unsigned
fuzz_log_errors (void)
{
  unsigned n = errors;

  errors = 0;
  return n;
}

__attribute__ ((format (printf, 2, 0))) static void
message (const char *kind, const char *fmt, va_list args)
{
  static char text[8192];

  vsnprintf (text, sizeof text, fmt, args);
  if (getenv ("QCOW2_TEST_DEBUG"))
    fprintf (stderr, "%s: %s\n", kind, text);
}

__attribute__ ((format (printf, 1, 2))) void
nbdkit_error (const char *fmt, ...)
{
  va_list args;

  errors++;
  va_start (args, fmt);
  message ("error", fmt, args);
  va_end (args);
}

__attribute__ ((format (printf, 1, 2))) void
nbdkit_debug (const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  message ("debug", fmt, args);
  va_end (args);
}
