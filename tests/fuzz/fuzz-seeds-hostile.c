/* SPDX-License-Identifier: BSD-3-Clause */
/* Images that lie, as seeds: what the fuzzers found, and what takes them a
 * long time to find.
 */

#include <config.h>

#include <string.h>

#include "fuzz-seeds.h"
#include "ondisk.h"

static const uint8_t script[] = {
  0, 1, 16, 0,   0, 0, 1, 1,
  0, 0, 3, 9,    1, 1, 7, 40,
  8, 0, 0, 0,    0, 0, 0, 0,
  7, 2, 0, 2,    0, 0, 0, 1,
  10, 0, 3, 0,   0, 0, 0, 0,
  10, 3, 0, 9,   0, 0, 0, 0,
};

static uint64_t
get (struct backend *b, uint64_t off)
{
  uint8_t buf[8];

  FUZZ_CHECK (backend_pread (b, buf, sizeof buf, off) == 0);
  return get_be64 (buf);
}

static void
set (struct backend *b, uint64_t off, uint64_t v)
{
  uint8_t buf[8];

  put_be64 (buf, v);
  FUZZ_CHECK (backend_pwrite (b, buf, sizeof buf, off, 0) == 0);
}

static void
set32 (struct backend *b, uint64_t off, uint32_t v)
{
  uint8_t buf[4];

  put_be32 (buf, v);
  FUZZ_CHECK (backend_pwrite (b, buf, sizeof buf, off, 0) == 0);
}

static void
save (struct backend *b, const char *name)
{
  char repair[64];

  snprintf (repair, sizeof repair, "%s-repair", name);
  seed_save_image (b, name, 0, script, sizeof script);
  seed_save_image (b, repair, 4, script, sizeof script);
  backend_close (b);
}

/* Each entry of the refcount table is broken. */
static void
broken_refcount_table (void)
{
  struct backend *b = seed_image ("plain-4k");
  const uint64_t table = get (b, HDR_REFCOUNT_TABLE_OFFSET);
  unsigned i;

  for (i = 0; i < 512; ++i)
    set (b, table + i * 8, UINT64_C (0x1000000000) + i * 4096);
  save (b, "refcount-blocks-beyond");
}

/* All entries of a table are the same.  With a table of 8 MiB, opening the
 * image took hours.
 */
static void
one_refcount_block (void)
{
  struct backend *b = seed_image ("plain-4k");
  const uint64_t table = get (b, HDR_REFCOUNT_TABLE_OFFSET);
  unsigned i;

  for (i = 1; i < 512; ++i)
    set (b, table + i * 8, get (b, table));
  save (b, "one-refcount-block");
}

static void
one_l2_table (void)
{
  struct backend *b = seed_image ("small-512");
  const uint64_t l1 = get (b, HDR_L1_TABLE_OFFSET), v = get (b, l1);
  unsigned i;

  for (i = 0; i < 10; ++i)
    set (b, l1 + i * 8, v);
  save (b, "one-l2-table");
}

/* Tables that overlap each other. */
static void
overlapping_tables (void)
{
  struct backend *b = seed_image ("ref2");
  const uint64_t l1 = get (b, HDR_L1_TABLE_OFFSET), v = get (b, l1);
  unsigned i;

  for (i = 0; i < 10; ++i)
    set (b, l1 + i * 8, v + i * 512);
  save (b, "overlapping-l2-tables");

  b = seed_image ("small-512");
  set (b, get (b, HDR_SNAPSHOTS_OFFSET) + SNAP_L1_OFFSET,
       get (b, HDR_L1_TABLE_OFFSET));
  save (b, "snapshot-has-active-l1");
}

/* A sparse file in which a snapshot has a large L1 table. */
static void
large_snapshots (void)
{
  struct backend *b = seed_image ("small-512");
  const uint64_t table = get (b, HDR_SNAPSHOTS_OFFSET);

  FUZZ_CHECK (backend_truncate (b, UINT64_C (1) << 37, false) == 0);
  set32 (b, table + SNAP_L1_SIZE, MAX_L1_SIZE / 128);
  set (b, table + SNAP_L1_OFFSET, UINT64_C (1) << 30);
  save (b, "large-snapshot");
}

/* A large disk in a file that has nearly nothing. */
static void
large_disk (void)
{
  struct backend *b = seed_image ("small-512");

  FUZZ_CHECK (backend_truncate (b, UINT64_C (1) << 32, false) == 0);
  set (b, HDR_L1_TABLE_OFFSET, UINT64_C (1) << 30);
  set32 (b, HDR_L1_SIZE, MAX_L1_SIZE / 512);
  set (b, HDR_SIZE, (MAX_L1_SIZE / 512) << 15);
  save (b, "large-disk");
}

/* The first extension, the backing format, begins with a zero byte. */
static void
empty_format (void)
{
  struct backend *b = seed_image ("backing");

  set (b, HDR_V3_LENGTH + 8, 0);
  save (b, "empty-format");
}

/* Marks that ask for a repair. */
static void
marked (void)
{
  struct backend *b = seed_image ("plain-4k");

  set (b, HDR_INCOMPATIBLE, INCOMPAT_DIRTY);
  save (b, "dirty");
  b = seed_image ("plain-4k");
  set (b, HDR_INCOMPATIBLE, INCOMPAT_CORRUPT);
  save (b, "corrupt");
}

/* A backing file that ends inside a compressed cluster, which is trimmed:
 * the request never ended.
 */
static void
trim_compressed (void)
{
  static const uint8_t ops[] = {
    3, 18, 0, 1,   0, 0, 3, 1,
    7, 6, 0, 1,    0, 0, 0, 1,
  };
  struct backend *b = seed_image ("ext-64k");

  seed_save_image (b, "trim-compressed", 0, ops, sizeof ops);
  backend_close (b);
}

void
seed_hostile_images (void)
{
  broken_refcount_table ();
  one_refcount_block ();
  one_l2_table ();
  overlapping_tables ();
  large_snapshots ();
  large_disk ();
  empty_format ();
  marked ();
  trim_compressed ();
}
