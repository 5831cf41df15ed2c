/* SPDX-License-Identifier: BSD-3-Clause */
/* Compressed clusters: reading one, and writing one.
 * Spec: "Compressed Clusters Descriptor".
 *
 * Compression and decompression run in the thread of the request, with the
 * contexts of that thread, and hold no lock.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "io.h"

struct fill {
  struct io *io;
  uint64_t guest_off;           /* for messages */
  const struct map_run *run;
};

/* The compressed bytes of RUN, as many as the file has: the end of the last
 * sector may lie beyond it.
 */
static int
read_compressed_bytes (struct io *io, const struct map_run *run,
                       uint8_t *buf, uint64_t *len)
{
  int64_t size;
  int r;

  *len = run->comp_len;
  r = backend_pread (io->file, buf, *len, run->host_off);
  if (r != -ENODATA)
    return r;
  size = backend_size (io->file);
  if (size < 0)
    return size;
  if (run->host_off >= (uint64_t) size)
    return -ENODATA;
  if (*len > (uint64_t) size - run->host_off)
    *len = size - run->host_off;
  return backend_pread (io->file, buf, *len, run->host_off);
}

/* A library is not on this machine any more. */
static int
fail_library (const struct io *io)
{
  nbdkit_error ("%s: compressed clusters: %s", io->name,
                codec_library_error (io->codec));
  return -EIO;
}

static int64_t
fill_cluster (void *opaque, void *out, size_t out_len, size_t want)
{
  struct fill *f = opaque;
  struct codec *codec = codec_thread ();
  uint64_t len;
  uint8_t *buf;
  int r;

  if (codec == NULL)
    return -ENOMEM;
  want = codec_want (f->io->codec, out_len, want);
  buf = malloc (f->run->comp_len);
  if (buf == NULL)
    return -ENOMEM;
  r = read_compressed_bytes (f->io, f->run, buf, &len);
  if (r == 0) {
    r = codec_decompress (codec, f->io->codec, buf, len, out, out_len, want);
    if (r == -EIO)
      r = -EBADMSG;
    else if (r == -ENOTSUP)
      r = fail_library (f->io);
  }
  free (buf);
  if (r == -EBADMSG || r == -ENODATA) {
    nbdkit_error ("%s: the compressed cluster of guest offset 0x%" PRIx64
                  " at host offset 0x%" PRIx64 " is %s", f->io->name,
                  f->guest_off, f->run->host_off,
                  r == -ENODATA ? "beyond the end of the file" : "malformed");
    r = -EIO;
  }
  return r < 0 ? r : (int64_t) want;
}

int
io_read_compressed (struct io *io, void *buf, uint64_t len, uint64_t off,
                    const struct map_run *run)
{
  struct fill fill = { .io = io, .guest_off = off, .run = run };
  const struct ccache_request req = {
    .key = { .owner = io->ccache_owner, .host_off = run->host_off },
    .cluster_idx = off >> io->geo->cluster_bits,
    .cluster_size = io->geo->cluster_size,
    .offset = geometry_in_cluster (io->geo, off),
    .count = len,
    .buf = buf,
  };

  return ccache_read (io->ccache, &req, fill_cluster, &fill);
}

int
io_check_compress (struct io *io, const struct codec_params *p)
{
  int min, max, def;

  if (io->geo->has_data_file) {
    nbdkit_error ("%s: an image with an external data file cannot hold "
                  "compressed clusters", io->name);
    return -ENOTSUP;
  }
  if (io->crypt) {
    nbdkit_error ("%s: an encrypted image cannot hold compressed clusters",
                  io->name);
    return -ENOTSUP;
  }
  if (codec_library_load (io->codec) < 0)
    return fail_library (io);
  codec_level_range (io->codec, &min, &max, &def);
  if (p->level != 0 && (p->level < min || p->level > max)) {
    nbdkit_error ("%s: compression level %d is out of range: this image "
                  "uses %s, levels %d to %d", io->name, p->level,
                  io->codec == CODEC_ZSTD ? "zstd" : "zlib", min, max);
    return -EINVAL;
  }
  return 0;
}

struct place {                  /* for io_with_alloc */
  uint64_t guest_off, len;
  const struct alloc_growth *growth;
  uint64_t host_off;
};

static int
alloc_place (struct io *io, void *opaque)
{
  struct place *p = opaque;
  int r;

  r = map_prepare_locked (io->map, p->guest_off, io->geo->cluster_size);
  if (r == 0)
    r = alloc_bytes_locked (io->alloc, p->len, p->growth, &p->host_off);
  return r;
}

/* Store LEN compressed bytes as the cluster at GUEST_OFF, which is owned. */
static int
store (struct io *io, const uint8_t *bytes, struct place *p)
{
  const struct ccache_key key = { .owner = io->ccache_owner };
  int r;

  r = io_with_alloc (io, alloc_place, p);
  if (r < 0)
    return r;
  r = backend_pwrite (io->file, bytes, p->len, p->host_off, 0);
  if (r == 0) {
    commit_data_written (io->commit);
    /* What was cached of an earlier cluster that began here. */
    ccache_drop (io->ccache, key.owner, p->host_off, 1);
  }

  WRITE_SCOPE (io->map->meta);

  if (r == 0)
    r = map_set_compressed_locked (io->map, p->guest_off, p->host_off,
                                   p->len);
  if (r < 0)
    alloc_release_bytes_locked (io->alloc, p->host_off, p->len);
  return r;
}

/* Who writes compressed clusters writes an image from one end to the other,
 * and nothing twice.  If all of it waited in the page cache for the flush at
 * the end, the disk would idle until then.
 */
#define WRITE_BEHIND_STEP (UINT64_C (16) << 20)

static void
write_behind (struct io *io)
{
  const uint64_t size = io->geo->cluster_size;

  if (atomic_fetch_add (&io->packed, size) % WRITE_BEHIND_STEP == 0 &&
      io->file->ops->write_behind)
    io->file->ops->write_behind (io->file);
}

int
io_write_compressed (struct io *io, const uint8_t *buf, uint64_t len,
                     uint64_t off, const struct io_hints *hints,
                     bool *stored)
{
  const uint64_t size = io->geo->cluster_size;
  struct codec_params params = hints->codec;
  struct codec *codec = codec_thread ();
  struct inflight_range range;
  struct place place = {
    .guest_off = off,
    .growth = hints->growth.size ? &hints->growth : NULL,
  };
  uint8_t *out, *padded = NULL;
  int64_t n = -ENOMEM;
  int r = 0;

  *stored = false;
  write_behind (io);
  params.type = io->codec;
  out = malloc (size);
  if (len < size) {             /* the disk ends inside this cluster */
    padded = calloc (1, size);
    if (padded)
      memcpy (padded, buf, len);
    buf = padded;
  }
  if (codec && out && buf)
    n = codec_compress (codec, &params, buf, size, out, size - 1);
  free (padded);
  if (n == -ENOTSUP)
    n = fail_library (io);
  if (n > 0) {
    place.len = n;
    inflight_begin (io->inflight, &range, off, off + size);
    r = store (io, out, &place);
    inflight_end (io->inflight, &range);
    *stored = r == 0;
    if (r == -EFBIG)            /* no descriptor can point there */
      r = 0;
  }
  free (out);
  return n < 0 ? (int) n : r;
}
