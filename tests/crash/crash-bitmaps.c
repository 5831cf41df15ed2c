/* SPDX-License-Identifier: BSD-3-Clause */
/* Persistent bitmaps of an image: see the header. */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash-bitmaps.h"
#include "ondisk.h"

#define DIR_TABLE_OFFSET        0       /* 64 */
#define DIR_TABLE_SIZE          8       /* 32 */
#define DIR_FLAGS               12      /* 32 */
#define DIR_GRANULARITY_BITS    17      /* 8 */
#define DIR_NAME_SIZE           18      /* 16 */
#define DIR_EXTRA_SIZE          20      /* 32 */
#define DIR_ENTRY_LEN           24
#define FLAG_IN_USE             (1U << 0)
#define FLAG_AUTO               (1U << 1)
#define TABLE_ALL_ONES          UINT64_C (1)

uint64_t
crash_bitmaps_extension (struct backend *b, uint32_t type)
{
  uint8_t h[HDR_V3_LENGTH], ext[8];
  uint64_t off;
  int i;

  if (backend_pread (b, h, sizeof h, 0) < 0)
    return 0;
  off = get_be32 (h + HDR_VERSION) >= 3 ? get_be32 (h + HDR_HEADER_LENGTH)
    : HDR_V2_LENGTH;
  for (i = 0; i < 100; ++i) {
    if (backend_pread (b, ext, sizeof ext, off) < 0 ||
        get_be32 (ext) == EXT_END)
      return 0;
    if (get_be32 (ext) == type)
      return off + 8;
    off += 8 + ((get_be32 (ext + 4) + 7) & ~UINT32_C (7));
  }
  return 0;
}

static int
load_table (struct backend *b, struct crash_bitmap *bitmap)
{
  uint8_t e[8];
  uint64_t i;

  if (bitmap->nr_table > 100000)
    return -EINVAL;
  bitmap->table = calloc (bitmap->nr_table + 1, sizeof *bitmap->table);
  if (bitmap->table == NULL)
    return -ENOMEM;
  for (i = 0; i < bitmap->nr_table; ++i) {
    if (backend_pread (b, e, sizeof e, bitmap->table_off + i * 8) < 0)
      return -EINVAL;
    bitmap->table[i] = get_be64 (e);
  }
  return 0;
}

static int
load_directory (struct backend *b, struct crash_bitmaps *list, size_t nr)
{
  uint64_t off = list->dir_off;
  uint8_t e[DIR_ENTRY_LEN];
  int r = nr > CRASH_BITMAPS_MAX ? -EINVAL : 0;

  for (; r == 0 && list->nr < nr; list->nr++) {
    struct crash_bitmap *bitmap = &list->bitmaps[list->nr];

    if (backend_pread (b, e, sizeof e, off) < 0)
      return -EINVAL;
    bitmap->table_off = get_be64 (e + DIR_TABLE_OFFSET);
    bitmap->nr_table = get_be32 (e + DIR_TABLE_SIZE);
    bitmap->in_use = get_be32 (e + DIR_FLAGS) & FLAG_IN_USE;
    bitmap->tracks = get_be32 (e + DIR_FLAGS) & FLAG_AUTO;
    bitmap->granularity_bits = e[DIR_GRANULARITY_BITS] & 63;
    r = load_table (b, bitmap);
    off += (DIR_ENTRY_LEN + get_be16 (e + DIR_NAME_SIZE) +
            get_be32 (e + DIR_EXTRA_SIZE) + 7) & ~7;
  }
  return r == 0 && off != list->dir_off + list->dir_len ? -EINVAL : r;
}

int
crash_bitmaps_load (struct backend *b, struct crash_bitmaps *list)
{
  uint8_t h[HDR_V3_LENGTH], ext[BITMAPS_EXT_LEN];
  uint64_t off;
  int r;

  memset (list, 0, sizeof *list);
  if (backend_pread (b, h, sizeof h, 0) < 0 || get_be32 (h + HDR_VERSION) < 3)
    return 0;
  off = crash_bitmaps_extension (b, EXT_BITMAPS);
  if (off == 0 || !(get_be64 (h + HDR_AUTOCLEAR) & AUTOCLEAR_BITMAPS))
    return 0;
  if (backend_pread (b, ext, sizeof ext, off) < 0)
    return -EINVAL;
  list->cluster_bits = get_be32 (h + HDR_CLUSTER_BITS);
  list->dir_off = get_be64 (ext + BITMAPS_EXT_DIR_OFFSET);
  list->dir_len = get_be64 (ext + BITMAPS_EXT_DIR_SIZE);
  r = load_directory (b, list, get_be32 (ext + BITMAPS_EXT_NB));
  if (r < 0) {
    fprintf (stderr, "the bitmap directory at 0x%" PRIx64 " lies\n",
             list->dir_off);
    crash_bitmaps_free (list);
  }
  return r;
}

void
crash_bitmaps_free (struct crash_bitmaps *list)
{
  size_t i;

  for (i = 0; i < CRASH_BITMAPS_MAX; ++i)
    free (list->bitmaps[i].table);
  memset (list, 0, sizeof *list);
}

bool
crash_bitmaps_get (struct backend *b, const struct crash_bitmaps *list,
                   size_t i, uint64_t off)
{
  const struct crash_bitmap *bitmap = &list->bitmaps[i];
  uint64_t bit = off >> bitmap->granularity_bits;
  uint64_t cluster = bit >> (list->cluster_bits + 3), e;
  uint8_t byte;

  if (cluster >= bitmap->nr_table)
    return false;
  e = bitmap->table[cluster];
  if ((e & L2E_OFFSET_MASK) == 0)
    return e & TABLE_ALL_ONES;
  bit &= (UINT64_C (8) << list->cluster_bits) - 1;
  return backend_pread (b, &byte, 1, (e & L2E_OFFSET_MASK) + bit / 8) == 0 &&
    (byte >> (bit % 8) & 1);
}

static bool
is_complete (struct backend *b, const struct crash_bitmaps *list, size_t i,
             const uint8_t *old, const uint8_t *now, uint64_t size)
{
  uint64_t off, n;

  for (off = 0; off < size; off += n) {
    n = size - off < 512 ? size - off : 512;
    if (memcmp (old + off, now + off, n) != 0 &&
        !crash_bitmaps_get (b, list, i, off)) {
      fprintf (stderr, "bitmap %zu is valid, and does not know of the change "
               "at %" PRIu64 "\n", i, off);
      return false;
    }
  }
  return true;
}

size_t
crash_bitmaps_valid (struct backend *b, const uint8_t *old,
                     const uint8_t *now, uint64_t size, bool *ok)
{
  struct crash_bitmaps list;
  size_t i, nr = 0;

  *ok = crash_bitmaps_load (b, &list) == 0;
  for (i = 0; i < list.nr; ++i) {
    if (list.bitmaps[i].in_use || !list.bitmaps[i].tracks)
      continue;
    nr++;
    *ok = *ok && is_complete (b, &list, i, old, now, size);
  }
  crash_bitmaps_free (&list);
  return nr;
}
