/* SPDX-License-Identifier: BSD-3-Clause */
/* The references of persistent bitmaps.
 *
 * Bitmaps that a program without support for them may have made stale (the
 * autoclear bit is clear) are not there, for anybody: their space is leaked.
 *
 * Locks: none needed, nobody else uses the image.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "check-tables.h"
#include "check-walk.h"
#include "ondisk.h"

/* Bitmap directory entry ("Bitmap directory"), bitmap table entry. */
#define BM_TABLE_OFF            0       /* 64 */
#define BM_TABLE_SIZE           8       /* 32 */
#define BM_FLAGS                12      /* 32 */
#define BM_FLAG_IN_USE          1U
#define BM_GRANULARITY          17      /* 8, log2 */
#define BM_NAME_SIZE            18      /* 16 */
#define BM_EXTRA_SIZE           20      /* 32 */
#define BM_FIXED_LEN            24
#define BM_MAX_TABLE_SIZE       (UINT64_C (1) << 27)    /* entries */
#define BM_MAX_DIRECTORY        (UINT64_C (64) << 20)
#define BM_ENTRY_OFFSET_MASK    UINT64_C (0x00fffffffffffe00)
#define BM_ENTRY_RESERVED_MASK  UINT64_C (0xff000000000001fe)
#define BM_ENTRY_ALL_ONES       UINT64_C (1)

static int
walk_bitmap_entry (void *opaque, uint64_t off, uint64_t v, uint64_t times)
{
  struct check *k = opaque;
  const struct geometry *geo = &k->core->geo;
  const uint64_t data = v & BM_ENTRY_OFFSET_MASK;

  if ((v & BM_ENTRY_RESERVED_MASK) || geometry_in_cluster (geo, data) != 0 ||
      (data && (v & BM_ENTRY_ALL_ONES))) {
    k->res->corruptions += times;
    check_walk_problem (k, "bitmap table entry at offset 0x%" PRIx64 ": "
                        "0x%" PRIx64 " is not valid", off, v);
    return 0;
  }
  return data ? check_walk_add (k, data, geo->cluster_size, times,
                                "bitmap") : 0;
}

/* The length of the directory entry at P, which has ROOM bytes; 0 = broken. */
static uint64_t
bitmap_entry_len (const struct geometry *geo, const uint8_t *p,
                  uint64_t room)
{
  uint64_t len;

  if (room < BM_FIXED_LEN)
    return 0;
  len = BM_FIXED_LEN + (uint64_t) get_be16 (p + BM_NAME_SIZE) +
    get_be32 (p + BM_EXTRA_SIZE);
  len = (len + 7) & ~UINT64_C (7);
  if (len > room || get_be32 (p + BM_TABLE_SIZE) == 0 ||
      get_be32 (p + BM_TABLE_SIZE) > BM_MAX_TABLE_SIZE ||
      get_be64 (p + BM_TABLE_OFF) == 0 ||
      get_be64 (p + BM_TABLE_OFF) >= MAX_HOST_OFFSET ||
      geometry_in_cluster (geo, get_be64 (p + BM_TABLE_OFF)) != 0)
    return 0;
  return len;
}

/* Does the table have as many entries as the disk needs?  Who is changing a
 * bitmap may not have got so far.
 */
static void
check_bitmap_size (struct check *k, const uint8_t *p, uint32_t nr)
{
  const uint64_t entries = get_be32 (p + BM_TABLE_SIZE);
  const unsigned granularity = p[BM_GRANULARITY];
  uint64_t bits, need = 0;

  if (get_be32 (p + BM_FLAGS) & BM_FLAG_IN_USE)
    return;
  if (granularity < 64) {
    bits = (k->core->header.size >> granularity) +
      !!(k->core->header.size & ((UINT64_C (1) << granularity) - 1));
    need = geometry_clusters (&k->core->geo, bits / 8 + (bits % 8 != 0));
  }
  if (entries == need)
    return;
  k->res->corruptions++;
  check_walk_problem (k, "bitmap %" PRIu32 ": its table has %" PRIu64
                      " entries, but the disk needs %" PRIu64,
                      nr, entries, need);
}

/* Note in T the tables of all entries of the directory. */
static int
walk_directory (struct check_tables *t, const uint8_t *dir, uint64_t size)
{
  struct check *k = t->k;
  const uint32_t nr_bitmaps = k->core->header.nb_bitmaps;
  uint64_t pos = 0, len;
  uint32_t nr = 0;
  int r = 0;

  for (; r == 0 && pos < size && nr < nr_bitmaps; pos += len, ++nr) {
    len = bitmap_entry_len (&k->core->geo, dir + pos, size - pos);
    if (len == 0)
      break;
    check_bitmap_size (k, dir + pos, nr);
    r = check_tables_add (t, get_be64 (dir + pos + BM_TABLE_OFF),
                          get_be32 (dir + pos + BM_TABLE_SIZE));
  }
  if (r == 0 && (pos != size || nr != nr_bitmaps)) {
    k->res->corruptions++;
    check_walk_problem (k, "the bitmap directory is broken at entry %" PRIu32,
                        nr);
  }
  return r;
}

int
check_bitmaps_walk (struct check *k)
{
  const struct header *h = &k->core->header;
  const uint64_t size = h->bitmap_directory_size;
  struct check_tables tables = { .k = k, .what = "bitmap table" };
  uint8_t *dir;
  int r;

  if (!h->has_bitmaps || !(h->autoclear & AUTOCLEAR_BITMAPS) ||
      size > BM_MAX_DIRECTORY)
    return 0;
  r = check_walk_add (k, h->bitmap_directory_offset, size, 1,
                      "bitmap directory");
  if (r < 0)
    return r;
  dir = malloc (size + 1);
  if (dir == NULL) {
    k->res->check_errors++;
    return -ENOMEM;
  }
  r = check_walk_read (k, dir, size, h->bitmap_directory_offset,
                       "bitmap directory");
  if (r == 0)
    r = walk_directory (&tables, dir, size);
  free (dir);
  if (r == 0)
    r = check_tables_each (&tables, walk_bitmap_entry, k);
  check_tables_free (&tables);
  return r;
}
