/* SPDX-License-Identifier: BSD-3-Clause */
/* Create: the same layout as qemu-img where nothing is preallocated, a
 * clean check in every case, the header last, and each rule refused with
 * one message.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend-file.h"
#include "create.h"
#include "header.h"
#include "ondisk.h"
#include "test-errors.h"

static char dir[] = "/tmp/test-create-XXXXXX";

__attribute__ ((__format__ (__printf__, 1, 2))) static void
run (const char *fmt, ...)
{
  char command[4096];
  va_list args;

  va_start (args, fmt);
  vsnprintf (command, sizeof command, fmt, args);
  va_end (args);
  if (system (command) != 0) {
    fprintf (stderr, "failed: %s\n", command);
    abort ();
  }
}

static void
make (const char *file, const struct create_options *o)
{
  char path[256];
  struct backend *b, *data = NULL;

  snprintf (path, sizeof path, "%s/%s", dir, file);
  unlink (path);
  assert (backend_file_open (path, BACKEND_FILE_CREATE, &b) == 0);
  if (o->data_file) {
    snprintf (path, sizeof path, "%s/%s", dir, o->data_file);
    unlink (path);
    assert (backend_file_open (path, BACKEND_FILE_CREATE, &data) == 0);
  }
  nr_errors = 0;
  if (create_image (b, data, o) < 0) {
    fprintf (stderr, "create_image: %s\n", last_error);
    abort ();
  }
  assert (nr_errors == 0);
  backend_close (b);
  backend_close (data);
}

/* The whole file, which the caller frees. */
static uint8_t *
slurp (const char *file, size_t *len)
{
  char path[256];
  struct stat st;
  uint8_t *buf;
  int fd;

  snprintf (path, sizeof path, "%s/%s", dir, file);
  fd = open (path, O_RDONLY | O_CLOEXEC);
  assert (fd >= 0 && fstat (fd, &st) == 0);
  *len = st.st_size;
  buf = malloc (st.st_size);
  assert (buf && read (fd, buf, st.st_size) == st.st_size);
  close (fd);
  return buf;
}

/* Ours and that of qemu-img with ARGS are the same file. */
static void
same_as_qemu (const struct create_options *o, const char *args)
{
  uint8_t *ours, *theirs;
  size_t len, len2;

  make ("ours", o);
  run ("cd %s && rm -f theirs %s && qemu-img create -q -f qcow2 %s",
       dir, o->data_file ? o->data_file : "", args);
  ours = slurp ("ours", &len);
  theirs = slurp ("theirs", &len2);
  if (len != len2 || memcmp (ours, theirs, len) != 0) {
    fprintf (stderr, "not the same: %s\n", args);
    abort ();
  }
  free (ours);
  free (theirs);
}

static void
test_same (void)
{
  static const unsigned bits[] = { 9, 12, 13, 16, 21 };
  struct create_options o;
  char args[256];
  size_t i;
  unsigned order;

  create_defaults (&o);
  same_as_qemu (&o, "theirs 0");
  for (i = 0; i < sizeof bits / sizeof bits[0]; i++) {
    create_defaults (&o);
    o.cluster_size = 1U << bits[i];
    o.size = 5 * 1000 * 1000 + 1;
    snprintf (args, sizeof args, "-o cluster_size=%u theirs %u",
              1U << bits[i], 5 * 1000 * 1000 + 1);
    same_as_qemu (&o, args);
    o.version = 2;
    snprintf (args, sizeof args,
              "-o compat=0.10,cluster_size=%u theirs %u",
              1U << bits[i], 5 * 1000 * 1000 + 1);
    same_as_qemu (&o, args);
  }
  create_defaults (&o);
  o.size = UINT64_C (100) << 30;
  for (order = 0; order <= 6; order++) {
    o.refcount_bits = 1U << order;
    snprintf (args, sizeof args, "-o refcount_bits=%u theirs 100G",
              1U << order);
    same_as_qemu (&o, args);
  }
  o.refcount_bits = 16;
  o.lazy_refcounts = o.extended_l2 = true;
  o.compression_type = CODEC_ZSTD;
  same_as_qemu (&o, "-o lazy_refcounts=on,extended_l2=on,"
                "compression_type=zstd theirs 100G");
  o.backing_file = "some/base.img";
  o.backing_format = "raw";
  same_as_qemu (&o, "-u -b some/base.img -F raw -o lazy_refcounts=on,"
                "extended_l2=on,compression_type=zstd theirs 100G");
  create_defaults (&o);
  o.size = 1 << 20;
  o.data_file = "data";
  same_as_qemu (&o, "-o data_file=data theirs 1M");
  o.data_file_raw = true;
  same_as_qemu (&o, "-o data_file=data,data_file_raw=on theirs 1M");
  create_defaults (&o);
  o.size = 3 << 20;
  o.preallocation = CREATE_PREALLOC_METADATA;
  same_as_qemu (&o, "-o preallocation=metadata theirs 3M");
}

static void
check_clean (const char *file)
{
  run ("cd %s && qemu-img check -q %s >check.out 2>&1 || "
       "{ cat check.out; exit 1; }", dir, file);
}

/* Everything that qemu-img allows is clean and reads as zeroes. */
static void
test_preallocation (void)
{
  static const struct { unsigned bits, width; } kinds[] = {
    { 9, 64 }, { 14, 1 }, { 16, 16 }, { 21, 8 },
  };
  struct create_options o;
  size_t i, mode, ext;
  struct stat st;
  char path[256];

  run ("cd %s && truncate -s 3000320 zero", dir);
  snprintf (path, sizeof path, "%s/ours", dir);
  for (i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
    for (mode = 0; mode <= CREATE_PREALLOC_FULL; mode++)
      for (ext = 0; ext < 2; ext++) {
        create_defaults (&o);
        o.cluster_size = 1U << kinds[i].bits;
        o.refcount_bits = kinds[i].width;
        o.preallocation = mode;
        o.extended_l2 = ext;
        o.size = 3 * 1000 * 1000;
        if (ext && kinds[i].bits < 14)
          continue;
        make ("ours", &o);
        check_clean ("ours");
        run ("cd %s && qemu-img compare -q -f raw zero -F qcow2 ours", dir);
        assert (stat (path, &st) == 0);
        if (kinds[i].bits == 16)
          assert ((st.st_blocks * 512 > 3000000) ==
                  (mode >= CREATE_PREALLOC_FALLOC));
        run ("cd %s && qemu-io -c 'write -q -P 5 1000000 1000000' "
             "-c 'read -q -P 5 1000000 1000000' ours >io.out && "
             "! grep -i pattern io.out", dir);
        check_clean ("ours");
      }

  create_defaults (&o);
  o.data_file = "data";
  o.size = 3 << 20;
  o.preallocation = CREATE_PREALLOC_FALLOC;
  make ("ours", &o);
  check_clean ("ours");
  snprintf (path, sizeof path, "%s/data", dir);
  assert (stat (path, &st) == 0 && st.st_size == 3 << 20);
  assert (st.st_blocks * 512 >= 3 << 20);
  o.data_file_raw = o.extended_l2 = true;
  o.preallocation = CREATE_PREALLOC_OFF;
  make ("ours", &o);
  check_clean ("ours");
  run ("cd %s && printf hello | dd of=data conv=notrunc bs=1 seek=70000 "
       "status=none && qemu-img compare -q -f raw data -F qcow2 ours", dir);
}

/* Many refcount blocks, a refcount table of several clusters; 1 TiB. */
static void
test_large (void)
{
  struct create_options o;
  struct stat st;
  char path[256];

  create_defaults (&o);
  o.cluster_size = 512;
  o.size = UINT64_C (128) << 30;        /* the largest: 32 MiB of L1 */
  make ("ours", &o);
  check_clean ("ours");
  o.size = UINT64_C (1) << 30;
  o.preallocation = CREATE_PREALLOC_METADATA;
  make ("ours", &o);
  check_clean ("ours");

  create_defaults (&o);
  o.size = UINT64_C (1) << 40;
  o.preallocation = CREATE_PREALLOC_METADATA;
  make ("ours", &o);
  snprintf (path, sizeof path, "%s/ours", dir);
  assert (stat (path, &st) == 0 && st.st_size > INT64_C (1) << 40);
  assert (st.st_blocks * 512 < 200 << 20);
  run ("cd %s && qemu-io -c 'read -q -P 0 1099511562240 65536' "
       "-c 'read -q -P 0 0 1M' ours >io.out && ! grep -i pattern io.out",
       dir);
  check_clean ("ours");
}

static void
refused (const struct create_options *o, int err, const char *text)
{
  int r;

  nr_errors = 0;
  r = create_check ("disk.qcow2", o);
  if (r != err || nr_errors != 1 || strstr (last_error, text) == NULL ||
      strstr (last_error, "disk.qcow2: cannot create: ") == NULL) {
    fprintf (stderr, "expected %d \"%s\", got %d \"%s\", %u messages\n",
             err, text, r, last_error, nr_errors);
    abort ();
  }
}

#define REFUSED(err, text, ...)                                 \
  do {                                                          \
    struct create_options o_;                                   \
    create_defaults (&o_);                                      \
    struct create_options *o = &o_;                             \
    o->size = 1 << 20;                                          \
    __VA_ARGS__;                                                \
    refused (o, err, text);                                     \
  } while (0)

static void
test_rules (void)
{
  char long_name[1025];

  memset (long_name, 'n', 1024);
  long_name[1024] = '\0';

  REFUSED (-EINVAL, "compat", o->version = 4);
  REFUSED (-EINVAL, "cluster-size", o->cluster_size = 256);
  REFUSED (-EINVAL, "cluster-size", o->cluster_size = 4 << 20);
  REFUSED (-EINVAL, "cluster-size", o->cluster_size = 65537);
  REFUSED (-EINVAL, "cluster-size", o->cluster_size = 0);
  REFUSED (-EINVAL, "16k", o->cluster_size = 8192; o->extended_l2 = true);
  REFUSED (-EINVAL, "refcount-bits", o->refcount_bits = 0);
  REFUSED (-EINVAL, "refcount-bits", o->refcount_bits = 12);
  REFUSED (-EINVAL, "refcount-bits", o->refcount_bits = 128);
  REFUSED (-EINVAL, "compat=1.1", o->version = 2; o->refcount_bits = 8);
  REFUSED (-EINVAL, "compat=1.1", o->version = 2;
           o->compression_type = CODEC_ZSTD);
  REFUSED (-EINVAL, "compat=1.1", o->version = 2; o->extended_l2 = true);
  REFUSED (-EINVAL, "compat=1.1", o->version = 2; o->lazy_refcounts = true);
  REFUSED (-EINVAL, "compat=1.1", o->version = 2; o->data_file = "d");
  REFUSED (-EINVAL, "needs backing-file", o->backing_format = "raw");
  REFUSED (-EINVAL, "needs backing-format", o->backing_file = "b");
  REFUSED (-EINVAL, "extended-l2", o->backing_file = "b";
           o->backing_format = "raw";
           o->preallocation = CREATE_PREALLOC_FULL);
  REFUSED (-EINVAL, "1023", o->backing_file = long_name;
           o->backing_format = "raw");
  REFUSED (-EINVAL, "15", o->backing_file = "b";
           o->backing_format = "a-format-of-sixte");
  REFUSED (-EINVAL, "needs data-file", o->data_file_raw = true);
  REFUSED (-EINVAL, "exclude", o->data_file = "d"; o->data_file_raw = true;
           o->backing_file = "b"; o->backing_format = "raw");
  REFUSED (-EFBIG, "too large", o->size = UINT64_MAX);
  REFUSED (-EFBIG, "too large", o->size = (UINT64_C (2) << 50) + 1);
  REFUSED (-EFBIG, "too large", o->cluster_size = 512;
           o->size = (UINT64_C (128) << 30) + 1);
  REFUSED (-EFBIG, "preallocation", o->cluster_size = 512;
           o->refcount_bits = 64; o->size = UINT64_C (128) << 30;
           o->preallocation = CREATE_PREALLOC_METADATA);

  /* A header that has no room. */
  {
    struct create_options o;

    create_defaults (&o);
    o.cluster_size = 512;
    o.backing_format = "raw";
    long_name[400] = '\0';
    o.backing_file = long_name;
    nr_errors = 0;
    assert (create_check ("x", &o) == -EINVAL && nr_errors == 1);
  }
}

/* A backend that fails or stops at call N, to see what came before. */
struct spy {
  struct backend b;
  unsigned calls, fail_at;
  int error;
  bool header_written, flushed;
  uint64_t size;
};

static int
spy_call (struct spy *s)
{
  return s->calls++ == s->fail_at ? s->error : 0;
}

static int
spy_pwritev (struct backend *b, struct iovec *iov, int iovcnt, uint64_t off,
             unsigned flags)
{
  struct spy *s = (struct spy *) b;
  int r = spy_call (s), i;
  uint64_t end = off;

  (void) flags;
  if (r < 0)
    return r;
  for (i = 0; i < iovcnt; i++)
    end += iov[i].iov_len;
  assert (end <= s->size);
  if (off == 0 && get_be32 (iov[0].iov_base) == QCOW2_MAGIC) {
    assert (s->flushed && end == 512);
    s->header_written = true;
  }
  else
    assert (!s->header_written);
  s->flushed = false;
  return 0;
}

static int
spy_flush (struct backend *b)
{
  struct spy *s = (struct spy *) b;
  int r = spy_call (s);

  if (r == 0)
    s->flushed = true;
  return r;
}

static int
spy_zero (struct backend *b, uint64_t off, uint64_t len)
{
  (void) off;
  (void) len;
  return spy_call ((struct spy *) b);
}

static int
spy_truncate (struct backend *b, uint64_t len, bool allocate)
{
  struct spy *s = (struct spy *) b;
  int r = spy_call (s);

  if (r == 0 && allocate)
    r = -ENOTSUP;
  if (r == 0)
    s->size = len;
  return r;
}

static int64_t
spy_size (struct backend *b)
{
  return ((struct spy *) b)->size;
}

/* Each call fails in turn: the error arrives, and without the header's
 * write there is no image.
 */
static void
test_errors (void)
{
  static const struct backend_ops ops = {
    .pwritev = spy_pwritev, .flush = spy_flush, .zero = spy_zero,
    .truncate = spy_truncate, .size = spy_size,
  };
  struct create_options o;
  unsigned n, fixed, err, calls;

  for (fixed = 0; fixed < 2; fixed++)
    for (err = 0; err < 2; err++)
      for (n = 0, calls = 1; n <= calls; n++) {
        struct spy s = { .b = { .ops = &ops, .name = (char *) "spy",
                                .writable = true, .fixed_size = fixed },
                         .fail_at = n, .error = err ? -EIO : -ENOSPC,
                         .size = fixed ? 64 << 20 : 0 };
        int r;

        create_defaults (&o);
        o.size = 10 << 20;
        o.preallocation = n % 2 ? CREATE_PREALLOC_FALLOC
          : CREATE_PREALLOC_METADATA;
        nr_errors = 0;
        r = create_image (&s.b, NULL, &o);
        calls = s.calls;
        if (n < calls)
          assert (r == s.error);
        else
          assert (r == 0 && s.header_written && s.flushed);
      }

  /* A device that is too small. */
  {
    struct spy s = { .b = { .ops = &ops, .name = (char *) "spy",
                            .writable = true, .fixed_size = true },
                     .fail_at = 1000, .size = 4 * 65536 };

    create_defaults (&o);
    o.size = 10 << 20;
    assert (create_image (&s.b, NULL, &o) == 0);
    o.preallocation = CREATE_PREALLOC_METADATA;
    s.header_written = false;
    nr_errors = 0;
    assert (create_image (&s.b, NULL, &o) == -ENOSPC);
    assert (nr_errors == 1 && strstr (last_error, "fixed size of 262144"));
  }
}

/* What stood on a device is not taken for the disk's content. */
static void
test_garbage (void)
{
  struct create_options o;
  struct backend *b;
  char path[256];

  create_defaults (&o);
  o.size = 2 << 20;
  o.preallocation = CREATE_PREALLOC_METADATA;
  run ("cd %s && dd if=/dev/urandom of=ours bs=1M count=4 status=none", dir);
  snprintf (path, sizeof path, "%s/ours", dir);
  assert (backend_file_open (path, BACKEND_FILE_WRITABLE, &b) == 0);
  b->fixed_size = true;
  assert (create_image (b, NULL, &o) == 0);
  o.preallocation = CREATE_PREALLOC_OFF;
  run ("cd %s && truncate -s 2M zero && "
       "qemu-img compare -q -f raw zero -F qcow2 ours", dir);
  check_clean ("ours");
  run ("cd %s && dd if=/dev/urandom of=ours bs=1M count=4 status=none", dir);
  assert (create_image (b, NULL, &o) == 0);
  run ("cd %s && qemu-img compare -q -f raw zero -F qcow2 ours", dir);
  check_clean ("ours");
  backend_close (b);
}

int
main (void)
{
  test_rules ();
  test_errors ();

  if (system ("qemu-img --version >/dev/null 2>&1") != 0) {
    fprintf (stderr, "test-create: skipped: qemu-img is not installed\n");
    return 77;
  }
  assert (mkdtemp (dir) != NULL);
  test_same ();
  test_preallocation ();
  test_garbage ();
  test_large ();
  run ("rm -rf %s", dir);
  return 0;
}
