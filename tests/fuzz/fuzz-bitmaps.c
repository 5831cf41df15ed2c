/* SPDX-License-Identifier: BSD-3-Clause */
/* The bitmap directory and bitmap tables: u8 number of bitmaps, u8 options,
 * u16 length of the directory, then the directory and what lies behind it,
 * which is put at FUZZ_BITMAPS_OFF of an image of 1 MiB with clusters of
 * 512 bytes.
 *
 * The refcounts are made right by repair.  Where that succeeds, the image
 * must stay right when the disk is written to and resized.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "bitmaps.h"
#include "create.h"
#include "fuzz-bitmaps.h"
#include "fuzz-disk.h"
#include "ondisk.h"
#include "repair.h"
#include "resize.h"

#define HEAD_LEN        4
#define CLUSTER         512
#define DISK_SIZE       (1024 * 1024)
#define BUDGET          (UINT64_C (64) << 20)

/* The image without bitmaps, made once. */
static struct backend *
base_image (void)
{
  static struct backend *base;
  struct create_options o;

  if (base)
    return base;
  create_defaults (&o);
  o.size = DISK_SIZE;
  o.cluster_size = CLUSTER;
  base = fuzz_mem_create ("fuzz");
  FUZZ_CHECK (create_image (base, NULL, &o) == 0);
  FUZZ_CHECK (backend_size (base) <= FUZZ_BITMAPS_OFF);
  return base;
}

static struct backend *
make_image (const uint8_t *data, size_t size)
{
  struct backend *file = fuzz_mem_clone (base_image ());
  uint8_t buf[CLUSTER];
  struct header h;

  FUZZ_CHECK (backend_pread (file, buf, CLUSTER, 0) == 0);
  FUZZ_CHECK (header_parse ("fuzz", buf, CLUSTER, backend_size (file),
                            &h) == 0);
  h.has_bitmaps = true;
  h.autoclear |= AUTOCLEAR_BITMAPS;
  h.nb_bitmaps = data[0];
  h.bitmap_directory_offset = FUZZ_BITMAPS_OFF;
  h.bitmap_directory_size = get_be16 (data + 2);
  FUZZ_CHECK (header_serialise ("fuzz", &h, buf) == 0);
  header_free (&h);
  FUZZ_CHECK (backend_pwrite (file, buf, CLUSTER, 0, 0) == 0);
  size = (size - HEAD_LEN) & ~(size_t) (CLUSTER - 1);
  FUZZ_CHECK (backend_pwrite (file, data + HEAD_LEN, size, FUZZ_BITMAPS_OFF,
                              0) == 0);
  return file;
}

/* The directory alone. */
static void
read_directory (struct backend *file)
{
  struct bitmap_directory d;
  struct fuzz_disk disk;
  size_t i;

  if (fuzz_disk_open (file, NULL, 0, &disk) < 0)
    return;
  if (disk.core->header.has_bitmaps &&
      bitmaps_read_directory ("fuzz", file, &disk.core->geo,
                              &disk.core->header, &d) == 0) {
    FUZZ_CHECK (d.nr == disk.core->header.nb_bitmaps);
    for (i = 0; i < d.nr; ++i)
      FUZZ_CHECK (d.entries[i].name != NULL);
    bitmaps_free_directory (&d);
  }
  FUZZ_CHECK (fuzz_disk_close (&disk) == 0);
}

static void
write_disk (struct backend *file)
{
  static const uint8_t text[1000] = { 1, 2, 3 };
  static const uint32_t offsets[] = { 0, 5000, 300000, DISK_SIZE - 1000 };
  struct fuzz_disk disk;
  size_t i;

  if (fuzz_disk_open (file, NULL, FUZZ_DISK_WRITABLE, &disk) < 0)
    return;
  for (i = 0; i < sizeof offsets / sizeof offsets[0]; ++i)
    if (offsets[i] + sizeof text <= disk.core->io.size &&
        io_pwrite (&disk.core->io, text, sizeof text, offsets[i], 0,
                   NULL) < 0)
      break;
  if (fuzz_disk_close (&disk) < 0)
    return;
}

static void
resize_disk (struct backend *file, uint64_t size)
{
  struct fuzz_disk disk;
  int r;

  if (fuzz_disk_open (file, NULL, FUZZ_DISK_WRITABLE | FUZZ_DISK_ADMIN,
                      &disk) < 0)
    return;
  r = resize_image (disk.core, size, true);
  FUZZ_CHECK (r <= 0);
  if (fuzz_disk_close (&disk) < 0)
    return;
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  struct check_result res;
  struct backend *file;
  bool right;

  if (size < HEAD_LEN)
    return 0;
  file = make_image (data, size);
  read_directory (file);
  file->writable = true;
  fuzz_mem_read_budget (file, BUDGET);
  right = repair_run (file, REPAIR_ALL, NULL, &res) == 0 &&
    res.corruptions == 0 && res.check_errors == 0;
  fuzz_mem_read_budget (file, UINT64_MAX);
  write_disk (file);
  if (right && fuzz_disk_check (file, BUDGET, &res))
    FUZZ_CHECK (res.corruptions == 0 && res.check_errors == 0);
  if (data[1] & 1)
    resize_disk (file, DISK_SIZE * 3 + 5);
  if (data[1] & 2)
    resize_disk (file, DISK_SIZE / 3);
  write_disk (file);
  if (right && fuzz_disk_check (file, BUDGET, &res))
    FUZZ_CHECK (res.corruptions == 0 && res.check_errors == 0);
  backend_close (file);
  return 0;
}
