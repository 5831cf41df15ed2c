/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend in memory, for tests.  Sparse; a copy costs next to nothing, and
 * shares what neither side has changed since.
 */

#ifndef BACKEND_MEM_H
#define BACKEND_MEM_H

#include <stdint.h>

#include "backend.h"

/* An empty file.  NAME is for messages.  -ENOMEM. */
extern int backend_mem_create (const char *name, struct backend **b)
  __attribute__ ((__warn_unused_result__));

/* A file with the content that B has now.  B must be a memory backend. */
extern int backend_mem_clone (struct backend *b, struct backend **copy)
  __attribute__ ((__warn_unused_result__));

/* Copy the file at PATH into memory; write the content of B to PATH
 * (replaced; holes stay holes), for tools that want files.  -errno, logged.
 */
extern int backend_mem_load (const char *path, struct backend **b)
  __attribute__ ((__warn_unused_result__));
extern int backend_mem_save (struct backend *b, const char *path)
  __attribute__ ((__warn_unused_result__));

/* Largest length; more is -ENOSPC.  To play a full disk. */
extern void backend_mem_limit (struct backend *b, uint64_t max_len);

#endif /* BACKEND_MEM_H */
