/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening: header, extensions, tables; for reading, for writing, as an
 * image of a stranger.
 *
 * Findings, besides what sanitizers find: a header that changes when it is
 * written and read; a file that is changed by opening it; many messages
 * about one image; reading without end.
 */

#include <config.h>

#include <string.h>

#include "check.h"
#include "fuzz-disk.h"
#include "image.h"
#include "ondisk.h"

#define MAX_MESSAGES    64
#define MAX_READ        (UINT64_C (256) << 20)

static void
check_round_trip (struct backend *file)
{
  const uint64_t size = backend_size (file);
  size_t len = size < 65536 ? size : 65536, cluster;
  uint8_t *buf = malloc (len + 1), *out, *again;
  struct header h, h2;

  if (buf == NULL || backend_pread (file, buf, len, 0) < 0 ||
      header_parse ("fuzz", buf, len, size, &h) < 0) {
    free (buf);
    return;
  }
  cluster = (size_t) 1 << h.cluster_bits;
  out = malloc (cluster);
  again = malloc (cluster);
  if (out && again && header_serialise ("fuzz", &h, out) == 0) {
    FUZZ_CHECK (header_parse ("fuzz", out, cluster, size, &h2) == 0);
    FUZZ_CHECK (header_serialise ("fuzz", &h2, again) == 0);
    FUZZ_CHECK (memcmp (out, again, cluster) == 0);
    FUZZ_CHECK (h2.size == h.size && h2.l1_size == h.l1_size &&
                h2.incompatible == h.incompatible &&
                h2.nr_unknown == h.nr_unknown);
    header_free (&h2);
  }
  header_free (&h);
  free (buf);
  free (out);
  free (again);
}

static void
open_once (struct backend *file, unsigned flags)
{
  const uint64_t before = fuzz_mem_changes (file);
  const uint64_t read_before = fuzz_mem_bytes_read (file);
  struct fuzz_disk disk;
  int r;

  fuzz_log_errors ();
  r = fuzz_disk_open (file, file, flags, &disk);
  if (r < 0)
    FUZZ_CHECK (fuzz_log_errors () >= 1);
  else
    FUZZ_CHECK (fuzz_disk_close (&disk) == 0);
  FUZZ_CHECK (fuzz_log_errors () <= MAX_MESSAGES);
  FUZZ_CHECK (fuzz_mem_changes (file) == before);
  FUZZ_CHECK (fuzz_mem_bytes_read (file) - read_before <= MAX_READ);
}

/* As the plugin does it with external=deny. */
static void
open_image (struct backend *file)
{
  struct image_options opts = {
    .external_deny = true, .metadata_cache = UINT64_C (4) << 20,
  };
  struct image *image;

  file->writable = false;
  if (image_open_on (file, &opts, &image) < 0)
    backend_close (file);
  else
    FUZZ_CHECK (image_close (image) == 0);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  struct fuzz_image image;

  if (!fuzz_image_load (data, size, &image))
    return 0;
  check_round_trip (image.file);
  open_once (image.file, 0);
  open_once (image.file, FUZZ_DISK_WRITABLE);
  open_once (image.file, FUZZ_DISK_WRITABLE | FUZZ_DISK_ADMIN);
  open_image (image.file);
  return 0;
}

#include "fuzz-mutator.h"
