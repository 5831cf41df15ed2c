/* SPDX-License-Identifier: BSD-3-Clause */
/* For unit tests that compare with qemu-img: a folder, commands in it, and
 * the last message of the engine.
 */

#ifndef TEST_QEMU_H
#define TEST_QEMU_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "test-errors.h"

static char dir[] = "/tmp/test-qcow2-XXXXXX";

#define OK(expr)                                                \
  do {                                                          \
    int r_ = (expr);                                            \
    if (r_ != 0) {                                              \
      fprintf (stderr, "%s:%d: %s: %d \"%s\"\n",                \
               __FILE__, __LINE__, #expr, r_, last_error);      \
      abort ();                                                 \
    }                                                           \
  } while (0)

__attribute__ ((__format__ (__printf__, 1, 2))) static void
run (const char *fmt, ...)
{
  char command[4096];
  va_list args;
  int n = snprintf (command, sizeof command, "set -e; cd %s; ", dir);

  va_start (args, fmt);
  vsnprintf (command + n, sizeof command - n, fmt, args);
  va_end (args);
  if (system (command) != 0) {
    fprintf (stderr, "failed: %s\n", command);
    abort ();
  }
}

#endif /* TEST_QEMU_H */
