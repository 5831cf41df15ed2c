/* SPDX-License-Identifier: BSD-3-Clause */
/* The image header and its extensions: bytes to struct and back.  Pure:
 * no I/O, no locks.  Spec: "Header", "Header extensions".
 */

#ifndef HEADER_H
#define HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct header_extension {       /* one that we do not interpret, kept */
  uint32_t type;
  uint32_t len;
  uint8_t *data;
};

struct header {
  uint32_t version;
  uint32_t cluster_bits;
  uint64_t size;                /* virtual size, bytes */
  uint32_t crypt_method;
  uint32_t l1_size;             /* entries */
  uint64_t l1_table_offset;
  uint64_t refcount_table_offset;
  uint32_t refcount_table_clusters;
  uint32_t nb_snapshots;
  uint64_t snapshots_offset;
  uint64_t incompatible;
  uint64_t compatible;
  uint64_t autoclear;
  uint32_t refcount_order;
  uint32_t header_length;
  uint8_t compression_type;     /* enum codec_type */
  uint8_t *extra;               /* bytes 105 up to header_length, kept */
  size_t extra_len;

  char *backing_file;           /* NULL = none */
  char *backing_format;         /* NULL = not recorded */
  char *data_file;              /* NULL = not recorded */
  bool has_bitmaps;
  uint32_t nb_bitmaps;
  uint64_t bitmap_directory_size;
  uint64_t bitmap_directory_offset;
  bool has_crypto;
  uint64_t crypto_offset;
  uint64_t crypto_length;
  uint8_t *feature_names;       /* the table as it was, NULL = none */
  size_t feature_names_len;
  struct header_extension *unknown;
  size_t nr_unknown;
  uint32_t *ext_order;          /* types in the order of the file, so that a
                                   rewrite keeps it; may be empty */
  size_t nr_ext_order;
};

/* Parse the first LEN bytes of the image file NAME into H, which is
 * initialised here.  A few hundred bytes are enough for most images, the
 * smaller of the file size and 2 MiB for all.  Every field is checked:
 * magic, version, limits, alignment, that tables lie inside addressable
 * space, that the extensions and the backing name lie inside the first
 * cluster, that fields which need each other agree, unknown incompatible
 * features (named by the image's feature name table).
 *
 * FILE_SIZE is to find truncated files: header, L1 table and refcount
 * table must begin inside the file.  Snapshot table, bitmap directory and
 * encryption header are left to those who read them, so that the rest of a
 * damaged image can be served.
 *
 * What is not stored as it was: a string ends before its first zero byte,
 * as for QEMU, and is absent if that is the first one; the autoclear bit of
 * bitmaps is dropped if there are none; a bitmaps extension that is
 * malformed is dropped if that bit is clear, since nothing in it can be
 * trusted then.  data_file may be set without INCOMPAT_DATA_FILE: then it
 * means nothing.
 *
 * 0; -EINVAL (not qcow2, or lies about a field), -ENOTSUP (an unknown
 * incompatible feature, version, compression or encryption method),
 * -ENOMEM, each after one nbdkit_error; -ENODATA, without a message: LEN
 * bytes are not enough, though the file has more.  On failure H holds
 * nothing.
 */
extern int header_parse (const char *name, const uint8_t *buf, size_t len,
                         uint64_t file_size, struct header *h)
  __attribute__ ((__warn_unused_result__));

/* Write H as the whole first cluster: BUF has 1 << cluster_bits bytes and
 * is filled entirely.  header_length 0 means what a new image gets: 112
 * bytes, or 72 in version 2; other values are kept.  Extensions keep their
 * order; new ones come behind, in QEMU's order.  If H has no feature name
 * table, ours is written (version 3, clusters of 8k or more) if there is
 * room for it.  -ENOSPC (with a message) if the rest does not fit.
 */
extern int header_serialise (const char *name, const struct header *h,
                             uint8_t *buf)
  __attribute__ ((__warn_unused_result__));

/* Patch into BUF, the first 104 bytes (72 in version 2) of the header as
 * they are on disk, those fields that change at run time: size, L1 and
 * refcount table position and size, snapshots, feature bits.
 */
extern void header_patch (const struct header *h, uint8_t *buf);

/* Free what H owns; H is all zero afterwards. */
extern void header_free (struct header *h);

#endif /* HEADER_H */
