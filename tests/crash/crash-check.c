/* SPDX-License-Identifier: BSD-3-Clause */
/* Reference check of an image: counts the references to each cluster, and
 * compares them with the refcounts.
 *
 * What must hold after every power loss (I1): no refcount is below the
 * number of references, nothing is referenced for two purposes at once, and
 * "copied" flags of the active tables say the truth.  Refcounts that are
 * too high are leaks.
 *
 * For images that fit into memory; knows v2, v3, extended L2, compressed
 * clusters, external data files, internal snapshots, bitmaps, and where the
 * header of encryption is.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash-bitmaps.h"
#include "crash-check.h"
#include "ondisk.h"

struct checker {
  struct backend *b;
  bool verbose;
  struct crash_check *result;
  uint64_t file_size;
  unsigned cluster_bits, refcount_bits, l2_entry_size;
  bool has_data_file;
  uint64_t cluster_size;
  uint64_t nr;                  /* clusters that are looked at */
  uint64_t *found, *stored;     /* references, refcounts */
  uint8_t *is_metadata;
};

static void __attribute__ ((__format__ (printf, 2, 3)))
finding (struct checker *c, const char *fmt, ...)
{
  va_list args;

  if (!c->verbose)
    return;
  fprintf (stderr, "check: ");
  va_start (args, fmt);
  vfprintf (stderr, fmt, args);
  va_end (args);
  fprintf (stderr, "\n");
}

#define ERROR(c, fmt, v1, v2)                   \
  do {                                          \
    (c)->result->errors++;                      \
    finding ((c), "error: " fmt, (v1), (v2));   \
  } while (0)

/* NULL if it is not (entirely) in the file. */
static uint8_t *
read_bytes (struct checker *c, uint64_t off, uint64_t len)
{
  uint8_t *p = malloc (len + 1);

  if (p && backend_pread (c->b, p, len, off) < 0) {
    free (p);
    return NULL;
  }
  return p;
}

/* Count a reference to each cluster that [OFF, OFF + LEN) touches. */
static void
refer (struct checker *c, uint64_t off, uint64_t len, bool metadata)
{
  uint64_t i = off >> c->cluster_bits;
  uint64_t last = (off + len - 1) >> c->cluster_bits;

  if (len == 0)
    return;
  if (last >= c->nr || last < i) {
    ERROR (c, "reference to 0x%" PRIx64 " + 0x%" PRIx64 " beyond all",
           off, len);
    return;
  }
  for (; i <= last; ++i) {
    c->found[i]++;
    c->is_metadata[i] |= metadata ? 2 : 1;
  }
}

static uint64_t
refcount_in (const uint8_t *block, uint64_t i, unsigned bits)
{
  switch (bits) {
  case 8: return block[i];
  case 16: return get_be16 (block + i * 2);
  case 32: return get_be32 (block + i * 4);
  case 64: return get_be64 (block + i * 8);
  }
  return (block[i * bits / 8] >> (i * bits % 8)) & ((1U << bits) - 1);
}

static void
read_refcounts (struct checker *c, uint64_t table_off, uint64_t clusters)
{
  const uint64_t per_block = c->cluster_size * 8 / c->refcount_bits;
  const uint64_t len = clusters << c->cluster_bits;
  uint8_t *table = read_bytes (c, table_off, len), *block;
  uint64_t i, j;

  refer (c, table_off, len, true);
  if (table == NULL) {
    ERROR (c, "refcount table 0x%" PRIx64 " + 0x%" PRIx64 " not in the file",
           table_off, len);
    return;
  }
  for (i = 0; i < len / 8; ++i) {
    uint64_t e = get_be64 (table + i * 8);

    if (e == 0)
      continue;
    if ((e & (c->cluster_size - 1)) ||
        (block = read_bytes (c, e, c->cluster_size)) == NULL) {
      ERROR (c, "refcount table entry %" PRIu64 ": 0x%" PRIx64, i, e);
      continue;
    }
    refer (c, e, c->cluster_size, true);
    for (j = 0; j < per_block; ++j) {
      uint64_t n = refcount_in (block, j, c->refcount_bits);

      if (n && i * per_block + j >= c->nr)
        ERROR (c, "refcount %" PRIu64 " of cluster %" PRIu64 " beyond all",
               n, i * per_block + j);
      else if (n)
        c->stored[i * per_block + j] = n;
    }
    free (block);
  }
  free (table);
}

/* QEMU wants the flag if and only if the refcount is 1. */
static void
check_copied (struct checker *c, uint64_t e, uint64_t off, uint64_t where)
{
  uint64_t i = off >> c->cluster_bits;
  bool copied = e & ENTRY_COPIED;

  if (i < c->nr && copied != (c->stored[i] == 1))
    ERROR (c, "copied flag wrong in entry 0x%" PRIx64 " of table 0x%" PRIx64,
           e, where);
}

static void
check_compressed (struct checker *c, uint64_t e, uint64_t where)
{
  unsigned x = 62 - (c->cluster_bits - 8);
  uint64_t off = e & ((UINT64_C (1) << x) - 1);
  uint64_t sectors = ((e & ~(UINT64_C (3) << 62)) >> x) + 1;

  if (e & ENTRY_COPIED)
    ERROR (c, "compressed entry 0x%" PRIx64 " with flag, of table 0x%" PRIx64,
           e, where);
  if (off >= c->file_size)
    ERROR (c, "compressed entry 0x%" PRIx64 " beyond 0x%" PRIx64,
           e, c->file_size);
  refer (c, off, sectors * 512 - (off & 511), false);
}

static void
check_l2 (struct checker *c, uint64_t l2_off, bool active)
{
  uint8_t *l2 = read_bytes (c, l2_off, c->cluster_size);
  uint64_t i, e, off;

  if (l2 == NULL) {
    ERROR (c, "L2 table 0x%" PRIx64 " not in the file (%" PRIu64 ")",
           l2_off, c->file_size);
    return;
  }
  for (i = 0; i < c->cluster_size; i += c->l2_entry_size) {
    e = get_be64 (l2 + i);
    if (e & L2E_COMPRESSED) {
      check_compressed (c, e, l2_off);
      continue;
    }
    off = e & L2E_OFFSET_MASK;
    if (off == 0 && !(c->has_data_file && (e & ENTRY_COPIED)))
      continue;
    if ((off & (c->cluster_size - 1)) || (e & L2E_RESERVED_MASK) ||
        (!c->has_data_file && off >= c->file_size)) {
      ERROR (c, "L2 entry 0x%" PRIx64 " of table 0x%" PRIx64, e, l2_off);
      continue;
    }
    if (c->has_data_file) {     /* not refcounted */
      if (!(e & ENTRY_COPIED))
        ERROR (c, "L2 entry 0x%" PRIx64 " of table 0x%" PRIx64, e, l2_off);
      continue;
    }
    refer (c, off, c->cluster_size, false);
    if (active)
      check_copied (c, e, off, l2_off);
  }
  free (l2);
}

static void
check_l1 (struct checker *c, uint64_t l1_off, uint64_t entries, bool active)
{
  uint8_t *l1 = read_bytes (c, l1_off, entries * 8);
  uint64_t i, e, off;

  refer (c, l1_off, entries * 8, true);
  if (l1 == NULL) {
    ERROR (c, "L1 table 0x%" PRIx64 " of %" PRIu64 " entries not in the file",
           l1_off, entries);
    return;
  }
  for (i = 0; i < entries; ++i) {
    e = get_be64 (l1 + i * 8);
    off = e & L1E_OFFSET_MASK;
    if (off == 0)
      continue;
    if ((off & (c->cluster_size - 1)) || (e & L1E_RESERVED_MASK)) {
      ERROR (c, "L1 entry %" PRIu64 ": 0x%" PRIx64, i, e);
      continue;
    }
    refer (c, off, c->cluster_size, true);
    if (active)
      check_copied (c, e, off, l1_off);
    check_l2 (c, off, active);
  }
  free (l1);
}

static void
check_snapshots (struct checker *c, uint64_t off, unsigned nr)
{
  const uint64_t start = off;
  uint8_t *p;
  unsigned i;

  for (i = 0; i < nr; ++i) {
    uint64_t len = SNAP_FIXED_LEN;

    p = read_bytes (c, off, SNAP_FIXED_LEN);
    if (p == NULL) {
      ERROR (c, "snapshot %" PRIu64 " at 0x%" PRIx64, (uint64_t) i, off);
      return;
    }
    check_l1 (c, get_be64 (p + SNAP_L1_OFFSET), get_be32 (p + SNAP_L1_SIZE),
              false);
    len += get_be32 (p + SNAP_EXTRA_LEN) + get_be16 (p + SNAP_ID_LEN) +
      get_be16 (p + SNAP_NAME_LEN);
    off += (len + 7) & ~UINT64_C (7);
    free (p);
  }
  refer (c, start, off - start, true);
}

static void
check_bitmaps (struct checker *c)
{
  struct crash_bitmaps list;
  uint64_t i, j;

  if (crash_bitmaps_load (c->b, &list) < 0) {
    ERROR (c, "bitmaps: directory (%" PRIu64 ", %" PRIu64 ")",
           UINT64_C (0), UINT64_C (0));
    return;
  }
  refer (c, list.dir_off, list.dir_len, true);
  for (i = 0; i < list.nr; ++i) {
    const struct crash_bitmap *b = &list.bitmaps[i];

    refer (c, b->table_off, b->nr_table * 8, true);
    for (j = 0; j < b->nr_table; ++j)
      if (b->table[j] & L2E_OFFSET_MASK)
        refer (c, b->table[j] & L2E_OFFSET_MASK, c->cluster_size, true);
  }
  crash_bitmaps_free (&list);
}

static void
check_crypto_header (struct checker *c)
{
  uint64_t off = crash_bitmaps_extension (c->b, EXT_CRYPTO_HEADER);
  uint8_t *p = off ? read_bytes (c, off, CRYPTO_EXT_LEN) : NULL;

  if (p)
    refer (c, get_be64 (p + CRYPTO_EXT_OFFSET),
           get_be64 (p + CRYPTO_EXT_LENGTH), true);
  free (p);
}

static void
compare (struct checker *c)
{
  uint64_t i;

  for (i = 0; i < c->nr; ++i) {
    if (c->found[i] || c->stored[i])
      c->result->used_clusters = i + 1;
    if (c->stored[i] < c->found[i])
      ERROR (c, "refcount of cluster %" PRIu64 " is %" PRIu64 ", too low",
             i, c->stored[i]);
    else if (c->stored[i] > c->found[i]) {
      c->result->leaks++;
      finding (c, "leak: refcount of cluster %" PRIu64 " is %" PRIu64
               ", too high", i, c->stored[i]);
    }
    if (c->is_metadata[i] == 3)
      ERROR (c, "cluster %" PRIu64 " is metadata and data (%" PRIu64 ")",
             i, c->found[i]);
  }
}

static int
read_geometry (struct checker *c, const uint8_t *h)
{
  uint32_t version = get_be32 (h + HDR_VERSION);
  uint64_t incompatible = version >= 3 ? get_be64 (h + HDR_INCOMPATIBLE) : 0;

  c->cluster_bits = get_be32 (h + HDR_CLUSTER_BITS);
  if (get_be32 (h + HDR_MAGIC) != QCOW2_MAGIC ||
      (version != 2 && version != 3) ||
      c->cluster_bits < MIN_CLUSTER_BITS ||
      c->cluster_bits > MAX_CLUSTER_BITS)
    return -EINVAL;
  c->cluster_size = UINT64_C (1) << c->cluster_bits;
  c->refcount_bits = version == 2 ? 16
                     : 1U << (get_be32 (h + HDR_REFCOUNT_ORDER) & 7);
  c->l2_entry_size = incompatible & INCOMPAT_EXTENDED_L2 ? 16 : 8;
  c->has_data_file = incompatible & INCOMPAT_DATA_FILE;
  c->result->dirty = incompatible & INCOMPAT_DIRTY;
  c->result->corrupt = incompatible & INCOMPAT_CORRUPT;
  c->result->file_clusters =
    (c->file_size + c->cluster_size - 1) >> c->cluster_bits;
  /* Refcounts of space beyond the end of the file are leaks, as long as it
   * is not far beyond.
   */
  c->nr = c->result->file_clusters * 2 + 4096;
  return 0;
}

int
crash_check (struct backend *b, bool verbose, struct crash_check *result)
{
  struct checker c = { .b = b, .verbose = verbose, .result = result };
  int64_t size = backend_size (b);
  uint8_t *h;
  int r = -EINVAL;

  memset (result, 0, sizeof *result);
  if (size < HDR_V2_LENGTH)
    return -EINVAL;
  c.file_size = size;
  h = read_bytes (&c, 0, size < 512 ? size : 512);
  if (h && read_geometry (&c, h) == 0) {
    c.found = calloc (c.nr, sizeof *c.found);
    c.stored = calloc (c.nr, sizeof *c.stored);
    c.is_metadata = calloc (c.nr, 1);
  }
  if (c.found && c.stored && c.is_metadata) {
    refer (&c, 0, c.cluster_size, true);
    read_refcounts (&c, get_be64 (h + HDR_REFCOUNT_TABLE_OFFSET),
                    get_be32 (h + HDR_REFCOUNT_TABLE_CLUSTERS));
    check_l1 (&c, get_be64 (h + HDR_L1_TABLE_OFFSET),
              get_be32 (h + HDR_L1_SIZE), true);
    check_snapshots (&c, get_be64 (h + HDR_SNAPSHOTS_OFFSET),
                     get_be32 (h + HDR_NB_SNAPSHOTS));
    check_bitmaps (&c);
    check_crypto_header (&c);
    compare (&c);
    r = 0;
  }
  free (c.found);
  free (c.stored);
  free (c.is_metadata);
  free (h);
  return r;
}
