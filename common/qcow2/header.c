/* SPDX-License-Identifier: BSD-3-Clause */
/* The image header and its extensions: struct to bytes.
 *
 * Invariant: what header_parse read and nothing changed is written as it
 * was, byte for byte, apart from padding that was not zero.
 *
 * Locks: none; pure functions.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "header.h"
#include "ondisk.h"

/* Extensions are placed by QEMU in this order; unknown ones follow. */
static const uint32_t canonical_order[] = {
  EXT_BACKING_FORMAT, EXT_DATA_FILE, EXT_CRYPTO_HEADER, EXT_FEATURE_NAMES,
  EXT_BITMAPS,
};

/* In smaller clusters the names would take the room that a backing file
 * name needs.  QEMU draws the same line.
 */
#define MIN_FEATURE_NAMES_CLUSTER_BITS 13

#define NR_CANONICAL (sizeof canonical_order / sizeof canonical_order[0])

/* What a new image gets as its feature name table. */
static const struct {
  uint8_t type, bit;
  const char *name;
} our_feature_names[] = {
  { 0, 0, "dirty bit" },
  { 0, 1, "corrupt bit" },
  { 0, 2, "external data file" },
  { 0, 3, "compression type" },
  { 0, 4, "extended L2 entries" },
  { 1, 0, "lazy refcounts" },
  { 2, 0, "bitmaps" },
  { 2, 1, "raw external data" },
};

#define NR_FEATURE_NAMES \
  (sizeof our_feature_names / sizeof our_feature_names[0])

/* The cluster that is being filled. */
struct writer {
  uint8_t *buf;
  size_t pos, size;
};

static int
put_bytes (struct writer *w, const void *data, size_t len)
{
  if (len > w->size - w->pos)
    return -ENOSPC;
  if (len)
    memcpy (w->buf + w->pos, data, len);
  w->pos += len;
  return 0;
}

static int
put_extension (struct writer *w, uint32_t type, const void *data, size_t len)
{
  uint8_t head[8];
  size_t padded = (len + 7) & ~(size_t) 7;

  /* The last extension may have no padding, but END follows in any case. */
  if (8 + padded > w->size - w->pos)
    return -ENOSPC;
  put_be32 (head, type);
  put_be32 (head + 4, len);
  if (put_bytes (w, head, sizeof head) < 0 || put_bytes (w, data, len) < 0)
    return -ENOSPC;
  w->pos += padded - len;
  return 0;
}

static int
put_our_feature_names (struct writer *w)
{
  uint8_t table[NR_FEATURE_NAMES * FEATURE_NAME_ENTRY_SIZE] = { 0 };
  size_t i;

  for (i = 0; i < NR_FEATURE_NAMES; i++) {
    uint8_t *entry = table + i * FEATURE_NAME_ENTRY_SIZE;

    entry[0] = our_feature_names[i].type;
    entry[1] = our_feature_names[i].bit;
    memcpy (entry + 2, our_feature_names[i].name,
            strlen (our_feature_names[i].name));
  }
  return put_extension (w, EXT_FEATURE_NAMES, table, sizeof table);
}

static int
put_bitmaps (struct writer *w, const struct header *h)
{
  uint8_t data[BITMAPS_EXT_LEN] = { 0 };

  put_be32 (data + BITMAPS_EXT_NB, h->nb_bitmaps);
  put_be64 (data + BITMAPS_EXT_DIR_SIZE, h->bitmap_directory_size);
  put_be64 (data + BITMAPS_EXT_DIR_OFFSET, h->bitmap_directory_offset);
  return put_extension (w, EXT_BITMAPS, data, sizeof data);
}

static int
put_crypto (struct writer *w, const struct header *h)
{
  uint8_t data[CRYPTO_EXT_LEN];

  put_be64 (data + CRYPTO_EXT_OFFSET, h->crypto_offset);
  put_be64 (data + CRYPTO_EXT_LENGTH, h->crypto_length);
  return put_extension (w, EXT_CRYPTO_HEADER, data, sizeof data);
}

/* Write the known extension TYPE if H has it. */
static int
put_known (struct writer *w, const struct header *h, uint32_t type,
           bool default_names)
{
  switch (type) {
  case EXT_BACKING_FORMAT:
    if (h->backing_format)
      return put_extension (w, type, h->backing_format,
                            strlen (h->backing_format));
    break;
  case EXT_DATA_FILE:
    if (h->data_file)
      return put_extension (w, type, h->data_file, strlen (h->data_file));
    break;
  case EXT_CRYPTO_HEADER:
    if (h->has_crypto)
      return put_crypto (w, h);
    break;
  case EXT_FEATURE_NAMES:
    if (h->feature_names)
      return put_extension (w, type, h->feature_names, h->feature_names_len);
    if (default_names)
      return put_our_feature_names (w);
    break;
  case EXT_BITMAPS:
    if (h->has_bitmaps)
      return put_bitmaps (w, h);
    break;
  }
  return 0;
}

/* The index of TYPE in canonical_order, or NR_CANONICAL. */
static size_t
canonical_index (uint32_t type)
{
  size_t i;

  for (i = 0; i < NR_CANONICAL && canonical_order[i] != type; i++)
    ;
  return i;
}

static int
put_extensions (struct writer *w, const struct header *h, bool default_names)
{
  bool done[NR_CANONICAL + 1] = { false };
  size_t i, k, u = 0;
  int r;

  for (i = 0; i < h->nr_ext_order; i++) {
    k = canonical_index (h->ext_order[i]);
    done[k] = true;
    if (k < NR_CANONICAL)
      r = put_known (w, h, h->ext_order[i], default_names);
    else if (u < h->nr_unknown) {
      r = put_extension (w, h->unknown[u].type, h->unknown[u].data,
                         h->unknown[u].len);
      u++;
    }
    else
      r = 0;
    if (r < 0)
      return r;
  }
  for (k = 0; k < NR_CANONICAL; k++)
    if (!done[k]) {
      r = put_known (w, h, canonical_order[k], default_names);
      if (r < 0)
        return r;
    }
  for (; u < h->nr_unknown; u++) {
    r = put_extension (w, h->unknown[u].type, h->unknown[u].data,
                       h->unknown[u].len);
    if (r < 0)
      return r;
  }
  return put_extension (w, EXT_END, NULL, 0);
}

static int
put_header (struct writer *w, const struct header *h, bool default_names)
{
  uint32_t header_length;
  int r;

  memset (w->buf, 0, w->size);
  put_be32 (w->buf + HDR_MAGIC, QCOW2_MAGIC);
  put_be32 (w->buf + HDR_VERSION, h->version);
  put_be32 (w->buf + HDR_CLUSTER_BITS, h->cluster_bits);
  put_be32 (w->buf + HDR_CRYPT_METHOD, h->crypt_method);
  header_patch (h, w->buf);
  if (h->version == 2)
    header_length = HDR_V2_LENGTH;
  else {
    header_length = h->header_length ? h->header_length : HDR_V3_LENGTH;
    if (h->compression_type && header_length < HDR_V3_LENGTH)
      header_length = HDR_V3_LENGTH;
    put_be32 (w->buf + HDR_REFCOUNT_ORDER, h->refcount_order);
    put_be32 (w->buf + HDR_HEADER_LENGTH, header_length);
    if (header_length > HDR_COMPRESSION_TYPE)
      w->buf[HDR_COMPRESSION_TYPE] = h->compression_type;
    if (h->extra_len && header_length > HDR_COMPRESSION_TYPE + h->extra_len)
      memcpy (w->buf + HDR_COMPRESSION_TYPE + 1, h->extra, h->extra_len);
  }
  w->pos = header_length;

  r = put_extensions (w, h, default_names);
  if (r < 0)
    return r;
  if (h->backing_file) {
    put_be64 (w->buf + HDR_BACKING_FILE_OFFSET, w->pos);
    put_be32 (w->buf + HDR_BACKING_FILE_SIZE, strlen (h->backing_file));
    return put_bytes (w, h->backing_file, strlen (h->backing_file));
  }
  return 0;
}

int
header_serialise (const char *name, const struct header *h, uint8_t *buf)
{
  struct writer w = { .buf = buf, .size = (size_t) 1 << h->cluster_bits };
  bool default_names = h->version >= 3 && h->feature_names == NULL &&
    h->cluster_bits >= MIN_FEATURE_NAMES_CLUSTER_BITS;
  int r;

  r = put_header (&w, h, default_names);
  if (r == -ENOSPC && default_names)
    r = put_header (&w, h, false);
  if (r < 0)
    nbdkit_error ("%s: the header with its extensions and the name of the"
                  " backing file does not fit into one cluster of %zu bytes;"
                  " use larger clusters or a shorter name", name, w.size);
  return r;
}

void
header_patch (const struct header *h, uint8_t *buf)
{
  put_be64 (buf + HDR_SIZE, h->size);
  put_be32 (buf + HDR_L1_SIZE, h->l1_size);
  put_be64 (buf + HDR_L1_TABLE_OFFSET, h->l1_table_offset);
  put_be64 (buf + HDR_REFCOUNT_TABLE_OFFSET, h->refcount_table_offset);
  put_be32 (buf + HDR_REFCOUNT_TABLE_CLUSTERS, h->refcount_table_clusters);
  put_be32 (buf + HDR_NB_SNAPSHOTS, h->nb_snapshots);
  put_be64 (buf + HDR_SNAPSHOTS_OFFSET, h->snapshots_offset);
  if (h->version >= 3) {
    put_be64 (buf + HDR_INCOMPATIBLE, h->incompatible);
    put_be64 (buf + HDR_COMPATIBLE, h->compatible);
    put_be64 (buf + HDR_AUTOCLEAR, h->autoclear);
  }
}

void
header_free (struct header *h)
{
  size_t i;

  for (i = 0; i < h->nr_unknown; i++)
    free (h->unknown[i].data);
  free (h->unknown);
  free (h->ext_order);
  free (h->extra);
  free (h->backing_file);
  free (h->backing_format);
  free (h->data_file);
  free (h->feature_names);
  memset (h, 0, sizeof *h);
}
