/* SPDX-License-Identifier: BSD-3-Clause */
/* Hold a mutex until the end of the enclosing block.
 *
 * For the filters, whose few locks never nest.  The engine has ranked
 * locks of its own (common/qcow2/locks.h).
 */

#ifndef SCOPE_LOCK_H
#define SCOPE_LOCK_H

#include <pthread.h>

static inline pthread_mutex_t *
scope_lock_enter (pthread_mutex_t *m)
{
  pthread_mutex_lock (m);
  return m;
}

static inline void
scope_lock_leave (pthread_mutex_t **m)
{
  pthread_mutex_unlock (*m);
}

#define SCOPE_LOCK_CAT2(a, b) a##b
#define SCOPE_LOCK_CAT(a, b) SCOPE_LOCK_CAT2 (a, b)
#define SCOPE_LOCK(m)                                           \
  __attribute__ ((__cleanup__ (scope_lock_leave), __unused__))  \
  pthread_mutex_t *SCOPE_LOCK_CAT (scope_lock_, __COUNTER__) =  \
    scope_lock_enter (m)

#endif /* SCOPE_LOCK_H */
