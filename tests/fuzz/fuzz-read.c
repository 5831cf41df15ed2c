/* SPDX-License-Identifier: BSD-3-Clause */
/* Reading: everything that a client can read of an image, its snapshots
 * included, and what it hears about extents.
 *
 * Findings, besides what sanitizers find: a zero extent that does not read
 * as zeroes; extents that do not follow each other; a file that is changed;
 * an extents request that reads without end.
 */

#include <config.h>

#include <limits.h>
#include <string.h>

#include "crypt.h"
#include "fuzz-disk.h"
#include "ondisk.h"

#define MAX_REQUEST     (UINT64_C (4) << 30)    /* that NBD has, nearly */
#define MAX_PROBES      64
#define PROBE           8192
#define MAX_EXTENTS     4096
#define MAX_READ        (UINT64_C (256) << 20)

struct walk {
  struct io *io;
  uint64_t next;                /* where the next extent must begin */
  unsigned nr, probes;
};

/* The first and last bytes of an extent. */
static void
probe (struct walk *w, uint64_t off, uint64_t len, unsigned flags)
{
  uint8_t buf[PROBE];
  uint64_t n = len < PROBE ? len : PROBE;
  size_t i;

  if (w->probes++ >= MAX_PROBES)
    return;
  if (io_pread (w->io, buf, n, off) == 0 && (flags & IO_EXTENT_ZERO))
    for (i = 0; i < n; ++i)
      FUZZ_CHECK (buf[i] == 0);
  if (len > n && io_pread (w->io, buf, n, off + len - n) == 0 &&
      (flags & IO_EXTENT_ZERO))
    for (i = 0; i < n; ++i)
      FUZZ_CHECK (buf[i] == 0);
}

static int
one_extent (void *opaque, uint64_t off, uint64_t len, unsigned flags)
{
  struct walk *w = opaque;

  FUZZ_CHECK (off == w->next && len > 0);
  FUZZ_CHECK (off < w->io->size && len <= w->io->size - off);
  w->next = off + len;
  if (flags != UINT_MAX)
    probe (w, off, len, flags);
  return ++w->nr < MAX_EXTENTS ? 0 : 1;
}

/* What says where writes must allocate does not say what can be read. */
static int
one_layer_extent (void *opaque, uint64_t off, uint64_t len, unsigned flags)
{
  (void) flags;
  return one_extent (opaque, off, len, UINT_MAX);
}

static void
walk_extents (struct io *io, uint64_t off, bool layer)
{
  struct walk w = { .io = io, .next = off };
  uint64_t n = io->size - off;
  int r;

  if (n > MAX_REQUEST - 512)
    n = MAX_REQUEST - 512;
  r = io_extents (io, n, off, layer, layer ? one_layer_extent : one_extent,
                  &w);
  if (r == 0 && w.nr < MAX_EXTENTS)
    FUZZ_CHECK (w.next == off + n);
}

static void
read_disk (struct io *io)
{
  static uint8_t buf[256 * 1024];
  uint64_t off, n;

  for (off = 0; off < io->size && off < 4 * sizeof buf; off += n) {
    n = io->size - off < sizeof buf ? io->size - off : sizeof buf;
    if (io_pread (io, buf, n, off) < 0)
      n = n < 4096 ? n : 4096;
  }
  if (io->size > 700 && io_pread (io, buf, 600, io->size - 600) < 0)
    return;
  if (io->size == 0)
    return;
  walk_extents (io, 0, false);
  walk_extents (io, 0, true);
  walk_extents (io, io->size - 1 - (io->size - 1) / 2, false);
  n = io->size < MAX_REQUEST ? io->size : MAX_REQUEST;
  if (io_cache (io, n < sizeof buf ? n : sizeof buf, 0) < 0)
    return;
}

static void
read_snapshots (struct core *core)
{
  struct map map;
  struct io io;
  size_t i;

  for (i = 0; i < core->snapshots.nr && i < 4; ++i) {
    if (core_open_snapshot (core, &core->snapshots.entries[i], &map,
                            &io) < 0)
      continue;
    read_disk (&io);
    map_close (&map);
  }
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  struct fuzz_image image;
  struct fuzz_disk disk;
  struct backend *external;
  struct crypt *crypt = NULL;

  if (!fuzz_image_load (data, size, &image))
    return 0;
  /* The data file is the image itself, so that there is something in it. */
  external = fuzz_mem_clone (image.file);
  external->writable = false;
  if (fuzz_disk_open (image.file, external, 0, &disk) == 0) {
    const uint64_t changes = fuzz_mem_changes (image.file);

    if (disk.core->header.crypt_method == HDR_CRYPT_AES &&
        crypt_open_aes ("fuzz", "secret", &crypt) == 0)
      disk.core->io.crypt = crypt;
    read_disk (&disk.core->io);
    read_snapshots (disk.core);
    FUZZ_CHECK (fuzz_disk_close (&disk) == 0);
    crypt_close (crypt);
    FUZZ_CHECK (fuzz_mem_changes (image.file) == changes);
    FUZZ_CHECK (fuzz_mem_bytes_read (image.file) <= MAX_READ);
  }
  backend_close (external);
  backend_close (image.file);
  return 0;
}

#include "fuzz-mutator.h"
