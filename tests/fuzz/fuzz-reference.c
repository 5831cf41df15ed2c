/* SPDX-License-Identifier: BSD-3-Clause */
/* Names of backing and data files: the name of the file that has it, a zero
 * byte, then the name.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "reference.h"

/* As long as an image can have it, and some. */
#define MAX_NAME 2048

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  const uint8_t *zero = memchr (data, 0, size);
  struct reference ref;
  char *from, *name;
  int r;

  if (zero == NULL)
    zero = data;
  from = strndup ((const char *) data, zero - data);
  if (*zero == 0 && size > 0)
    ++zero;
  size -= zero - data;
  name = strndup ((const char *) zero, size < MAX_NAME ? size : MAX_NAME);
  if (from == NULL || name == NULL)
    exit (2);
  fuzz_log_errors ();
  r = reference_parse (*from ? from : NULL, name, &ref);
  if (r == 0) {
    FUZZ_CHECK ((ref.path != NULL) != (ref.uri != NULL));
    FUZZ_CHECK (ref.path == NULL || ref.path[0] != '\0');
    FUZZ_CHECK (fuzz_log_errors () == 0);
    reference_free (&ref);
  }
  else {
    FUZZ_CHECK (r == -EINVAL || r == -ENOTSUP);
    FUZZ_CHECK (fuzz_log_errors () == 1);
    FUZZ_CHECK (ref.path == NULL && ref.uri == NULL && ref.format == NULL);
  }
  free (from);
  free (name);
  return 0;
}
