/* SPDX-License-Identifier: BSD-3-Clause */
/* The names by which an image refers to another file: backing file, data
 * file.  Pure: parses, opens nothing.
 */

#ifndef REFERENCE_H
#define REFERENCE_H

struct reference {
  char *path;                   /* a file: path, usable as it is; or */
  char *uri;                    /* an image on an NBD server */
  char *format;                 /* "qcow2", "raw", ... ; NULL = not said */
};

/* Understand NAME, as found in the file FROM:
 *   path           relative to the directory of FROM
 *   file:path      the same
 *   nbd://, nbds://, nbd+unix://, nbds+unix:// URI, nbd:host:port...,
 *                  nbd:unix:path...
 *   json:{...}     objects or dotted keys of the drivers file,
 *                  host_device, nbd, and of raw and qcow2 on top of them
 * FROM may be NULL: relative names stay as they are.
 *
 * 0; -EINVAL or -ENOTSUP (another protocol or driver) after a message that
 * names FROM and NAME; -ENOMEM.  On failure REF holds nothing.
 */
extern int reference_parse (const char *from, const char *name,
                            struct reference *ref)
  __attribute__ ((__warn_unused_result__));

extern void reference_free (struct reference *ref);

#endif /* REFERENCE_H */
