/* SPDX-License-Identifier: BSD-3-Clause */
/* Libraries that are loaded when they are needed.
 *
 * Linked in the ordinary way, a library is mapped, relocated and paid for
 * by page faults each time that the server starts: about 0.1 ms for each,
 * a fiftieth of the time from start to first reply.  Most images need none.
 */

#ifndef LIBRARY_H
#define LIBRARY_H

#include <stddef.h>

/* Where the address of one function goes: a pointer to the pointer. */
struct library_function {
  const char *name;
  void *pointer;
};

/* Load the library SONAME and set the pointers of its NR functions, all or
 * none.  It stays loaded, since libraries keep state per thread.  Callers
 * see to it that this happens once (pthread_once).
 *
 * 0; -ENOTSUP: it cannot be loaded, and one sentence in WHY (of WHY_LEN
 * bytes) says which and why.
 */
extern int library_load (const char *soname,
                         const struct library_function *functions, size_t nr,
                         char *why, size_t why_len)
  __attribute__ ((__warn_unused_result__));

#endif /* LIBRARY_H */
