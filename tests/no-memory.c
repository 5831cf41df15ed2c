/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded into a server: one allocation by one shared object fails.
 *
 * NO_MEMORY_IN is a part of the object's file name, NO_MEMORY_AFTER says how
 * many of its allocations succeed before the one that fails, and
 * NO_MEMORY_SIZE, if there, that those of fewer bytes do not count.  A line
 * on stderr tells that one has failed, and where.
 *
 * What others allocate for the object (nbdkit's lists of extents, the C
 * library's threads) does not count, since the return address is not in it;
 * nor do calls that the compiler made into jumps.
 *
 * Locks: none.
 */

#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
  void *(*malloc) (size_t);
  void *(*calloc) (size_t, size_t);
  void *(*realloc) (void *, size_t);
  void *(*reallocarray) (void *, size_t, size_t);
  int (*posix_memalign) (void **, size_t, size_t);
  void *(*aligned_alloc) (size_t, size_t);
  char *(*strdup) (const char *);
  char *(*strndup) (const char *, size_t);
} real;

static const char *object;      /* NULL: nothing fails */
static size_t min_size;
static _Atomic long countdown;  /* 0: the next one fails */

/* dlsym may want memory itself.  It can do without. */
static bool resolving;

#define RESOLVE(fn) real.fn = (__typeof__ (real.fn)) dlsym (RTLD_NEXT, #fn)

/* The first allocation comes before there are threads. */
static bool
resolve (void)
{
  if (real.strndup)
    return true;
  if (resolving)
    return false;
  resolving = true;
  RESOLVE (malloc);
  RESOLVE (calloc);
  RESOLVE (realloc);
  RESOLVE (reallocarray);
  RESOLVE (posix_memalign);
  RESOLVE (aligned_alloc);
  RESOLVE (strdup);
  RESOLVE (strndup);
  resolving = false;
  return true;
}

/* Objects to be tested are loaded later. */
static void __attribute__ ((constructor))
start (void)
{
  const char *after = getenv ("NO_MEMORY_AFTER");
  const char *size = getenv ("NO_MEMORY_SIZE");

  countdown = after ? atol (after) : -1;
  min_size = size ? atol (size) : 0;
  if (resolve ())
    object = getenv ("NO_MEMORY_IN");
}

static void
tell (const char *fn, size_t size, const Dl_info *info, const void *caller)
{
  char line[512];
  const int n =
    snprintf (line, sizeof line, "no-memory: %s of %zu at %s+0x%lx\n", fn,
              size, info->dli_fname,
              (unsigned long) ((uintptr_t) caller -
                               (uintptr_t) info->dli_fbase));

  if (n > 0 && write (STDERR_FILENO, line, n) != n)
    abort ();
}

static bool
fails (const char *fn, size_t size, const void *caller)
{
  Dl_info info;

  if (!resolve ())
    return true;
  if (object == NULL || countdown < 0 || size < min_size ||
      dladdr (caller, &info) == 0 || strstr (info.dli_fname, object) == NULL)
    return false;
  if (countdown-- != 0)
    return false;
  tell (fn, size, &info, caller);
  return true;
}

#define INSTEAD(type, name, parameters, args, size)             \
  type                                                          \
  name parameters                                               \
  {                                                             \
    if (!fails (#name, size, __builtin_return_address (0)))     \
      return real.name args;                                    \
    errno = ENOMEM;                                             \
    return NULL;                                                \
  }

INSTEAD (void *, malloc, (size_t n), (n), n)
INSTEAD (void *, calloc, (size_t n, size_t size), (n, size), n * size)
INSTEAD (void *, realloc, (void *p, size_t n), (p, n), n)
INSTEAD (void *, reallocarray, (void *p, size_t n, size_t size),
         (p, n, size), n * size)
INSTEAD (void *, aligned_alloc, (size_t align, size_t n), (align, n), n)
INSTEAD (char *, strdup, (const char *s), (s), strlen (s) + 1)
INSTEAD (char *, strndup, (const char *s, size_t n), (s, n), n)

int
posix_memalign (void **p, size_t align, size_t n)
{
  if (fails ("posix_memalign", n, __builtin_return_address (0)))
    return ENOMEM;
  return real.posix_memalign (p, align, n);
}
