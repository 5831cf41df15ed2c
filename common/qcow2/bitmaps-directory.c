/* SPDX-License-Identifier: BSD-3-Clause */
/* Reading the bitmap directory.  Spec: "Bitmap directory". */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "bitmaps.h"
#include "ondisk.h"

/* One entry. */
#define ENTRY_TABLE_OFF         0       /* 64 */
#define ENTRY_TABLE_SIZE        8       /* 32 */
#define ENTRY_FLAGS             12      /* 32 */
#define ENTRY_TYPE              16      /* 8 */
#define ENTRY_GRANULARITY       17      /* 8 */
#define ENTRY_NAME_LEN          18      /* 16 */
#define ENTRY_EXTRA_LEN         20      /* 32 */
#define ENTRY_FIXED_LEN         24

#define FLAGS_KNOWN             UINT32_C (7)
#define FLAG_EXTRA_COMPATIBLE   UINT32_C (4)

/* QEMU's limits. */
#define MAX_DIRECTORY           (UINT64_C (1024) * MAX_BITMAPS)
#define MAX_TABLE_SIZE          (UINT32_C (0x8000000))
#define MAX_NAME                1023
#define MIN_GRANULARITY_BITS    9
#define MAX_GRANULARITY_BITS    31

static int
broken (const char *name, size_t i, const char *field)
{
  nbdkit_error ("%s: bitmap directory entry %zu: the field %s is malformed; "
                "the bitmaps are taken as inconsistent", name, i, field);
  return -EINVAL;
}

/* Parse the entry at P, of which LEFT bytes are in the directory. */
static int
parse_entry (const char *name, const struct geometry *geo, size_t i,
             const uint8_t *p, uint64_t left, struct bitmap_entry *e,
             uint64_t *len)
{
  uint64_t name_len, extra_len;

  if (left < ENTRY_FIXED_LEN)
    return broken (name, i, "(cut off)");
  name_len = get_be16 (p + ENTRY_NAME_LEN);
  extra_len = get_be32 (p + ENTRY_EXTRA_LEN);
  *len = (ENTRY_FIXED_LEN + name_len + extra_len + 7) & ~UINT64_C (7);
  if (*len > left)
    return broken (name, i, "name_size or extra_data_size");
  if (name_len == 0 || name_len > MAX_NAME)
    return broken (name, i, "name_size");
  e->table_off = get_be64 (p + ENTRY_TABLE_OFF);
  e->table_size = get_be32 (p + ENTRY_TABLE_SIZE);
  e->flags = get_be32 (p + ENTRY_FLAGS);
  e->type = p[ENTRY_TYPE];
  e->granularity_bits = p[ENTRY_GRANULARITY];
  if (e->table_off == 0 || geometry_in_cluster (geo, e->table_off) != 0 ||
      e->table_off >= MAX_HOST_OFFSET)
    return broken (name, i, "bitmap_table_offset");
  if (e->table_size == 0 || e->table_size > MAX_TABLE_SIZE)
    return broken (name, i, "bitmap_table_size");
  if (e->flags & ~FLAGS_KNOWN)
    return broken (name, i, "flags");
  if (extra_len > 0 && (e->flags & FLAG_EXTRA_COMPATIBLE) == 0)
    return broken (name, i, "extra_data (unknown and not compatible)");
  if (e->granularity_bits < MIN_GRANULARITY_BITS ||
      e->granularity_bits > MAX_GRANULARITY_BITS)
    return broken (name, i, "granularity_bits");
  e->name = strndup ((const char *) p + ENTRY_FIXED_LEN + extra_len,
                     name_len);
  return e->name ? 0 : -ENOMEM;
}

static int
parse_directory (const char *name, const struct geometry *geo,
                 const struct header *h, const uint8_t *buf,
                 struct bitmap_directory *d)
{
  uint64_t pos = 0, len;
  int r;

  d->entries = calloc (h->nb_bitmaps, sizeof *d->entries);
  if (d->entries == NULL)
    return -ENOMEM;
  for (; d->nr < h->nb_bitmaps; ++d->nr, pos += len) {
    r = parse_entry (name, geo, d->nr, buf + pos,
                     h->bitmap_directory_size - pos, &d->entries[d->nr],
                     &len);
    if (r < 0)
      return r;
    d->entries[d->nr].entry_off = h->bitmap_directory_offset + pos;
  }
  if (pos != h->bitmap_directory_size) {
    nbdkit_error ("%s: header extension bitmaps: bitmap_directory_size is "
                  "%" PRIu64 ", but the entries take %" PRIu64 " bytes",
                  name, h->bitmap_directory_size, pos);
    return -EINVAL;
  }
  return 0;
}

int
bitmaps_read_directory (const char *name, struct backend *file,
                        const struct geometry *geo, const struct header *h,
                        struct bitmap_directory *d)
{
  uint8_t *buf;
  int r;

  memset (d, 0, sizeof *d);
  if (h->nb_bitmaps == 0 || h->nb_bitmaps > MAX_BITMAPS ||
      h->bitmap_directory_size > MAX_DIRECTORY ||
      h->bitmap_directory_size < h->nb_bitmaps * (uint64_t) ENTRY_FIXED_LEN) {
    nbdkit_error ("%s: header extension bitmaps: %" PRIu32 " bitmaps in a "
                  "directory of %" PRIu64 " bytes are not possible", name,
                  h->nb_bitmaps, h->bitmap_directory_size);
    return -EINVAL;
  }
  buf = malloc (h->bitmap_directory_size);
  if (buf == NULL)
    return -ENOMEM;
  r = backend_pread (file, buf, h->bitmap_directory_size,
                     h->bitmap_directory_offset);
  if (r == -ENODATA) {
    nbdkit_error ("%s: the bitmap directory at offset %" PRIu64 " ends "
                  "beyond the end of the file", name,
                  h->bitmap_directory_offset);
    r = -EINVAL;
  }
  if (r == 0)
    r = parse_directory (name, geo, h, buf, d);
  free (buf);
  if (r < 0)
    bitmaps_free_directory (d);
  return r;
}

void
bitmaps_free_directory (struct bitmap_directory *d)
{
  size_t i;

  /* The one after the last may be half parsed, but has no name then. */
  for (i = 0; i < d->nr; ++i)
    free (d->entries[i].name);
  free (d->entries);
  memset (d, 0, sizeof *d);
}

uint64_t
bitmaps_table_size (const struct geometry *geo, uint64_t size,
                    unsigned granularity_bits)
{
  uint64_t granules = (size >> granularity_bits) +
    !!(size & ((UINT64_C (1) << granularity_bits) - 1));
  uint64_t bytes = (granules + 7) / 8;

  return geometry_clusters (geo, bytes);
}
