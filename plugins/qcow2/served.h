/* SPDX-License-Identifier: BSD-3-Clause */
/* The images that are being served, shared by all connections. */

#ifndef SERVED_H
#define SERVED_H

#include <stdbool.h>

#include "image.h"

struct served;

/* Before the server forks.  One image: make it (create=true), open it, and
 * so find what is wrong with it.  READONLY: nothing may be written.  0 or
 * -errno after a message.
 */
extern int served_start (bool readonly)
  __attribute__ ((__warn_unused_result__));

/* The guest disk of the export NAME for a new connection.  *S is a
 * reference, to be given back by served_put: with dir= the last one closes
 * the image.  0 or -errno after a message.
 */
extern int served_get (const char *name, struct served **s, struct io **io)
  __attribute__ ((__warn_unused_result__));
extern void served_put (struct served *s);

extern struct image *served_image (struct served *s);

/* When the server stops: close everything.  Messages say what was lost. */
extern void served_stop (void);

/* Call FN for each export, until it does not return 0. */
extern int served_list (int (*fn) (void *opaque, const char *name,
                                   const char *description),
                        void *opaque);

#endif /* SERVED_H */
