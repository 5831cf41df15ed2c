/* SPDX-License-Identifier: BSD-3-Clause */
/* For unit tests that look at the messages of the engine: how many there
 * were, and the last one.
 */

#ifndef TEST_ERRORS_H
#define TEST_ERRORS_H

#include <stdarg.h>
#include <stdio.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

static unsigned nr_errors;
static char last_error[2048];

__attribute__ ((__format__ (__printf__, 1, 2))) void
nbdkit_error (const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  vsnprintf (last_error, sizeof last_error, fmt, args);
  va_end (args);
  nr_errors++;
}

#endif /* TEST_ERRORS_H */
