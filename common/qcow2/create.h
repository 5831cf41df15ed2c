/* SPDX-License-Identifier: BSD-3-Clause */
/* Create an image: the rules, the layout and the defaults of qemu-img. */

#ifndef CREATE_H
#define CREATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "codec.h"

enum create_preallocation {
  CREATE_PREALLOC_OFF,
  CREATE_PREALLOC_METADATA,     /* tables; data clusters stay sparse */
  CREATE_PREALLOC_FALLOC,       /* and space for data clusters */
  CREATE_PREALLOC_FULL,         /* and zeroes written to them */
};

/* Strings and buffers are the caller's. */
struct create_options {
  unsigned version;             /* 2 (compat=0.10) or 3 (compat=1.1) */
  uint64_t size;                /* virtual size, bytes; rounded up to 512 */
  uint64_t cluster_size;        /* bytes */
  unsigned refcount_bits;
  enum codec_type compression_type;
  bool extended_l2;
  bool lazy_refcounts;
  enum create_preallocation preallocation;
  const char *backing_file;     /* NULL = none; stored as it is */
  const char *backing_format;
  const char *data_file;        /* NULL = none; stored as it is */
  bool data_file_raw;           /* implies preallocation of metadata */
  const uint8_t *crypto_header; /* LUKS header with its key material; NULL =
                                   not encrypted */
  size_t crypto_len;
};

/* QEMU's defaults: version 3, 64k clusters, 16 bit refcounts, zlib. */
extern void create_defaults (struct create_options *o);

/* Can an image NAME be made with these options?  Touches nothing, so it
 * can be called before the file is made.  0; -EINVAL, or -EFBIG if the size
 * is beyond what the cluster size allows, with one message in the words of
 * the plugin's parameters.
 */
extern int create_check (const char *name, const struct create_options *o)
  __attribute__ ((__warn_unused_result__));

/* Make the image in FILE, which was created empty, or is of fixed size
 * (what is on it is overwritten).  DATA is the external data file, opened
 * writable, if o->data_file is set, else NULL; it gets the size of the
 * disk, and what it contains stays.
 *
 * The header is written last, after a barrier: before that the file is not
 * an image (I5).  It is stable on return.
 *
 * 0; what create_check returns; -ENOSPC, -EIO, -ENOMEM (with a message).
 * After an error the caller removes the file.
 */
extern int create_image (struct backend *file, struct backend *data,
                         const struct create_options *o)
  __attribute__ ((__warn_unused_result__));

#endif /* CREATE_H */
