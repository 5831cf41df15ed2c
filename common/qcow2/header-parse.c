/* SPDX-License-Identifier: BSD-3-Clause */
/* The image header and its extensions: bytes to struct.
 *
 * Invariant: a struct header that header_parse filled keeps every limit
 * that ondisk.h names, so the rest of the engine computes with its fields
 * without fear of overflow.  No byte behind those that the caller has is
 * looked at, whatever the others say (has_bytes).
 *
 * Locks: none; pure functions.
 *
 * It does not read the tables that the header points to, and does not
 * decide what a set feature bit means for reading or writing.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "header.h"
#include "ondisk.h"

struct parser {
  const char *name;
  const uint8_t *buf;
  size_t len;
  uint64_t file_size;
  uint64_t cluster_size;
  uint64_t backing_off;
  uint32_t backing_len;
  struct header *h;
};

/* The one message about a header that cannot be used.  Returns ERR. */
static int __attribute__ ((__format__ (__printf__, 3, 4)))
refuse (const struct parser *p, int err, const char *fmt, ...)
{
  char what[640];
  va_list args;

  va_start (args, fmt);
  vsnprintf (what, sizeof what, fmt, args);
  va_end (args);
  nbdkit_error ("%s: %s", p->name, what);
  return err;
}

/* Are the first END bytes of the first cluster here? */
static bool
has_bytes (const struct parser *p, uint64_t end)
{
  return end <= p->len;
}

static int
no_memory (const struct parser *p)
{
  return refuse (p, -ENOMEM, "no memory to read the header");
}

/* A copy that ends before the first zero byte.  NULL: no memory. */
static char *
copy_string (const uint8_t *data, size_t len)
{
  return strndup ((const char *) data, len);
}

/* The name of an unknown incompatible feature, from the table at DATA,
 * made printable; an empty string if the table does not have it.
 */
static void
feature_name (const uint8_t *data, size_t len, unsigned bit,
              char name[FEATURE_NAME_ENTRY_SIZE - 1])
{
  size_t i, j;

  name[0] = '\0';
  for (i = 0; i + FEATURE_NAME_ENTRY_SIZE <= len;
       i += FEATURE_NAME_ENTRY_SIZE) {
    if (data[i] != 0 || data[i+1] != bit)
      continue;
    for (j = 0; j < FEATURE_NAME_ENTRY_SIZE - 2 && data[i+2+j] != 0; j++) {
      uint8_t c = data[i+2+j];
      name[j] = c >= 0x20 && c < 0x7f ? c : '?';
    }
    name[j] = '\0';
    return;
  }
}

/* Where the extensions end: the backing file name, or the cluster. */
static uint64_t
extensions_end (const struct parser *p)
{
  return p->backing_off ? p->backing_off : p->cluster_size;
}

/* Find the feature name table without judging anything else: the image
 * has a feature that may change what the rest means.
 */
static int
find_feature_names (const struct parser *p, const uint8_t **table,
                    size_t *len)
{
  uint64_t off = p->h->header_length, end = extensions_end (p), ext_len;
  uint32_t type;

  *table = p->buf;
  *len = 0;
  while (off + 8 <= end) {
    if (!has_bytes (p, off + 8))
      return -ENODATA;
    type = get_be32 (p->buf + off);
    ext_len = get_be32 (p->buf + off + 4);
    off += 8;
    if (type == EXT_END || ext_len > end - off)
      break;
    if (type == EXT_FEATURE_NAMES) {
      *table = p->buf + off;
      *len = ext_len;
      return has_bytes (p, off + ext_len) ? 0 : -ENODATA;
    }
    off += (ext_len + 7) & ~UINT64_C (7);
  }
  return 0;
}

static int
refuse_features (const struct parser *p, uint64_t unknown)
{
  char list[512] = "", name[FEATURE_NAME_ENTRY_SIZE - 1];
  size_t used = 0, len;
  const uint8_t *table;
  unsigned bit;
  int r;

  r = find_feature_names (p, &table, &len);
  if (r < 0)
    return r;
  for (bit = 0; bit < 64 && used < sizeof list; bit++) {
    if ((unknown & (UINT64_C (1) << bit)) == 0)
      continue;
    feature_name (table, len, bit, name);
    if (name[0])
      used += snprintf (list + used, sizeof list - used, "%s\"%s\" (bit %u)",
                        used ? ", " : "", name, bit);
    else
      used += snprintf (list + used, sizeof list - used, "%sbit %u",
                        used ? ", " : "", bit);
  }
  return refuse (p, -ENOTSUP,
                 "the image needs features that are not supported: %s", list);
}

/* A table of BYTES bytes at OFF.  Cheap lies are refused here, so that
 * off + bytes can be computed everywhere else.
 */
static int
check_table (const struct parser *p, const char *field, uint64_t off,
             uint64_t bytes, uint64_t max_bytes, bool must_exist)
{
  if (off & (p->cluster_size - 1))
    return refuse (p, -EINVAL,
                   "header: %s 0x%" PRIx64 " is not a multiple of the"
                   " cluster size %" PRIu64, field, off, p->cluster_size);
  if (bytes > max_bytes)
    return refuse (p, -EINVAL,
                   "header: the table at %s has %" PRIu64 " bytes,"
                   " the limit is %" PRIu64, field, bytes, max_bytes);
  if (off > MAX_HOST_OFFSET - max_bytes)
    return refuse (p, -EINVAL,
                   "header: %s 0x%" PRIx64 " is beyond the limit of the"
                   " format, 2^56", field, off);
  if (bytes == 0)
    return 0;
  if (off == 0)
    return refuse (p, -EINVAL,
                   "header: %s is 0, where the header itself is", field);
  if (must_exist && off >= p->file_size)
    return refuse (p, -EINVAL,
                   "header: %s 0x%" PRIx64 " is beyond the end of the file"
                   " at 0x%" PRIx64 "; is the file truncated?",
                   field, off, p->file_size);
  return 0;
}

/* Magic, version, cluster size: what the rest is measured with. */
static int
parse_start (struct parser *p)
{
  struct header *h = p->h;

  if (p->file_size < HDR_V2_LENGTH)
    return refuse (p, -EINVAL,
                   "not a qcow2 image: the file has only %" PRIu64 " bytes",
                   p->file_size);
  if (!has_bytes (p, HDR_V2_LENGTH))
    return -ENODATA;
  if (get_be32 (p->buf + HDR_MAGIC) != QCOW2_MAGIC)
    return refuse (p, -EINVAL,
                   "not a qcow2 image: it does not start with \"QFI\\xfb\"");
  h->version = get_be32 (p->buf + HDR_VERSION);
  if (h->version < 2 || h->version > 3)
    return refuse (p, -ENOTSUP,
                   "qcow version %" PRIu32 " is not supported, only 2 and 3",
                   h->version);
  h->cluster_bits = get_be32 (p->buf + HDR_CLUSTER_BITS);
  if (h->cluster_bits < MIN_CLUSTER_BITS || h->cluster_bits > MAX_CLUSTER_BITS)
    return refuse (p, -EINVAL,
                   "header: cluster_bits %" PRIu32 " is not in the range"
                   " %d to %d", h->cluster_bits,
                   MIN_CLUSTER_BITS, MAX_CLUSTER_BITS);
  p->cluster_size = UINT64_C (1) << h->cluster_bits;
  if (p->file_size < p->cluster_size)
    return refuse (p, -EINVAL,
                   "the file has %" PRIu64 " bytes and ends inside its first"
                   " cluster of %" PRIu64 "; is it truncated?",
                   p->file_size, p->cluster_size);
  return 0;
}

/* Lengths and feature bits; unknown features end here. */
static int
parse_features (struct parser *p)
{
  struct header *h = p->h;
  uint64_t unknown;

  if (h->version == 2) {
    h->refcount_order = 4;
    h->header_length = HDR_V2_LENGTH;
  }
  else {
    if (!has_bytes (p, HDR_V3_MIN_LENGTH))
      return -ENODATA;
    h->incompatible = get_be64 (p->buf + HDR_INCOMPATIBLE);
    h->compatible = get_be64 (p->buf + HDR_COMPATIBLE);
    h->autoclear = get_be64 (p->buf + HDR_AUTOCLEAR);
    h->refcount_order = get_be32 (p->buf + HDR_REFCOUNT_ORDER);
    h->header_length = get_be32 (p->buf + HDR_HEADER_LENGTH);
    if (h->header_length < HDR_V3_MIN_LENGTH || h->header_length % 8 != 0 ||
        h->header_length > p->cluster_size)
      return refuse (p, -EINVAL,
                     "header: header_length %" PRIu32 " is not a multiple"
                     " of 8 from %d to the cluster size %" PRIu64,
                     h->header_length, HDR_V3_MIN_LENGTH, p->cluster_size);
    if (!has_bytes (p, h->header_length))
      return -ENODATA;
  }

  p->backing_off = get_be64 (p->buf + HDR_BACKING_FILE_OFFSET);
  p->backing_len = get_be32 (p->buf + HDR_BACKING_FILE_SIZE);
  if (p->backing_off != 0 && (p->backing_off < h->header_length ||
                              p->backing_off > p->cluster_size))
    return refuse (p, -EINVAL,
                   "header: backing_file_offset 0x%" PRIx64 " is not between"
                   " the header and the end of the first cluster",
                   p->backing_off);

  unknown = h->incompatible & ~INCOMPAT_KNOWN;
  if (unknown)
    return refuse_features (p, unknown);
  if ((h->incompatible & INCOMPAT_EXTENDED_L2) &&
      h->cluster_bits < MIN_EXTENDED_L2_CLUSTER_BITS)
    return refuse (p, -EINVAL,
                   "header: extended L2 entries need clusters of 16384 bytes"
                   " or more, not %" PRIu64, p->cluster_size);
  if ((h->autoclear & AUTOCLEAR_DATA_FILE_RAW) &&
      !(h->incompatible & INCOMPAT_DATA_FILE))
    return refuse (p, -EINVAL,
                   "header: autoclear bit 1 (raw external data) is set, but"
                   " the image has no external data file");
  if (h->refcount_order > MAX_REFCOUNT_ORDER)
    return refuse (p, -EINVAL,
                   "header: refcount_order %" PRIu32 " is larger than %d",
                   h->refcount_order, MAX_REFCOUNT_ORDER);
  return 0;
}

/* The fields behind header_length, as far as it reaches. */
static int
parse_additional (struct parser *p)
{
  struct header *h = p->h;
  bool bit = h->incompatible & INCOMPAT_COMPRESSION;

  if (h->header_length > HDR_COMPRESSION_TYPE) {
    h->compression_type = p->buf[HDR_COMPRESSION_TYPE];
    h->extra_len = h->header_length - (HDR_COMPRESSION_TYPE + 1);
    h->extra = malloc (h->extra_len);
    if (h->extra == NULL)
      return no_memory (p);
    memcpy (h->extra, p->buf + HDR_COMPRESSION_TYPE + 1, h->extra_len);
  }
  if (h->compression_type > 1)
    return refuse (p, -ENOTSUP,
                   "header: compression_type %u is not supported, only"
                   " 0 (zlib) and 1 (zstd)", h->compression_type);
  if (bit != (h->compression_type != 0))
    return refuse (p, -EINVAL,
                   "header: compression_type is %u, but incompatible bit 3"
                   " (compression type) is %s",
                   h->compression_type, bit ? "set" : "not set");
  return 0;
}

/* Does the L1 table have an entry for each part of the disk? */
static int
check_l1_size (const struct parser *p)
{
  const struct header *h = p->h;
  unsigned entry_bits = h->incompatible & INCOMPAT_EXTENDED_L2 ? 4 : 3;
  unsigned span_bits = 2 * h->cluster_bits - entry_bits;
  uint64_t need = (h->size >> span_bits) +
    !!(h->size & ((UINT64_C (1) << span_bits) - 1));

  if (h->l1_size < need)
    return refuse (p, -EINVAL,
                   "header: l1_size %" PRIu32 " is too small for a disk of"
                   " %" PRIu64 " bytes, which needs %" PRIu64,
                   h->l1_size, h->size, need);
  return 0;
}

static int
parse_tables (struct parser *p)
{
  struct header *h = p->h;
  int r;

  h->size = get_be64 (p->buf + HDR_SIZE);
  h->crypt_method = get_be32 (p->buf + HDR_CRYPT_METHOD);
  h->l1_size = get_be32 (p->buf + HDR_L1_SIZE);
  h->l1_table_offset = get_be64 (p->buf + HDR_L1_TABLE_OFFSET);
  h->refcount_table_offset = get_be64 (p->buf + HDR_REFCOUNT_TABLE_OFFSET);
  h->refcount_table_clusters =
    get_be32 (p->buf + HDR_REFCOUNT_TABLE_CLUSTERS);
  h->nb_snapshots = get_be32 (p->buf + HDR_NB_SNAPSHOTS);
  h->snapshots_offset = get_be64 (p->buf + HDR_SNAPSHOTS_OFFSET);

  if (h->crypt_method > HDR_CRYPT_LUKS)
    return refuse (p, -ENOTSUP,
                   "header: crypt_method %" PRIu32 " is not supported, only"
                   " 0 (none), 1 (AES) and 2 (LUKS)", h->crypt_method);
  if (h->refcount_table_clusters == 0)
    return refuse (p, -EINVAL,
                   "header: refcount_table_clusters is 0: the image has no"
                   " refcount table");
  r = check_table (p, "refcount_table_offset", h->refcount_table_offset,
                   h->refcount_table_clusters * p->cluster_size,
                   MAX_REFTABLE_SIZE, true);
  if (r < 0)
    return r;
  r = check_table (p, "l1_table_offset", h->l1_table_offset,
                   h->l1_size * UINT64_C (8), MAX_L1_SIZE, true);
  if (r < 0)
    return r;
  r = check_l1_size (p);
  if (r < 0)
    return r;
  if (h->nb_snapshots > MAX_SNAPSHOTS)
    return refuse (p, -EINVAL,
                   "header: nb_snapshots %" PRIu32 " is larger than %d",
                   h->nb_snapshots, MAX_SNAPSHOTS);
  if (h->nb_snapshots && (h->incompatible & INCOMPAT_DATA_FILE))
    return refuse (p, -EINVAL,
                   "header: nb_snapshots is %" PRIu32 ", but internal"
                   " snapshots are not possible with an external data file",
                   h->nb_snapshots);
  return check_table (p, "snapshots_offset", h->snapshots_offset,
                      h->nb_snapshots * (uint64_t) SNAP_FIXED_LEN,
                      MAX_SNAPSHOT_TABLE_SIZE, false);
}

static int
parse_string_extension (const struct parser *p, const uint8_t *data,
                        uint32_t len, char **field)
{
  if (len == 0)
    return 0;
  *field = copy_string (data, len);
  if (*field == NULL)
    return no_memory (p);
  if ((*field)[0] == '\0') {    /* nothing before the first zero byte */
    free (*field);
    *field = NULL;
  }
  return 0;
}

static int
parse_bitmaps_extension (const struct parser *p, const uint8_t *data,
                         uint32_t len)
{
  struct header *h = p->h;
  const char *wrong = NULL;

  if (len != BITMAPS_EXT_LEN)
    return refuse (p, -EINVAL,
                   "header: the bitmaps extension has %" PRIu32 " bytes"
                   " instead of %d", len, BITMAPS_EXT_LEN);
  h->nb_bitmaps = get_be32 (data + BITMAPS_EXT_NB);
  h->bitmap_directory_size = get_be64 (data + BITMAPS_EXT_DIR_SIZE);
  h->bitmap_directory_offset = get_be64 (data + BITMAPS_EXT_DIR_OFFSET);

  if (get_be32 (data + BITMAPS_EXT_NB + 4) != 0)
    wrong = "a reserved field that is not 0";
  else if (h->nb_bitmaps == 0 || h->nb_bitmaps > MAX_BITMAPS)
    wrong = "nb_bitmaps out of range";
  else if (h->bitmap_directory_size == 0 ||
           h->bitmap_directory_size > MAX_BITMAP_DIRECTORY_SIZE)
    wrong = "bitmap_directory_size out of range";
  else if (h->bitmap_directory_offset == 0 ||
           (h->bitmap_directory_offset & (p->cluster_size - 1)) ||
           h->bitmap_directory_offset >
           MAX_HOST_OFFSET - MAX_BITMAP_DIRECTORY_SIZE)
    wrong = "bitmap_directory_offset out of range or unaligned";

  if (wrong && (h->autoclear & AUTOCLEAR_BITMAPS))
    return refuse (p, -EINVAL, "header: the bitmaps extension has %s", wrong);
  h->has_bitmaps = wrong == NULL;
  return 0;
}

static int
parse_crypto_extension (const struct parser *p, const uint8_t *data,
                        uint32_t len)
{
  struct header *h = p->h;

  if (h->crypt_method != HDR_CRYPT_LUKS)
    return refuse (p, -EINVAL,
                   "header: there is an encryption header, but crypt_method"
                   " is %" PRIu32 " instead of %d (LUKS)",
                   h->crypt_method, HDR_CRYPT_LUKS);
  if (len != CRYPTO_EXT_LEN)
    return refuse (p, -EINVAL,
                   "header: the encryption header extension has %" PRIu32
                   " bytes instead of %d", len, CRYPTO_EXT_LEN);
  h->crypto_offset = get_be64 (data + CRYPTO_EXT_OFFSET);
  h->crypto_length = get_be64 (data + CRYPTO_EXT_LENGTH);
  h->has_crypto = true;
  return check_table (p, "encryption header offset", h->crypto_offset,
                      h->crypto_length ? h->crypto_length : 1,
                      MAX_CRYPTO_HEADER_SIZE, false);
}

static int
parse_unknown_extension (const struct parser *p, uint32_t type,
                         const uint8_t *data, uint32_t len)
{
  struct header *h = p->h;
  struct header_extension *e;

  /* Room for 1, 2, 4, 8...: grow when the number is a power of two. */
  if ((h->nr_unknown & (h->nr_unknown - 1)) == 0) {
    size_t n = h->nr_unknown ? 2 * h->nr_unknown : 1;

    e = reallocarray (h->unknown, n, sizeof *e);
    if (e == NULL)
      return no_memory (p);
    h->unknown = e;
  }
  e = &h->unknown[h->nr_unknown];
  e->type = type;
  e->len = len;
  e->data = malloc (len ? len : 1);
  if (e->data == NULL)
    return no_memory (p);
  memcpy (e->data, data, len);
  h->nr_unknown++;
  return 0;
}

static int
parse_extension (const struct parser *p, uint32_t type,
                 const uint8_t *data, uint32_t len)
{
  struct header *h = p->h;

  switch (type) {
  case EXT_BACKING_FORMAT:
    if (len > MAX_BACKING_FORMAT_SIZE)
      return refuse (p, -EINVAL,
                     "header: the name of the backing format has %" PRIu32
                     " bytes, the limit is %d", len, MAX_BACKING_FORMAT_SIZE);
    return parse_string_extension (p, data, len, &h->backing_format);
  case EXT_DATA_FILE:
    return parse_string_extension (p, data, len, &h->data_file);
  case EXT_BITMAPS:
    return parse_bitmaps_extension (p, data, len);
  case EXT_CRYPTO_HEADER:
    return parse_crypto_extension (p, data, len);
  case EXT_FEATURE_NAMES:
    h->feature_names = malloc (len ? len : 1);
    if (h->feature_names == NULL)
      return no_memory (p);
    memcpy (h->feature_names, data, len);
    h->feature_names_len = len;
    return 0;
  default:
    return parse_unknown_extension (p, type, data, len);
  }
}

static bool
is_known (uint32_t type)
{
  return type == EXT_BACKING_FORMAT || type == EXT_DATA_FILE ||
    type == EXT_CRYPTO_HEADER || type == EXT_FEATURE_NAMES ||
    type == EXT_BITMAPS;
}

/* Note that an extension of TYPE was met. */
static int
remember_order (const struct parser *p, uint32_t type)
{
  struct header *h = p->h;
  uint32_t *order;
  size_t i;

  for (i = 0; is_known (type) && i < h->nr_ext_order; i++)
    if (h->ext_order[i] == type)
      return refuse (p, -EINVAL,
                     "header: extension 0x%08" PRIx32 " is there twice", type);
  if ((h->nr_ext_order & (h->nr_ext_order - 1)) == 0) {
    size_t n = h->nr_ext_order ? 2 * h->nr_ext_order : 1;

    order = reallocarray (h->ext_order, n, sizeof *order);
    if (order == NULL)
      return no_memory (p);
    h->ext_order = order;
  }
  h->ext_order[h->nr_ext_order++] = type;
  return 0;
}

static int
parse_extensions (struct parser *p)
{
  uint64_t off = p->h->header_length, end = extensions_end (p);
  int r;

  while (off < end) {
    uint32_t type, len;

    if (end - off < 8)
      return refuse (p, -EINVAL,
                     "header: the extension at 0x%" PRIx64 " reaches beyond"
                     " the end of the header area at 0x%" PRIx64, off, end);
    if (!has_bytes (p, off + 8))
      return -ENODATA;
    type = get_be32 (p->buf + off);
    len = get_be32 (p->buf + off + 4);
    if (type == EXT_END)
      break;
    if (len > end - off - 8)
      return refuse (p, -EINVAL,
                     "header: extension 0x%08" PRIx32 " at 0x%" PRIx64
                     " with %" PRIu32 " bytes reaches beyond the end of the"
                     " header area at 0x%" PRIx64, type, off, len, end);
    if (!has_bytes (p, off + 8 + len))
      return -ENODATA;
    r = remember_order (p, type);
    if (r < 0)
      return r;
    r = parse_extension (p, type, p->buf + off + 8, len);
    if (r < 0)
      return r;
    off += 8 + (((uint64_t) len + 7) & ~UINT64_C (7));
  }

  if (p->h->crypt_method == HDR_CRYPT_LUKS && !p->h->has_crypto)
    return refuse (p, -EINVAL,
                   "header: crypt_method is %d (LUKS), but there is no"
                   " encryption header", HDR_CRYPT_LUKS);
  if (!p->h->has_bitmaps)
    p->h->autoclear &= ~AUTOCLEAR_BITMAPS;
  return 0;
}

static int
parse_backing_name (struct parser *p)
{
  struct header *h = p->h;

  if (p->backing_off == 0 || p->backing_len == 0)
    return 0;
  if (p->backing_len > MAX_BACKING_FILE_SIZE ||
      p->backing_len > p->cluster_size - p->backing_off)
    return refuse (p, -EINVAL,
                   "header: backing_file_size %" PRIu32 " is larger than"
                   " %d or reaches beyond the first cluster",
                   p->backing_len, MAX_BACKING_FILE_SIZE);
  if (!has_bytes (p, p->backing_off + p->backing_len))
    return -ENODATA;
  h->backing_file = copy_string (p->buf + p->backing_off, p->backing_len);
  if (h->backing_file == NULL)
    return no_memory (p);
  if (h->backing_file[0] == '\0') {
    free (h->backing_file);
    h->backing_file = NULL;
  }
  return 0;
}

int
header_parse (const char *name, const uint8_t *buf, size_t len,
              uint64_t file_size, struct header *h)
{
  struct parser p = { .name = name, .buf = buf, .len = len,
                      .file_size = file_size, .h = h };
  int (*const steps[]) (struct parser *) = {
    parse_start, parse_features, parse_additional, parse_tables,
    parse_extensions, parse_backing_name,
  };
  size_t i;
  int r = 0;

  memset (h, 0, sizeof *h);
  for (i = 0; i < sizeof steps / sizeof steps[0] && r == 0; i++)
    r = steps[i] (&p);
  if (r < 0)
    header_free (h);
  return r;
}
