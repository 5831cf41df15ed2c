/* SPDX-License-Identifier: BSD-3-Clause */
/* Makes the seeds: fuzz-seeds DIRECTORY writes DIRECTORY/TARGET/NAME.
 *
 * Images are made by the engine itself, then fields are patched.  Each
 * finding of the fuzzers gets a seed here.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codec.h"
#include "create.h"
#include "fuzz-bitmaps.h"
#include "fuzz-disk.h"
#include "fuzz-seeds.h"
#include "ondisk.h"
#include "snapshot.h"

static const char *top;

void
seed_write (const char *target, const char *name, const void *data,
            size_t size)
{
  char path[1024];
  int fd;

  snprintf (path, sizeof path, "%s/%s", top, target);
  if (mkdir (path, 0777) < 0 && errno != EEXIST) {
    perror (path);
    exit (1);
  }
  snprintf (path, sizeof path, "%s/%s/%s", top, target, name);
  fd = open (path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0 || write (fd, data, size) != (ssize_t) size) {
    perror (path);
    exit (1);
  }
  close (fd);
}

/* ------------------------------------------------------------------
 * Codec, references, snapshot tables, bitmaps.
 */

/* Lengths of codes that repeat beyond the last code, then 512 times 'a'.
 * zlib and ISA-L refuse it, libdeflate does not.
 */
static void
codec_seed_repeat (void)
{
  static const uint8_t start[] = {
    0, 100,
    0x05, 0xc0, 0x81, 0, 0, 0, 0, 0, 0x90, 0x56, 0xff, 0x13, 0xfe, 0x01,
  };
  uint8_t buf[2 + 78] = { 0 };

  memcpy (buf, start, sizeof start);
  buf[sizeof buf - 1] = 0x02;
  seed_write ("fuzz-codec", "zlib-repeat", buf, sizeof buf);
}

static void
codec_seeds (void)
{
  struct codec *c = codec_thread ();
  uint8_t plain[4096], buf[2 + 8192];
  char name[32];
  unsigned type, k;
  size_t i;
  int64_t n;

  FUZZ_CHECK (c != NULL);
  for (type = 0; type < 2; ++type) {
    for (k = 0; k < 4; ++k) {
      struct codec_params params = { .type = type };

      for (i = 0; i < sizeof plain; ++i)
        plain[i] = k == 0 ? 0 : k == 1 ? i / 100 : k == 2 ? i * i >> 8
          : (i * 2654435761U) >> 27;
      n = codec_compress (c, &params, plain, sizeof plain, buf + 2, 8192);
      FUZZ_CHECK (n > 0);
      buf[0] = type | 3 << 1;
      buf[1] = 100 * k;
      snprintf (name, sizeof name, "%s-%u", type ? "zstd" : "zlib", k);
      seed_write ("fuzz-codec", name, buf, 2 + n);
      memcpy (buf + 2 + n, buf + 2, n < 4000 ? n : 0);
      strcat (name, "-twice");
      seed_write ("fuzz-codec", name, buf, 2 + n + (n < 4000 ? n : 0));
    }
  }
  codec_seed_repeat ();
}

static void
reference_seeds (void)
{
  static const char *const names[] = {
    "base.qcow2", "/abs/base.qcow2", "file:base.img", "nbd://host/export",
    "nbd+unix:///e?socket=/tmp/s", "nbds://[::1]:10809/", "nbd:host:10809",
    "nbd:unix:/tmp/s:exportname=e", "fat:floppy:/dir", "./a:b", "",
    "file:", "json:{\"file.filename\":\"\"}",
    "json:{\"driver\":\"file\",\"filename\":\"\"}",
    "json:{\"driver\":\"qcow2\",\"file\":{\"driver\":\"file\","
    "\"filename\":\"b.qcow2\"}}",
    "json:{\"file.filename\":\"b\",\"driver\":\"raw\",\"offset\":1}",
    "json:{\"driver\":\"nbd\",\"server\":{\"type\":\"unix\","
    "\"path\":\"/tmp/s\"},\"export\":\"e\"}",
    "json:{\"driver\":\"raw\",\"file\":{\"driver\":\"nbd\","
    "\"host\":\"::1\",\"port\":10809}}",
    "json:{\"filename\":\"json:{}\"}", "json:[]",
    "json:{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":"
    "{\"a\":1}}}}}}}}}}",
  };
  uint8_t buf[512];
  char name[32];
  size_t i, n;

  for (i = 0; i < sizeof names / sizeof names[0]; ++i) {
    memcpy (buf, "dir/x.qcow2", 12);
    n = strlen (names[i]);
    memcpy (buf + 12, names[i], n);
    snprintf (name, sizeof name, "name-%zu", i);
    seed_write ("fuzz-reference", name, buf, 12 + n);
  }
}

static void
snapshot_table_seeds (void)
{
  struct snapshot_entry entries[3] = {
    { .l1_table_offset = 65536, .l1_size = 4, .id = "1", .name = "first",
      .disk_size = 1 << 20, .icount = UINT64_MAX, .date_sec = 12345 },
    { .l1_table_offset = 4096, .l1_size = 1, .id = "22", .name = "",
      .disk_size = 512, .icount = 7, .vm_state_size = UINT64_C (1) << 33 },
    { .l1_table_offset = 1 << 20, .l1_size = 100, .id = "3",
      .name = "with extra data", .extra = (uint8_t *) "extra data",
      .extra_len = 10, .icount = UINT64_MAX },
  };
  struct snapshot_table t = { .entries = entries };
  uint8_t *buf, seed[4096] = { 0 };
  char name[32];
  size_t len;

  for (t.nr = 1; t.nr <= 3; ++t.nr) {
    FUZZ_CHECK (snapshot_table_serialise (&t, &buf, &len) == 0);
    put_be16 (seed, t.nr);
    seed[2] = 7;
    put_be64 (seed + 4, 2 << 20);
    memcpy (seed + 12, buf, len);
    snprintf (name, sizeof name, "table-%zu", t.nr);
    seed_write ("fuzz-snapshots", name, seed, 12 + len);
    free (buf);
  }
  /* As version 2 had them: no extra data. */
  memset (seed + 4, 0, sizeof seed - 4);
  put_be16 (seed, 1);
  put_be32 (seed + 12 + SNAP_L1_SIZE, 1);
  put_be16 (seed + 12 + SNAP_ID_LEN, 1);
  put_be16 (seed + 12 + SNAP_NAME_LEN, 3);
  memcpy (seed + 12 + SNAP_FIXED_LEN, "1old", 4);
  seed_write ("fuzz-snapshots", "version-2", seed, 12 + 48);
}

/* One directory entry; returns its length. */
static size_t
bitmap_entry (uint8_t *p, unsigned cluster, uint32_t flags,
              const char *name)
{
  const size_t len = strlen (name);

  put_be64 (p, FUZZ_BITMAPS_OFF + cluster * 512);
  put_be32 (p + 8, 1);
  put_be32 (p + 12, flags);
  p[16] = 1;
  p[17] = 9;
  put_be16 (p + 18, len);
  memcpy (p + 24, name, len);
  return (24 + len + 7) & ~(size_t) 7;
}

static void
bitmap_seeds (void)
{
  uint8_t seed[4 + 8 * 512] = { 0 };
  uint8_t *p = seed + 4;
  size_t len;

  seed[0] = 3;
  seed[1] = 3;
  len = bitmap_entry (p, 1, 2, "auto");
  len += bitmap_entry (p + len, 2, 2, "second one");
  len += bitmap_entry (p + len, 3, 0, "frozen");
  put_be16 (seed + 2, len);
  put_be64 (p + 512, FUZZ_BITMAPS_OFF + 4 * 512);
  put_be64 (p + 2 * 512, 1);
  put_be64 (p + 3 * 512, 0);
  memset (p + 4 * 512, 0x55, 100);
  seed_write ("fuzz-bitmaps", "three", seed, sizeof seed);
  put_be32 (p + 12, 3);
  seed_write ("fuzz-bitmaps", "in-use", seed, sizeof seed);
  put_be32 (p + 8, 1 << 24);    /* slow to repair, once */
  seed_write ("fuzz-bitmaps", "large-table", seed, sizeof seed);
  put_be32 (p + 8, 1);
  put_be32 (p + 12, 2);
  p[17] = 16;
  seed_write ("fuzz-bitmaps", "coarse", seed, sizeof seed);
  p[17] = 9;
  put_be64 (p + 2 * 512, FUZZ_BITMAPS_OFF + 4 * 512);
  seed_write ("fuzz-bitmaps", "shared-data", seed, sizeof seed);
  put_be64 (p + 2 * 512, FUZZ_BITMAPS_OFF + 2 * 512);
  seed_write ("fuzz-bitmaps", "table-in-itself", seed, sizeof seed);
  put_be64 (p + 2 * 512, 0);
  put_be64 (p, FUZZ_BITMAPS_OFF + 3 * 512);
  seed_write ("fuzz-bitmaps", "shared-table", seed, sizeof seed);
  put_be64 (p, FUZZ_BITMAPS_OFF);
  seed_write ("fuzz-bitmaps", "table-in-directory", seed, sizeof seed);
}

/* ------------------------------------------------------------------
 * Images.
 */

struct kind {
  const char *name;
  unsigned version;
  uint64_t cluster_size, size;
  unsigned refcount_bits;
  bool extended_l2, lazy, backing, data_file, snapshots, compressed, crypto;
  enum codec_type codec;
};

#define KIND(n, v, c, s, bits, ...)                                     \
  { .name = n, .version = v, .cluster_size = c, .size = s,              \
    .refcount_bits = bits, __VA_ARGS__ }

static const struct kind kinds[] = {
  KIND ("plain-64k", 3, 65536, 1 << 20, 16, .snapshots = true,
    .compressed = true),
  KIND ("plain-4k", 3, 4096, 3 << 20, 16, .compressed = true),
  KIND ("small-512", 3, 512, 300000, 16, .snapshots = true),
  KIND ("v2-64k", 2, 65536, 1 << 20, 16, .snapshots = true),
  KIND ("v2-512", 2, 512, 1 << 20, 16, .compressed = true),
  KIND ("ref1", 3, 4096, 1 << 20, 1, .compressed = true),
  KIND ("ref2", 3, 1024, 1 << 20, 2, .snapshots = true),
  KIND ("ref4", 3, 1024, 1 << 20, 4, .compressed = true),
  KIND ("ref8", 3, 2048, 1 << 20, 8, .snapshots = true),
  KIND ("ref32", 3, 4096, 1 << 20, 32, .snapshots = true),
  KIND ("ref64", 3, 512, 1 << 20, 64, .snapshots = true),
  KIND ("ext-16k", 3, 16384, 1 << 20, 16, .extended_l2 = true,
    .snapshots = true),
  KIND ("ext-64k", 3, 65536, 4 << 20, 16, .extended_l2 = true,
    .compressed = true, .backing = true),
  KIND ("lazy", 3, 4096, 1 << 20, 16, .lazy = true),
  KIND ("zstd", 3, 4096, 1 << 20, 16, .compressed = true, .codec = CODEC_ZSTD),
  KIND ("backing", 3, 4096, 1 << 20, 16, .backing = true),
  KIND ("data", 3, 4096, 1 << 20, 16, .data_file = true),
  KIND ("luks", 3, 4096, 1 << 20, 16, .crypto = true),
  KIND ("huge", 3, 65536, UINT64_C (1) << 40, 16, .snapshots = true),
  KIND ("256k", 3, 256 << 10, 1 << 28, 16, .compressed = true),
};

/* A script that does each thing once, and what comes close to it. */
static const uint8_t script[] = {
  0, 1, 16, 0,   0, 0, 1, 1,            /* write 4097 at 512 */
  0, 2, 0, 0,    0, 0, 9, 1,            /* a cluster */
  3, 18, 0, 1,   0, 16, 3, 1,           /* two, compressed */
  4, 0, 2, 0,    0, 8, 0, 1,            /* zeroes, written */
  5, 0, 64, 0,   0, 4, 4, 1,
  6, 6, 0, 3,    0, 32, 0, 1,
  8, 0, 0, 0,    0, 0, 0, 0,            /* flush */
  7, 2, 0, 2,    0, 64, 0, 1,           /* trim */
  9, 0, 0, 0,    0, 0, 0, 0,            /* reopen */
  10, 0, 3, 0,   0, 0, 0, 0,            /* snapshot */
  2, 17, 3, 9,   0, 1, 7, 1,
  11, 3, 0, 4,   0, 100, 0, 1,
  0, 0, 3, 9,    1, 1, 7, 40,           /* far away */
  10, 1, 3, 0,   0, 0, 0, 0,            /* apply */
  10, 3, 0, 9,   0, 0, 0, 0,            /* grow */
  1, 4, 99, 0,   0, 77, 5, 1,
  10, 4, 3, 255, 0, 0, 0, 0,            /* shrink */
  10, 2, 3, 0,   0, 0, 0, 0,            /* delete */
};

static void
fill_disk (struct backend *file, struct backend *data, const struct kind *k)
{
  static uint8_t cluster[256 << 10];
  const struct io_hints hints = { .compress = true,
                                  .codec = { .type = k->codec } };
  struct fuzz_disk disk;
  struct io *io;

  FUZZ_CHECK (fuzz_disk_open (file, data, FUZZ_DISK_WRITABLE, &disk) == 0);
  io = &disk.core->io;
  memset (cluster, 0x5a, 512);
  FUZZ_CHECK (io_pwrite (io, cluster, 600, 1000, 0, NULL) == 0);
  FUZZ_CHECK (io_pwrite (io, cluster, 512, io->size - 512, 0, NULL) == 0);
  if (k->version > 2)
    FUZZ_CHECK (io_zero (io, k->cluster_size, 2 * k->cluster_size, 0,
                         NULL) == 0);
  if (k->compressed) {
    memset (cluster, 0x77, k->cluster_size);
    FUZZ_CHECK (io_pwrite (io, cluster, k->cluster_size, 3 * k->cluster_size,
                           0, &hints) == 0);
    FUZZ_CHECK (io_pwrite (io, cluster, k->cluster_size, 4 * k->cluster_size,
                           0, &hints) == 0);
  }
  FUZZ_CHECK (fuzz_disk_close (&disk) == 0);
}

static void
add_snapshot (struct backend *file, const char *name)
{
  const struct timespec when = { .tv_sec = 1000 };
  struct fuzz_disk disk;

  FUZZ_CHECK (fuzz_disk_open (file, NULL, FUZZ_DISK_WRITABLE |
                              FUZZ_DISK_ADMIN, &disk) == 0);
  FUZZ_CHECK (snapshot_create (disk.core, name, &when) == 0);
  FUZZ_CHECK (fuzz_disk_close (&disk) == 0);
}

struct backend *
seed_image (const char *name)
{
  struct backend *file = fuzz_mem_create ("seed"), *data;
  static uint8_t luks[SEED_LUKS_LEN];
  struct create_options o;
  const struct kind *k = kinds;

  while (strcmp (k->name, name) != 0)
    ++k;
  create_defaults (&o);
  o.version = k->version;
  o.size = k->size;
  o.cluster_size = k->cluster_size;
  o.refcount_bits = k->refcount_bits;
  o.compression_type = k->codec;
  o.extended_l2 = k->extended_l2;
  o.lazy_refcounts = k->lazy;
  o.backing_file = k->backing ? "base.img" : NULL;
  o.backing_format = k->backing ? "raw" : NULL;
  o.data_file = k->data_file ? "data.raw" : NULL;
  if (k->crypto && seed_luks (luks)) {
    o.crypto_header = luks;
    o.crypto_len = sizeof luks;
  }
  data = fuzz_mem_create ("data");
  FUZZ_CHECK (create_image (file, k->data_file ? data : NULL, &o) == 0);
  fill_disk (file, data, k);
  if (k->snapshots) {
    add_snapshot (file, "0");
    fill_disk (file, data, k);
    add_snapshot (file, "one more");
  }
  backend_close (data);
  return file;
}

void
seed_save_image (struct backend *file, const char *name, unsigned options,
                 const uint8_t *ops, size_t ops_len)
{
  static const char *const targets[] = {
    "fuzz-open", "fuzz-read", "fuzz-write",
  };
  uint8_t *buf;
  size_t len, i;

  buf = fuzz_image_save (file, options, ops, ops_len, &len);
  for (i = 0; i < sizeof targets / sizeof targets[0]; ++i)
    seed_write (targets[i], name, buf, len);
  free (buf);
}

static void
image_seeds (void)
{
  struct backend *file;
  size_t i;

  for (i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
    file = seed_image (kinds[i].name);
    seed_save_image (file, kinds[i].name, i & 3, script, sizeof script);
    backend_close (file);
  }
}

int
main (int argc, char *argv[])
{
  if (argc != 2) {
    fprintf (stderr, "usage: fuzz-seeds DIRECTORY\n");
    return 2;
  }
  top = argv[1];
  if (mkdir (top, 0777) < 0 && errno != EEXIST) {
    perror (top);
    return 1;
  }
  codec_seeds ();
  reference_seeds ();
  snapshot_table_seeds ();
  bitmap_seeds ();
  image_seeds ();
  seed_luks_headers ();
  seed_hostile_images ();
  return 0;
}
