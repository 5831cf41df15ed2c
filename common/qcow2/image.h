/* SPDX-License-Identifier: BSD-3-Clause */
/* An image with everything that it needs: its file, its data file, its
 * backing chain, its locks.  What the plugin serves.
 */

#ifndef IMAGE_H
#define IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ccache.h"
#include "check.h"
#include "core.h"
#include "io.h"

struct image;

enum image_repair {
  IMAGE_REPAIR_NONE,            /* but a dirty image is repaired anyway when
                                   it is opened for writing */
  IMAGE_REPAIR_LEAKS,
  IMAGE_REPAIR_ALL,
};

struct image_options {
  bool writable;
  bool lock;                    /* QEMU-compatible image locking */
  bool external_deny;           /* refuse backing and data files */
  bool discard;
  bool detect_zeroes;
  uint64_t metadata_cache;      /* bytes, for the chain together */
  struct ccache *ccache;        /* lent; shared by all layers */
  const char *backing_format;   /* of a backing file whose image does not
                                   record it; NULL = none */
  const char *data_file;        /* instead of the recorded name; NULL = it */
  const char *passphrase;       /* of an encrypted image; NULL = none */
  enum image_repair repair;     /* of the image itself, not of its chain */
  const struct check_options *check;    /* reports of repairs; may be NULL */
};

/* Open the image NAME: a path, or with URI an NBD URI.  Everything is
 * opened and checked here, so that errors come before the first client.
 * OPTS are needed only during the call, apart from the ccache.
 *
 * 0, or -errno after one message that names the file, the field and what
 * to do.
 */
extern int image_open (const char *name, bool uri,
                       const struct image_options *opts,
                       struct image **image)
  __attribute__ ((__warn_unused_result__));

/* The same on a backend that is open; for tests.  FILE is owned by the
 * image once this succeeds.
 */
extern int image_open_on (struct backend *file,
                          const struct image_options *opts,
                          struct image **image)
  __attribute__ ((__warn_unused_result__));

/* The active guest disk. */
extern struct io *image_io (struct image *image);

/* The layer itself, for admin code and for listing snapshots. */
extern struct core *image_core (struct image *image);

/* The guest disk of an internal snapshot, by ID or name: opened at the
 * first call, closed with the image.  Any thread may call.  -ENOENT, with
 * a message.
 */
extern int image_snapshot (struct image *image, const char *id_or_name,
                           struct io **io)
  __attribute__ ((__warn_unused_result__));

/* Make everything stable, close and free.  No request is being served.
 * The result is what a last flush says; the image is freed in any case.
 */
extern int image_close (struct image *image)
  __attribute__ ((__warn_unused_result__));

#endif /* IMAGE_H */
