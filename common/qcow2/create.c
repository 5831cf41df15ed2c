/* SPDX-License-Identifier: BSD-3-Clause */
/* Create an image.
 *
 * Layout, in clusters: header, refcount table, refcount blocks, L1 table,
 * encryption header, L2 tables and data clusters if preallocated; nothing
 * in between, so that everything is written in one pass of large writes
 * and with bounded memory.  Where QEMU preallocates nothing and needs one
 * refcount block, its layout is the same.
 *
 * Invariant: the file becomes an image by the write of its first sector,
 * which happens after all else is stable (I5).  Barriers are issued here
 * and not in commit.c, since there is no image yet that could commit.
 *
 * Locks: none; the caller is the only user of the file.
 *
 * It neither makes nor removes files, and does not look at the backing
 * file.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "create.h"
#include "geometry.h"
#include "header.h"
#include "ondisk.h"
#include "refcount.h"

#define SECTOR 512
#define STREAM_SIZE ((size_t) 1 << MAX_CLUSTER_BITS)
#define ZERO_IOVS 8

/* Where everything goes.  Places (_idx) and lengths (nr_) in clusters. */
struct layout {
  struct geometry geo;
  uint64_t size;                /* virtual size, bytes */
  uint64_t l1_size;             /* entries */
  uint64_t nr_reftable;
  uint64_t refblock_idx, nr_refblocks;
  uint64_t l1_idx, nr_l1;
  uint64_t crypto_idx, nr_crypto;
  uint64_t l2_idx, nr_l2;
  uint64_t data_idx, nr_data;   /* nr_data 0: in the data file, or none */
  uint64_t total;
  uint64_t file_len;            /* bytes */
};

void
create_defaults (struct create_options *o)
{
  *o = (struct create_options) {
    .version = 3, .cluster_size = 65536, .refcount_bits = 16,
  };
}

/* What only version 3 images can have.  NULL: nothing of it is asked. */
static const char *
needs_version_3 (const struct create_options *o)
{
  if (o->refcount_bits != 16)
    return "refcount-bits other than 16";
  if (o->compression_type != CODEC_ZLIB)
    return "compression-type=zstd";
  if (o->extended_l2)
    return "extended-l2=true";
  if (o->lazy_refcounts)
    return "lazy-refcounts=true";
  if (o->data_file)
    return "data-file";
  if (o->crypto_header && o->preallocation != CREATE_PREALLOC_OFF)
    return "preallocation of an encrypted image";
  return NULL;
}

static bool
is_power_of_2 (uint64_t n)
{
  return n != 0 && (n & (n - 1)) == 0;
}

/* Options that exclude each other.  NULL: there are none. */
static const char *
conflict (const struct create_options *o)
{
  if (o->backing_format && !o->backing_file)
    return "backing-format needs backing-file";
  if (o->backing_file && !o->backing_format)
    return "backing-file needs backing-format: the format of a backing file"
      " is never guessed";
  if (o->backing_file && o->backing_file[0] == '\0')
    return "backing-file is empty";
  if (o->backing_file && strlen (o->backing_file) > MAX_BACKING_FILE_SIZE)
    return "the name of the backing file is longer than 1023 bytes";
  if (o->backing_format && strlen (o->backing_format) > MAX_BACKING_FORMAT_SIZE)
    return "the name of the backing format is longer than 15 bytes";
  if (o->backing_file && o->preallocation != CREATE_PREALLOC_OFF &&
      !o->extended_l2)
    return "backing-file and preallocation can be used together only with"
      " extended-l2=true";
  if (o->data_file && o->data_file[0] == '\0')
    return "data-file is empty";
  if (o->data_file_raw && !o->data_file)
    return "data-file-raw=true needs data-file";
  if (o->data_file_raw && o->backing_file)
    return "backing-file and data-file-raw=true exclude each other";
  if (o->data_file_raw && o->crypto_header)
    return "an encrypted image cannot have data-file-raw=true";
  return NULL;
}

static int
check_values (const char *name, const struct create_options *o)
{
  const char *what;

  if (o->version != 2 && o->version != 3) {
    nbdkit_error ("%s: cannot create: compat must be 0.10 or 1.1", name);
    return -EINVAL;
  }
  if (!is_power_of_2 (o->cluster_size) ||
      o->cluster_size < 1U << MIN_CLUSTER_BITS ||
      o->cluster_size > 1U << MAX_CLUSTER_BITS) {
    nbdkit_error ("%s: cannot create: cluster-size must be a power of two"
                  " from 512 to 2M, not %" PRIu64, name, o->cluster_size);
    return -EINVAL;
  }
  if (o->extended_l2 &&
      o->cluster_size < 1U << MIN_EXTENDED_L2_CLUSTER_BITS) {
    nbdkit_error ("%s: cannot create: extended-l2=true needs a cluster-size"
                  " of 16k or more, not %" PRIu64, name, o->cluster_size);
    return -EINVAL;
  }
  if (!is_power_of_2 (o->refcount_bits) || o->refcount_bits > 64) {
    nbdkit_error ("%s: cannot create: refcount-bits must be a power of two"
                  " from 1 to 64, not %u", name, o->refcount_bits);
    return -EINVAL;
  }
  what = o->version == 2 ? needs_version_3 (o) : NULL;
  if (what) {
    nbdkit_error ("%s: cannot create: %s needs compat=1.1", name, what);
    return -EINVAL;
  }
  what = conflict (o);
  if (what) {
    nbdkit_error ("%s: cannot create: %s", name, what);
    return -EINVAL;
  }
  return 0;
}

static bool
preallocates (const struct create_options *o)
{
  return o->preallocation != CREATE_PREALLOC_OFF || o->data_file_raw;
}

/* The header with all that does not depend on the layout.  Strings are
 * borrowed: it must not be freed.
 */
static struct header
make_header (const struct create_options *o)
{
  struct header h = {
    .version = o->version,
    .cluster_bits = __builtin_ctzll (o->cluster_size),
    .size = (o->size + SECTOR - 1) & ~(uint64_t) (SECTOR - 1),
    .refcount_order = __builtin_ctz (o->refcount_bits),
    .compression_type = o->compression_type,
    .backing_file = (char *) o->backing_file,
    .backing_format = (char *) o->backing_format,
    .data_file = (char *) o->data_file,
  };

  if (o->data_file)
    h.incompatible |= INCOMPAT_DATA_FILE;
  if (o->data_file_raw)
    h.autoclear |= AUTOCLEAR_DATA_FILE_RAW;
  if (o->compression_type != CODEC_ZLIB)
    h.incompatible |= INCOMPAT_COMPRESSION;
  if (o->extended_l2)
    h.incompatible |= INCOMPAT_EXTENDED_L2;
  if (o->lazy_refcounts)
    h.compatible |= COMPAT_LAZY_REFCOUNTS;
  if (o->crypto_header) {
    h.crypt_method = HDR_CRYPT_LUKS;
    h.has_crypto = true;
    h.crypto_length = o->crypto_len;
  }
  return h;
}

/* Refcount table and blocks count themselves: the smallest numbers that
 * cover NR other clusters.
 */
static void
place_refcounts (struct layout *l, uint64_t nr)
{
  uint64_t span = UINT64_C (1) << l->geo.refblock_bits;
  uint64_t blocks = 0, table = 0, total;

  do {
    total = nr + blocks + table;
    blocks = (total + span - 1) >> l->geo.refblock_bits;
    table = geometry_clusters (&l->geo, blocks * 8);
  } while (nr + blocks + table != total);
  l->nr_reftable = table;
  l->nr_refblocks = blocks;
}

static int
make_layout (const char *name, const struct create_options *o,
             const struct header *h, struct layout *l)
{
  const struct geometry *g = &l->geo;
  uint64_t cs, others;
  int64_t entries = -EFBIG;

  memset (l, 0, sizeof *l);
  geometry_init (&l->geo, h);
  cs = g->cluster_size;
  l->size = h->size;
  if (o->size <= INT64_MAX)     /* else rounding up may have wrapped */
    entries = geometry_l1_entries (g, l->size);
  if (entries < 0) {
    nbdkit_error ("%s: cannot create: a disk of %" PRIu64 " bytes is too"
                  " large for a cluster-size of %" PRIu64 ", which allows"
                  " %" PRIu64 "; use larger clusters", name, o->size, cs,
                  (MAX_L1_SIZE / 8) << geometry_l2_span_bits (g));
    return -EFBIG;
  }
  l->l1_size = entries;
  l->nr_l1 = geometry_clusters (g, l->l1_size * 8);
  l->nr_crypto = geometry_clusters (g, o->crypto_len);
  if (preallocates (o)) {
    l->nr_l2 = l->l1_size;
    l->nr_data = o->data_file ? 0 : geometry_clusters (g, l->size);
  }
  others = 1 + l->nr_l1 + l->nr_crypto + l->nr_l2 + l->nr_data;
  place_refcounts (l, others);
  l->total = others + l->nr_reftable + l->nr_refblocks;
  if (l->nr_reftable * cs > MAX_REFTABLE_SIZE ||
      l->total > MAX_HOST_OFFSET >> g->cluster_bits) {
    nbdkit_error ("%s: cannot create: preallocation of a disk of %" PRIu64
                  " bytes is more than refcounts of %u bits can describe"
                  " with a cluster-size of %" PRIu64 "; use larger clusters",
                  name, l->size, o->refcount_bits, cs);
    return -EFBIG;
  }

  l->refblock_idx = 1 + l->nr_reftable;
  l->l1_idx = l->refblock_idx + l->nr_refblocks;
  l->crypto_idx = l->l1_idx + l->nr_l1;
  l->l2_idx = l->crypto_idx + l->nr_crypto;
  l->data_idx = l->l2_idx + l->nr_l2;
  /* As QEMU: the file may end inside the cluster of the last table. */
  l->file_len = l->total * cs;
  if (l->crypto_idx == l->total && l->nr_l1 > 0)
    l->file_len = l->l1_idx * cs + l->l1_size * 8;
  return 0;
}

static void
finish_header (struct header *h, const struct layout *l)
{
  uint64_t cs = l->geo.cluster_size;

  h->l1_size = l->l1_size;
  h->l1_table_offset = l->l1_size ? l->l1_idx * cs : 0;
  h->refcount_table_offset = cs;
  h->refcount_table_clusters = l->nr_reftable;
  if (h->has_crypto)
    h->crypto_offset = l->crypto_idx * cs;
}

/* Everything up to the first write: *BUF is the header's cluster, which the
 * caller frees.
 */
static int
plan (const char *name, const struct create_options *o, struct layout *l,
      uint8_t **buf)
{
  struct header h;
  int r;

  *buf = NULL;
  r = check_values (name, o);
  if (r < 0)
    return r;
  h = make_header (o);
  r = make_layout (name, o, &h, l);
  if (r < 0)
    return r;
  finish_header (&h, l);
  *buf = malloc (l->geo.cluster_size);
  if (*buf == NULL) {
    nbdkit_error ("%s: no memory to create the image", name);
    return -ENOMEM;
  }
  r = header_serialise (name, &h, *buf);
  return r == -ENOSPC ? -EINVAL : r;
}

int
create_check (const char *name, const struct create_options *o)
{
  struct layout l;
  uint8_t *buf;
  int r;

  r = plan (name, o, &l, &buf);
  free (buf);
  return r;
}

/* A table that is written from its start to its end. */
struct stream {
  struct backend *file;
  uint8_t *buf;                 /* STREAM_SIZE bytes */
  size_t used;
  uint64_t off;                 /* in the file, of the start of BUF */
};

static int
stream_flush (struct stream *s)
{
  int r = 0;

  if (s->used)
    r = backend_pwrite (s->file, s->buf, s->used, s->off, 0);
  s->off += s->used;
  s->used = 0;
  return r;
}

static int
stream_put (struct stream *s, uint64_t value)
{
  put_be64 (s->buf + s->used, value);
  s->used += 8;
  return s->used == STREAM_SIZE ? stream_flush (s) : 0;
}

/* Zeroes up to END, then everything is written. */
static int
stream_finish (struct stream *s, uint64_t end)
{
  int r = 0;

  while (r == 0 && s->off + s->used < end)
    r = stream_put (s, 0);
  return r < 0 ? r : stream_flush (s);
}

/* NR entries that point to the clusters from IDX on, one after the other,
 * as a table at AT_IDX of NR_CLUSTERS.
 */
static int
write_table (struct stream *s, const struct layout *l, uint64_t at_idx,
             uint64_t nr_clusters, uint64_t idx, uint64_t nr, uint64_t flags)
{
  unsigned bits = l->geo.cluster_bits;
  uint64_t i;
  int r;

  s->off = at_idx << bits;
  s->used = 0;
  for (i = 0; i < nr; i++) {
    r = stream_put (s, ((idx + i) << bits) | flags);
    if (r < 0)
      return r;
  }
  return stream_finish (s, (at_idx + nr_clusters) << bits);
}

/* Blocks in which each cluster of the layout has one reference. */
static int
write_refblocks (struct stream *s, const struct layout *l)
{
  const struct geometry *g = &l->geo;
  uint64_t span = UINT64_C (1) << g->refblock_bits;
  uint64_t b, i, in_last = l->total - (l->nr_refblocks - 1) * span;
  uint64_t off = l->refblock_idx * g->cluster_size;
  int r = 0;

  memset (s->buf, 0, g->cluster_size);
  for (i = 0; i < (l->nr_refblocks > 1 ? span : in_last); i++)
    refcount_entry_set (s->buf, i, g->refcount_order, 1);
  for (b = 0; b < l->nr_refblocks && r == 0; b++) {
    if (b > 0 && b == l->nr_refblocks - 1)
      for (i = in_last; i < span; i++)
        refcount_entry_set (s->buf, i, g->refcount_order, 0);
    r = backend_pwrite (s->file, s->buf, g->cluster_size,
                        off + b * g->cluster_size, 0);
  }
  return r;
}

/* L2 tables that map each guest cluster. */
static int
write_l2_tables (struct stream *s, const struct layout *l,
                 const struct create_options *o)
{
  const struct geometry *g = &l->geo;
  uint64_t i, nr = geometry_clusters (g, l->size);
  uint64_t first = o->data_file ? 0 : l->data_idx;
  /* Subclusters that are not allocated read from the backing file, or as
   * zeroes; but a raw data file is the disk, whatever it contains.
   */
  uint64_t bitmap = o->data_file_raw ? UINT32_MAX : 0;
  uint64_t flags = ENTRY_COPIED;
  int r = 0;

  /* Host zeroes would be decrypted to garbage. */
  if (o->crypto_header && !g->extended_l2)
    flags |= L2E_ZERO;

  s->off = l->l2_idx * g->cluster_size;
  s->used = 0;
  for (i = 0; i < nr && r == 0; i++) {
    r = stream_put (s, ((first + i) << g->cluster_bits) | flags);
    if (r == 0 && g->extended_l2)
      r = stream_put (s, bitmap);
  }
  return r < 0 ? r : stream_finish (s, l->data_idx * g->cluster_size);
}

/* Write zeroes for real, so that the blocks are written on the host. */
static int
write_zeroes (struct backend *b, uint8_t *buf, uint64_t off, uint64_t len)
{
  int r = 0;

  memset (buf, 0, STREAM_SIZE);
  while (len > 0 && r == 0) {
    struct iovec iov[ZERO_IOVS];
    uint64_t done = 0;
    int n;

    for (n = 0; n < ZERO_IOVS && done < len; n++) {
      iov[n].iov_base = buf;
      iov[n].iov_len = len - done < STREAM_SIZE ? len - done : STREAM_SIZE;
      done += iov[n].iov_len;
    }
    r = backend_pwritev (b, iov, n, off, 0);
    off += done;
    len -= done;
  }
  return r;
}

static int
set_length (struct backend *b, uint64_t old_len, uint64_t len,
            enum create_preallocation *mode)
{
  int r = -ENOTSUP;

  if (b->fixed_size) {
    nbdkit_error ("%s: cannot create: %" PRIu64 " bytes are needed, but the"
                  " storage has a fixed size of %" PRIu64,
                  b->name, len, old_len);
    return -ENOSPC;
  }
  if (*mode == CREATE_PREALLOC_FALLOC) {
    r = backend_truncate (b, len, true);
    if (r == -ENOTSUP)          /* then by hand */
      *mode = CREATE_PREALLOC_FULL;
  }
  if (r == -ENOTSUP)
    r = backend_truncate (b, len, false);
  if (r == -ENOSPC || r == -EFBIG || r == -ENOTSUP)
    nbdkit_error ("%s: cannot create: no space for %" PRIu64 " bytes",
                  b->name, len);
  return r == -EFBIG || r == -ENOTSUP ? -ENOSPC : r;
}

/* Make B reach to END.  From OFF on there is guest data, which must read
 * as zeroes; with KEEP only if it is new.
 */
static int
extend (struct backend *b, uint8_t *buf, uint64_t off, uint64_t end,
        enum create_preallocation mode, bool keep)
{
  int64_t old_len = backend_size (b);
  int r;

  if (old_len < 0)
    return old_len;
  if ((uint64_t) old_len < end) {
    r = set_length (b, old_len, end, &mode);
    if (r < 0)
      return r;
  }
  if (keep && off < (uint64_t) old_len)
    off = old_len;
  if (off >= end)
    return 0;
  if (mode == CREATE_PREALLOC_FULL)
    return write_zeroes (b, buf, off, end - off);
  return b->fixed_size ? backend_zero (b, off, end - off) : 0;
}

/* All but the header. */
static int
write_body (struct stream *s, struct backend *data, const struct layout *l,
            const struct create_options *o)
{
  struct backend *file = s->file;
  uint64_t cs = l->geo.cluster_size;
  int r;

  r = extend (file, s->buf, l->data_idx * cs, l->file_len,
              data ? CREATE_PREALLOC_OFF : o->preallocation, false);
  if (r == 0 && data)
    r = extend (data, s->buf, 0, l->size, o->preallocation, true);
  if (r == 0)
    r = write_table (s, l, 1, l->nr_reftable, l->refblock_idx,
                     l->nr_refblocks, 0);
  if (r == 0)
    r = write_refblocks (s, l);
  if (r == 0 && l->nr_l2 > 0)
    r = write_table (s, l, l->l1_idx, l->nr_l1, l->l2_idx, l->nr_l2,
                     ENTRY_COPIED);
  else if (r == 0 && l->nr_l1 > 0 && file->fixed_size)
    r = backend_zero (file, l->l1_idx * cs, l->nr_l1 * cs);
  if (r == 0 && o->crypto_len > 0)
    r = backend_pwrite (file, o->crypto_header, o->crypto_len,
                        l->crypto_idx * cs, 0);
  if (r == 0 && l->nr_l2 > 0)
    r = write_l2_tables (s, l, o);
  if (r == 0 && data)
    r = backend_flush (data);
  return r;
}

int
create_image (struct backend *file, struct backend *data,
              const struct create_options *o)
{
  struct stream s = { .file = file };
  struct layout l;
  uint8_t *header = NULL;
  int r;

  r = plan (file->name, o, &l, &header);
  if (r < 0)
    goto out;
  s.buf = malloc (STREAM_SIZE);
  if (s.buf == NULL) {
    nbdkit_error ("%s: no memory to create the image", file->name);
    r = -ENOMEM;
    goto out;
  }
  /* What was on a device must not look like an image with new tables. */
  if (file->fixed_size) {
    memset (s.buf, 0, SECTOR);
    r = backend_pwrite (file, s.buf, SECTOR, 0, BACKEND_FUA);
    if (r < 0)
      goto out;
  }
  r = write_body (&s, data, &l, o);
  if (r == 0 && l.geo.cluster_size > SECTOR)
    r = backend_pwrite (file, header + SECTOR, l.geo.cluster_size - SECTOR,
                        SECTOR, 0);
  if (r == 0)
    r = backend_flush (file);
  if (r == 0)
    r = backend_pwrite (file, header, SECTOR, 0, 0);
  if (r == 0)
    r = backend_flush (file);
 out:
  free (s.buf);
  free (header);
  return r;
}
