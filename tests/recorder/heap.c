/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded into a server: how much memory is in use, as the C library
 * counts it, once a second.
 *
 * HEAP_LOG names a file; each line has two numbers: bytes that malloc has
 * given out, and bytes that it has from the kernel.  The size of the process
 * tells less: memory that was freed stays in the arenas, of which there are
 * several, and small blocks in use keep them in pieces.
 *
 * Locks: none of its own.  A sanitizer's malloc is not seen.
 */

#include <config.h>

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *
watch (void *log)
{
  for (;;) {
    const struct mallinfo2 m = mallinfo2 ();

    fprintf (log, "%zu %zu\n", m.uordblks + m.hblkhd, m.arena + m.hblkhd);
    fflush (log);
    sleep (1);
  }
  return NULL;
}

__attribute__ ((__constructor__)) static void
begin (void)
{
  const char *name = getenv ("HEAP_LOG");
  FILE *log = name ? fopen (name, "ae") : NULL;
  pthread_t thread;

  if (log && pthread_create (&thread, NULL, watch, log) == 0)
    pthread_detach (thread);
}
