/* SPDX-License-Identifier: BSD-3-Clause */
/* The header: images of qemu-img of all kinds are read, and written again
 * byte for byte; each lie about each field is refused with one message.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "header.h"
#include "ondisk.h"
#include "test-errors.h"

#define FILE_SIZE (16 * 65536)

/* A plain version 3 header with 64k clusters, as the base of lies. */
static void
make_base (uint8_t *buf)
{
  struct header h = {
    .version = 3, .cluster_bits = 16, .size = 1 << 30,
    .l1_size = 2, .l1_table_offset = 3 * 65536,
    .refcount_table_offset = 65536, .refcount_table_clusters = 1,
    .refcount_order = 4,
  };

  assert (header_serialise ("base", &h, buf) == 0);
}

/* A file of FILE_SIZE bytes. */
static void
expect_refused_file (const uint8_t *buf, size_t len, uint64_t file_size,
                     int err, const char *text)
{
  struct header h;
  int r;

  nr_errors = 0;
  r = header_parse ("disk.qcow2", buf, len, file_size, &h);
  if (r != err || nr_errors != 1 || strstr (last_error, text) == NULL ||
      strstr (last_error, "disk.qcow2") == NULL) {
    fprintf (stderr, "expected %d \"%s\", got %d \"%s\", %u messages\n",
             err, text, r, last_error, nr_errors);
    abort ();
  }
}

/* Parse BUF, expect ERR and one message that contains TEXT. */
static void
expect_refused (const uint8_t *buf, size_t len, int err, const char *text)
{
  expect_refused_file (buf, len, FILE_SIZE, err, text);
}

struct lie {
  unsigned off, width;
  uint64_t value;
  int err;
  const char *text;
};

static const struct lie lies[] = {
  { HDR_MAGIC, 4, 0x7f454c46, -EINVAL, "not a qcow2 image" },
  { HDR_VERSION, 4, 1, -ENOTSUP, "version 1" },
  { HDR_VERSION, 4, 4, -ENOTSUP, "version 4" },
  { HDR_BACKING_FILE_OFFSET, 8, 8, -EINVAL, "backing_file_offset" },
  { HDR_BACKING_FILE_OFFSET, 8, 65537, -EINVAL, "backing_file_offset" },
  { HDR_BACKING_FILE_OFFSET, 8, UINT64_MAX, -EINVAL, "backing_file_offset" },
  { HDR_CLUSTER_BITS, 4, 8, -EINVAL, "cluster_bits 8" },
  { HDR_CLUSTER_BITS, 4, 22, -EINVAL, "cluster_bits 22" },
  { HDR_CLUSTER_BITS, 4, UINT32_MAX, -EINVAL, "cluster_bits" },
  { HDR_CLUSTER_BITS, 4, 21, -EINVAL, "ends inside its first cluster" },
  { HDR_SIZE, 8, UINT64_MAX, -EINVAL, "l1_size 2 is too small" },
  { HDR_SIZE, 8, (1 << 30) + 1, -EINVAL, "which needs 3" },
  { HDR_CRYPT_METHOD, 4, 3, -ENOTSUP, "crypt_method 3" },
  { HDR_CRYPT_METHOD, 4, 2, -EINVAL, "no encryption header" },
  { HDR_L1_SIZE, 4, 1, -EINVAL, "l1_size 1 is too small" },
  { HDR_L1_SIZE, 4, UINT32_MAX, -EINVAL, "l1_table_offset has" },
  { HDR_L1_TABLE_OFFSET, 8, 0, -EINVAL, "l1_table_offset is 0" },
  { HDR_L1_TABLE_OFFSET, 8, 512, -EINVAL, "not a multiple" },
  { HDR_L1_TABLE_OFFSET, 8, FILE_SIZE, -EINVAL, "truncated" },
  { HDR_L1_TABLE_OFFSET, 8, UINT64_C (0xffffffffffff0000), -EINVAL, "2^56" },
  { HDR_REFCOUNT_TABLE_OFFSET, 8, 0, -EINVAL,
    "refcount_table_offset is 0" },
  { HDR_REFCOUNT_TABLE_OFFSET, 8, 1, -EINVAL, "not a multiple" },
  { HDR_REFCOUNT_TABLE_OFFSET, 8, 1 << 30, -EINVAL, "truncated" },
  { HDR_REFCOUNT_TABLE_OFFSET, 8, UINT64_C (1) << 63, -EINVAL, "2^56" },
  { HDR_REFCOUNT_TABLE_CLUSTERS, 4, 0, -EINVAL, "no refcount table" },
  { HDR_REFCOUNT_TABLE_CLUSTERS, 4, 129, -EINVAL, "the limit is" },
  { HDR_REFCOUNT_TABLE_CLUSTERS, 4, UINT32_MAX, -EINVAL, "the limit is" },
  { HDR_NB_SNAPSHOTS, 4, 65537, -EINVAL, "nb_snapshots 65537" },
  { HDR_NB_SNAPSHOTS, 4, 1, -EINVAL, "snapshots_offset is 0" },
  { HDR_SNAPSHOTS_OFFSET, 8, 4096, -EINVAL, "snapshots_offset" },
  { HDR_SNAPSHOTS_OFFSET, 8, UINT64_C (1) << 56, -EINVAL,
    "snapshots_offset" },
  { HDR_INCOMPATIBLE, 8, 1 << 5, -ENOTSUP, "bit 5" },
  { HDR_INCOMPATIBLE, 8, UINT64_MAX, -ENOTSUP, "bit 63" },
  { HDR_INCOMPATIBLE, 8, INCOMPAT_COMPRESSION, -EINVAL,
    "compression_type is 0, but" },
  { HDR_AUTOCLEAR, 8, AUTOCLEAR_DATA_FILE_RAW, -EINVAL,
    "raw external data" },
  { HDR_REFCOUNT_ORDER, 4, 7, -EINVAL, "refcount_order 7" },
  { HDR_HEADER_LENGTH, 4, 0, -EINVAL, "header_length 0" },
  { HDR_HEADER_LENGTH, 4, 96, -EINVAL, "header_length 96" },
  { HDR_HEADER_LENGTH, 4, 113, -EINVAL, "header_length 113" },
  { HDR_HEADER_LENGTH, 4, 65544, -EINVAL, "header_length 65544" },
  { HDR_COMPRESSION_TYPE, 1, 1, -EINVAL, "compression_type is 1, but" },
  { HDR_COMPRESSION_TYPE, 1, 2, -ENOTSUP, "compression_type 2" },
};

static void
put_value (uint8_t *buf, const struct lie *l)
{
  switch (l->width) {
  case 1: buf[l->off] = l->value; break;
  case 4: put_be32 (buf + l->off, l->value); break;
  default: put_be64 (buf + l->off, l->value);
  }
}

static void
test_lies (void)
{
  static uint8_t base[65536], buf[65536];
  size_t i;

  make_base (base);
  for (i = 0; i < sizeof lies / sizeof lies[0]; i++) {
    memcpy (buf, base, sizeof buf);
    put_value (buf, &lies[i]);
    expect_refused (buf, sizeof buf, lies[i].err, lies[i].text);
  }

  expect_refused_file (base, 0, 0, -EINVAL, "only 0 bytes");
  expect_refused_file (base, 71, 71, -EINVAL, "only 71 bytes");
  expect_refused_file (base, 512, 512, -EINVAL,
                       "ends inside its first cluster");

  /* Extended L2 entries need 16k clusters. */
  memcpy (buf, base, sizeof buf);
  put_be32 (buf + HDR_CLUSTER_BITS, 13);
  put_be64 (buf + HDR_INCOMPATIBLE, INCOMPAT_EXTENDED_L2);
  expect_refused (buf, sizeof buf, -EINVAL, "extended L2");

  /* Internal snapshots need refcounts of data clusters. */
  memcpy (buf, base, sizeof buf);
  put_be32 (buf + HDR_NB_SNAPSHOTS, 1);
  put_be64 (buf + HDR_SNAPSHOTS_OFFSET, 4 * 65536);
  put_be64 (buf + HDR_INCOMPATIBLE, INCOMPAT_DATA_FILE);
  expect_refused (buf, sizeof buf, -EINVAL, "external data file");
}

/* Replace the extensions of the base by one of TYPE. */
static void
make_extension (uint8_t *buf, uint32_t type, uint32_t len, const void *data,
                size_t data_len)
{
  make_base (buf);
  memset (buf + HDR_V3_LENGTH, 0, 65536 - HDR_V3_LENGTH);
  put_be32 (buf + HDR_V3_LENGTH, type);
  put_be32 (buf + HDR_V3_LENGTH + 4, len);
  memcpy (buf + HDR_V3_LENGTH + 8, data, data_len);
}

static void
test_extension_lies (void)
{
  static uint8_t buf[65536];
  uint8_t bitmaps[24] = { 0 }, crypto[16] = { 0 };
  struct header h;
  unsigned i;

  make_extension (buf, 0x12345678, 65536 - 112 - 8 + 1, "", 0);
  expect_refused (buf, sizeof buf, -EINVAL, "extension 0x12345678");
  make_extension (buf, 0x12345678, UINT32_MAX, "", 0);
  expect_refused (buf, sizeof buf, -EINVAL, "extension 0x12345678");
  make_extension (buf, EXT_BACKING_FORMAT, 16, "qcow2qcow2qcow2q", 16);
  expect_refused (buf, sizeof buf, -EINVAL, "backing format");
  make_extension (buf, EXT_CRYPTO_HEADER, 16, crypto, 16);
  expect_refused (buf, sizeof buf, -EINVAL, "crypt_method is 0");
  put_be32 (buf + HDR_CRYPT_METHOD, 2);
  expect_refused (buf, sizeof buf, -EINVAL, "offset is 0");
  put_be32 (buf + HDR_V3_LENGTH + 4, 8);
  expect_refused (buf, sizeof buf, -EINVAL, "8 bytes instead of 16");

  /* Bitmaps: errors count only while the autoclear bit vouches for them. */
  put_be32 (bitmaps + BITMAPS_EXT_NB, 1);
  put_be64 (bitmaps + BITMAPS_EXT_DIR_SIZE, 32);
  put_be64 (bitmaps + BITMAPS_EXT_DIR_OFFSET, 65536);
  for (i = 0; i < 24; i += 4) {
    uint8_t wrong[24];

    memcpy (wrong, bitmaps, 24);
    put_be32 (wrong + i, i == 0 ? 65536 : 0x80000001);
    make_extension (buf, EXT_BITMAPS, 24, wrong, 24);
    put_be64 (buf + HDR_AUTOCLEAR, AUTOCLEAR_BITMAPS);
    expect_refused (buf, sizeof buf, -EINVAL, "bitmap");
    put_be64 (buf + HDR_AUTOCLEAR, 0);
    nr_errors = 0;
    assert (header_parse ("x", buf, sizeof buf, FILE_SIZE, &h) == 0);
    assert (!h.has_bitmaps && nr_errors == 0);
    header_free (&h);
  }
  make_extension (buf, EXT_BITMAPS, 23, bitmaps, 24);
  expect_refused (buf, sizeof buf, -EINVAL, "23 bytes instead of 24");

  /* The bit without the extension. */
  make_base (buf);
  put_be64 (buf + HDR_AUTOCLEAR, AUTOCLEAR_BITMAPS | 1 << 9);
  assert (header_parse ("x", buf, sizeof buf, FILE_SIZE, &h) == 0);
  assert (h.autoclear == 1 << 9);
  header_free (&h);

  /* An extension twice. */
  make_extension (buf, EXT_DATA_FILE, 8, "data.raw", 8);
  put_be32 (buf + HDR_V3_LENGTH + 16, EXT_DATA_FILE);
  expect_refused (buf, sizeof buf, -EINVAL, "twice");

  /* The area ends in the middle of an extension's head. */
  make_extension (buf, EXT_DATA_FILE, 8, "data.raw", 8);
  put_be64 (buf + HDR_BACKING_FILE_OFFSET, HDR_V3_LENGTH + 16 + 4);
  expect_refused (buf, sizeof buf, -EINVAL, "reaches beyond");

  /* Backing file name. */
  make_base (buf);
  put_be64 (buf + HDR_BACKING_FILE_OFFSET, 1024);
  put_be32 (buf + HDR_BACKING_FILE_SIZE, 1024);
  expect_refused (buf, sizeof buf, -EINVAL, "backing_file_size 1024");
  put_be64 (buf + HDR_BACKING_FILE_OFFSET, 65530);
  put_be32 (buf + HDR_BACKING_FILE_SIZE, 7);
  expect_refused (buf, sizeof buf, -EINVAL, "backing_file_size 7");
}

static void
test_unknown_feature (void)
{
  static uint8_t buf[65536];
  uint8_t table[96] = { 0 };

  table[1] = 7;
  memcpy (table + 2, "quantum\001clusters", 16);
  table[48 + 1] = 40;
  memset (table + 48 + 2, 'z', 46);
  make_extension (buf, EXT_FEATURE_NAMES, sizeof table, table, sizeof table);
  put_be64 (buf + HDR_INCOMPATIBLE, UINT64_C (1) << 7 | UINT64_C (1) << 40 |
            UINT64_C (1) << 50);
  expect_refused (buf, sizeof buf, -ENOTSUP,
                  "\"quantum?clusters\" (bit 7), \"zzzzzzzzzzzzzzzzzzzzzzz"
                  "zzzzzzzzzzzzzzzzzzzzzzz\" (bit 40), bit 50");
}

/* Unknown additional fields, unknown extensions (one twice, one empty, one
 * before known ones), unknown compatible bits: all survive a rewrite.
 */
static void
test_unknown_kept (void)
{
  static uint8_t buf[65536], again[65536];
  uint8_t *p = buf + 128;
  struct header h;
  size_t i;
  static const struct { uint32_t type, len; const char *data; } ext[] = {
    { 0x11111111, 3, "abc" },
    { EXT_BACKING_FORMAT, 3, "raw" },
    { 0x22222222, 0, "" },
    { 0x11111111, 9, "123456789" },
    { EXT_DATA_FILE, 4, "data" },
  };

  make_base (buf);
  put_be32 (buf + HDR_HEADER_LENGTH, 128);
  put_be64 (buf + HDR_COMPATIBLE, UINT64_MAX);
  put_be64 (buf + HDR_AUTOCLEAR, UINT64_C (1) << 60);
  memset (buf + 105, 0, sizeof buf - 105);
  for (i = 105; i < 128; i++)
    buf[i] = i;
  for (i = 0; i < sizeof ext / sizeof ext[0]; i++) {
    put_be32 (p, ext[i].type);
    put_be32 (p + 4, ext[i].len);
    memcpy (p + 8, ext[i].data, ext[i].len);
    p += 8 + ((ext[i].len + 7) & ~7U);
  }
  p += 8;
  put_be64 (buf + HDR_BACKING_FILE_OFFSET, p - buf);
  put_be32 (buf + HDR_BACKING_FILE_SIZE, 4);
  memcpy (p, "base", 4);

  assert (header_parse ("x", buf, sizeof buf, FILE_SIZE, &h) == 0);
  assert (h.nr_unknown == 3 && h.extra_len == 23);
  assert (strcmp (h.backing_file, "base") == 0);
  assert (strcmp (h.backing_format, "raw") == 0);
  assert (strcmp (h.data_file, "data") == 0);
  /* There is no feature name table: ours is added behind them, so parse
   * what was written instead of comparing bytes.
   */
  assert (header_serialise ("x", &h, again) == 0);
  assert (memcmp (buf + 16, again + 16, 112) == 0);
  assert (memcmp (buf + 128, again + 128, p - 8 - (buf + 128)) == 0);
  header_free (&h);
  assert (header_parse ("x", again, sizeof again, FILE_SIZE, &h) == 0);
  assert (h.nr_unknown == 3 && h.feature_names_len == 384);
  assert (strcmp (h.backing_file, "base") == 0);
  memcpy (buf, again, sizeof buf);
  assert (header_serialise ("x", &h, again) == 0);
  assert (memcmp (buf, again, sizeof buf) == 0);
  header_free (&h);
}

/* header_length 104, as QEMU wrote before 5.1: it stays. */
static void
test_length_104 (void)
{
  static uint8_t buf[65536], again[65536];
  struct header h;

  make_base (buf);
  memmove (buf + 104, buf + 112, 65536 - 112);
  put_be32 (buf + HDR_HEADER_LENGTH, 104);
  assert (header_parse ("x", buf, sizeof buf, FILE_SIZE, &h) == 0);
  assert (h.compression_type == 0 && h.extra_len == 0);
  assert (header_serialise ("x", &h, again) == 0);
  assert (memcmp (buf, again, sizeof buf) == 0);
  h.size = 12345;
  h.incompatible = INCOMPAT_DIRTY;
  header_patch (&h, again);
  assert (memcmp (buf + 104, again + 104, sizeof buf - 104) == 0);
  assert (get_be64 (again + HDR_SIZE) == 12345);
  assert (get_be64 (again + HDR_INCOMPATIBLE) == INCOMPAT_DIRTY);
  header_free (&h);
}

static void
test_no_room (void)
{
  struct header h = {
    .version = 3, .cluster_bits = 9, .refcount_order = 4,
    .backing_file = (char *) "a", .refcount_table_clusters = 1,
  };
  uint8_t buf[8192];
  char long_name[7800];

  /* The names of the features give way. */
  assert (header_serialise ("x", &h, buf) == 0);
  assert (get_be64 (buf + HDR_BACKING_FILE_OFFSET) == 120 && buf[120] == 'a');

  memset (long_name, 'n', 393);
  long_name[393] = '\0';
  h.backing_file = long_name;
  nr_errors = 0;
  assert (header_serialise ("x", &h, buf) == -ENOSPC && nr_errors == 1);
  long_name[392] = '\0';
  assert (header_serialise ("x", &h, buf) == 0);

  h.cluster_bits = 13;
  h.backing_file = NULL;
  memset (long_name, 'n', sizeof long_name);
  long_name[7800 - 1] = '\0';
  h.data_file = long_name;
  assert (header_serialise ("x", &h, buf) == 0);
  assert (get_be32 (buf + 112) == EXT_DATA_FILE);
  assert (get_be32 (buf + 112 + 8 + 7800) == EXT_END);
}

/* Any byte may be anything: no crash, and what is accepted survives. */
static void
test_every_byte (const uint8_t *image, size_t len, uint64_t file_size)
{
  static const uint8_t values[] = { 0, 1, 2, 0x7f, 0x80, 0xff };
  uint8_t *buf = malloc (len), *again = malloc (1 << 21);
  size_t i, j, top = len < 1024 ? len : 1024;
  struct header h, h2;
  int r;

  assert (buf && again);
  memcpy (buf, image, len);
  for (i = 0; i < top; i++) {
    for (j = 0; j < sizeof values; j++) {
      buf[i] = values[j];
      nr_errors = 0;
      r = header_parse ("x", buf, len, file_size, &h);
      if (r < 0) {
        assert (nr_errors == (r != -ENODATA));
        continue;
      }
      assert (nr_errors == 0);
      if (header_serialise ("x", &h, again) == 0) {
        assert (header_parse ("x", again, 1 << 21, file_size, &h2) == 0);
        assert (h.size == h2.size && h.nr_unknown == h2.nr_unknown);
        header_free (&h2);
      }
      header_free (&h);
    }
    buf[i] = image[i];
  }
  free (buf);
  free (again);
}

/* With fewer bytes than are needed the answer is -ENODATA and no message;
 * with more, in a block that ends behind them, what it is with all.  Returns
 * how many are needed.
 */
static size_t
check_prefixes (const uint8_t *image, size_t len, uint64_t file_size)
{
  const size_t top = len < 16384 ? len : 16384;
  size_t i, needed = 0;
  struct header h;
  uint8_t *buf;
  int r, all;

  nr_errors = 0;
  all = header_parse ("x", image, len, file_size, &h);
  if (all == 0)
    header_free (&h);
  for (i = 0; i <= top; i++) {
    buf = malloc (i ? i : 1);
    assert (buf);
    memcpy (buf, image, i);
    nr_errors = 0;
    r = header_parse ("x", buf, i, file_size, &h);
    if (r == 0)
      header_free (&h);
    if (r == -ENODATA) {
      assert (nr_errors == 0 && needed == i);
      needed = i + 1;
    }
    else
      assert (r == all && nr_errors == (r < 0));
    free (buf);
  }
  return needed;
}

static void
test_prefixes (void)
{
  static uint8_t buf[65536];
  uint8_t table[96] = { 0 };

  make_base (buf);
  assert (check_prefixes (buf, sizeof buf, FILE_SIZE) < 1024);
  put_be64 (buf + HDR_BACKING_FILE_OFFSET, 9000);
  put_be32 (buf + HDR_BACKING_FILE_SIZE, 4);
  memcpy (buf + 9000, "base", 4);
  assert (check_prefixes (buf, sizeof buf, FILE_SIZE) == 9004);
  make_extension (buf, EXT_DATA_FILE, 7800, table, sizeof table);
  assert (check_prefixes (buf, sizeof buf, FILE_SIZE) ==
          HDR_V3_LENGTH + 8 + 7800 + 8);
  make_extension (buf, EXT_FEATURE_NAMES, sizeof table, table, sizeof table);
  put_be64 (buf + HDR_INCOMPATIBLE, UINT64_C (1) << 50);
  assert (check_prefixes (buf, sizeof buf, FILE_SIZE) ==
          HDR_V3_LENGTH + 8 + sizeof table);
}

/* An image of qemu-img. */
static uint8_t *
read_image (const char *file, size_t *len, uint64_t *file_size)
{
  int fd = open (file, O_RDONLY | O_CLOEXEC);
  struct stat st;
  uint8_t *buf;

  assert (fd >= 0 && fstat (fd, &st) == 0);
  *file_size = st.st_size;
  *len = st.st_size < 1 << 21 ? st.st_size : 1 << 21;
  buf = malloc (*len);
  assert (buf && read (fd, buf, *len) == (ssize_t) *len);
  close (fd);
  return buf;
}

static void
run (const char *command)
{
  if (system (command) != 0) {
    fprintf (stderr, "failed: %s\n", command);
    exit (1);
  }
}

/* Create DIR/image with ARGS; parse; the rewrite must be the same bytes. */
static void
check_image (const char *dir, const char *args, const char *then,
             struct header *h)
{
  char command[4096], file[256];
  uint8_t *buf, *again = malloc (1 << 21);
  size_t len;
  uint64_t file_size;

  snprintf (file, sizeof file, "%s/image", dir);
  /* On a busy machine qemu-img may fail to measure the speed of its key
   * derivation: try again.
   */
  snprintf (command, sizeof command,
            "cd %s && rm -f image && n=0 && "
            "until qemu-img create -q -f qcow2 %s; do "
            "n=$((n + 1)); test $n -lt 20 || exit 1; done %s%s",
            dir, args, then[0] ? " && " : "", then);
  run (command);
  buf = read_image (file, &len, &file_size);
  nr_errors = 0;
  if (!again || header_parse (file, buf, len, file_size, h) < 0 ||
      nr_errors != 0) {
    fprintf (stderr, "%s: %s\n", args, last_error);
    exit (1);
  }
  assert (header_serialise (file, h, again) == 0);
  if (memcmp (buf, again, (size_t) 1 << h->cluster_bits) != 0) {
    fprintf (stderr, "%s: rewritten header differs\n", args);
    exit (1);
  }
  header_patch (h, again);
  assert (memcmp (buf, again, (size_t) 1 << h->cluster_bits) == 0);
  test_every_byte (buf, len < 1 << 16 ? len : 1 << 16, file_size);
  assert (check_prefixes (buf, len, file_size) <= 4096);
  free (buf);
  free (again);
}

static void
test_qemu_sizes (const char *dir)
{
  static const unsigned cluster_bits[] = { 9, 10, 12, 14, 16, 18, 21 };
  char args[256];
  struct header h;
  unsigned i, order;

  for (i = 0; i < sizeof cluster_bits / sizeof cluster_bits[0]; i++) {
    snprintf (args, sizeof args,
              "-o compat=1.1,cluster_size=%u image 1234567",
              1U << cluster_bits[i]);
    check_image (dir, args, "", &h);
    assert (h.version == 3 && h.cluster_bits == cluster_bits[i]);
    /* qemu-img rounds up to a sector */
    assert (h.size == 1234944 && h.header_length == 112);
    header_free (&h);
    snprintf (args, sizeof args,
              "-o compat=0.10,cluster_size=%u image 100M",
              1U << cluster_bits[i]);
    check_image (dir, args, "", &h);
    assert (h.version == 2 && h.header_length == 72);
    assert (h.refcount_order == 4 && h.feature_names == NULL);
    header_free (&h);
  }
  for (order = 0; order <= 6; order++) {
    snprintf (args, sizeof args, "-o refcount_bits=%u image 10G",
              1U << order);
    check_image (dir, args, "", &h);
    assert (h.refcount_order == order);
    header_free (&h);
  }
  check_image (dir, "image 0", "", &h);
  assert (h.size == 0 && h.l1_size == 0);
  header_free (&h);
}

static void
test_qemu_options (const char *dir)
{
  struct header h;

  check_image (dir, "-u -b base.img -F raw image 1M", "", &h);
  assert (strcmp (h.backing_file, "base.img") == 0);
  assert (strcmp (h.backing_format, "raw") == 0);
  header_free (&h);
  check_image (dir, "-o compat=0.10 -u -b base.img -F qcow2 image 1M", "",
               &h);
  assert (strcmp (h.backing_file, "base.img") == 0);
  assert (strcmp (h.backing_format, "qcow2") == 0);
  header_free (&h);
  check_image (dir, "-o data_file=data.raw,data_file_raw=on image 1M", "",
               &h);
  assert (strcmp (h.data_file, "data.raw") == 0);
  assert (h.incompatible == INCOMPAT_DATA_FILE);
  assert (h.autoclear == AUTOCLEAR_DATA_FILE_RAW);
  header_free (&h);
  check_image (dir, "-o extended_l2=on,compression_type=zstd,"
               "lazy_refcounts=on image 1G", "", &h);
  assert (h.incompatible == (INCOMPAT_EXTENDED_L2 | INCOMPAT_COMPRESSION));
  assert (h.compatible == COMPAT_LAZY_REFCOUNTS && h.compression_type == 1);
  header_free (&h);
  check_image (dir, "image 1G",
               "qemu-img bitmap --add image b0 && "
               "qemu-img bitmap --add image b1", &h);
  assert (h.has_bitmaps && h.nb_bitmaps == 2);
  assert (h.autoclear == AUTOCLEAR_BITMAPS);
  header_free (&h);
  check_image (dir, "image 1G", "qemu-img snapshot -c s image", &h);
  assert (h.nb_snapshots == 1 && h.snapshots_offset != 0);
  header_free (&h);
  check_image (dir, "--object secret,id=s,data=abc "
               "-o encrypt.format=luks,encrypt.key-secret=s,"
               "encrypt.iter-time=10 image 1M", "", &h);
  assert (h.crypt_method == HDR_CRYPT_LUKS && h.has_crypto);
  assert (h.crypto_offset != 0 && h.crypto_length > 592);
  header_free (&h);
  check_image (dir, "--object secret,id=s,data=abc "
               "-o encrypt.format=aes,encrypt.key-secret=s image 1M "
               "2>/dev/null", "", &h);
  assert (h.crypt_method == HDR_CRYPT_AES && !h.has_crypto);
  header_free (&h);
}

int
main (void)
{
  char dir[] = "/tmp/test-header-XXXXXX", command[64];

  test_lies ();
  test_extension_lies ();
  test_unknown_feature ();
  test_unknown_kept ();
  test_length_104 ();
  test_prefixes ();
  test_no_room ();

  if (system ("qemu-img --version >/dev/null 2>&1") != 0) {
    fprintf (stderr, "test-header: skipped: qemu-img is not installed\n");
    return 77;
  }
  assert (mkdtemp (dir) != NULL);
  test_qemu_sizes (dir);
  test_qemu_options (dir);
  snprintf (command, sizeof command, "rm -rf %s", dir);
  run (command);
  return 0;
}
