/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded into a server: thread number NO_THREAD (from 0) cannot be
 * created.
 *
 * Locks: none.
 */

#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

int
pthread_create (pthread_t *thread, const pthread_attr_t *attr,
                void *(*fn) (void *), void *arg)
{
  static _Atomic int nr;
  const char *n = getenv ("NO_THREAD");
  int (*real) (pthread_t *, const pthread_attr_t *, void *(*) (void *),
               void *);

  if (n && nr++ == atoi (n))
    return EAGAIN;
  real = (__typeof__ (real)) dlsym (RTLD_NEXT, "pthread_create");
  return real (thread, attr, fn, arg);
}
