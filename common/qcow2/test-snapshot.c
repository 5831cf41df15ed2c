/* SPDX-License-Identifier: BSD-3-Clause */
/* Internal snapshots, in turns with QEMU: what one makes the other reads,
 * changes, applies and deletes; every image checks clean at every step.
 * And with a write that fails at each place.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-file.h"
#include "core.h"
#include "ondisk.h"
#include "snapshot.h"
#include "test-qemu.h"

static struct ccache *ccache;

static struct core *
open_image (struct backend **b)
{
  const struct core_options opts = {
    .writable = true, .metadata_cache = 1 << 20, .ccache = ccache,
    .discard = true,
  };
  struct core *core;
  char path[256];

  snprintf (path, sizeof path, "%s/image", dir);
  OK (backend_file_open (path, BACKEND_FILE_WRITABLE, b));
  OK (core_open (*b, &opts, &core));
  return core;
}

static void
close_image (struct core *core, struct backend *b)
{
  OK (core_finish (core));
  core_close (core);
  backend_close (b);
  run ("qemu-img check -q image >check.out 2>&1 || "
       "{ cat check.out; exit 1; }");
}

static void
create (const char *name)
{
  const struct timespec when = { .tv_sec = 1700000000, .tv_nsec = 5 };
  struct backend *b;
  struct core *core = open_image (&b);

  OK (snapshot_create (core, name, &when));
  close_image (core, b);
}

static void
apply (const char *name)
{
  struct backend *b;
  struct core *core = open_image (&b);

  OK (snapshot_apply (core, name));
  close_image (core, b);
}

static void
delete (const char *name)
{
  struct backend *b;
  struct core *core = open_image (&b);

  OK (snapshot_delete (core, name));
  close_image (core, b);
}

/* Write BYTE from OFF on with our engine. */
static void
write_byte (uint8_t byte, uint64_t off, size_t len)
{
  struct backend *b;
  struct core *core = open_image (&b);
  uint8_t *buf = malloc (len);

  assert (buf);
  memset (buf, byte, len);
  OK (io_pwrite (&core->io, buf, len, off, 0, NULL));
  free (buf);
  close_image (core, b);
}

/* The disk, or the snapshot, is what it was when NAME.raw was dumped. */
static void
dump (const char *name)
{
  run ("qemu-img convert -f qcow2 -O raw image %s.raw", name);
}

static void
same (const char *name)
{
  run ("qemu-img convert -f qcow2 -O raw image now.raw; "
       "cmp now.raw %s.raw", name);
}

static void
same_snapshot (const char *snapshot, const char *name)
{
  run ("qemu-img convert -f qcow2 -l snapshot.name=%s -O raw image now.raw; "
       "cmp now.raw %s.raw", snapshot, name);
}

/* One kind of image, of 4 MiB. */
static void
test_kind (const char *options, bool compressed)
{
  run ("rm -f image; qemu-img create -q -f qcow2 %s image 4M", options);
  run ("qemu-io -c 'write -q -P 1 0 1M' -c 'write -q -P 2 1500k 300k' "
       "-c 'write -q -z 2M 100k' image >/dev/null");
  if (compressed)
    run ("qemu-io -c 'write -q -c -P 3 3M 64k' -c 'write -q -c -P 4 3136k 64k'"
         " -c 'write -q -c -P 5 3200k 64k' image >/dev/null");
  dump ("one");
  create ("one");
  same ("one");
  same_snapshot ("one", "one");
  run ("qemu-img snapshot -l image | grep -q '^1 *one .*2023-11-'");

  /* QEMU changes, then we do. */
  run ("qemu-io -c 'write -q -P 6 100k 200k' -c 'discard -q 1536k 64k' "
       "image >/dev/null; qemu-img check -q image");
  write_byte (7, 3 * 1024 * 1024 + 1000, 90000);
  write_byte (8, 900000, 700000);
  same_snapshot ("one", "one");
  dump ("two");
  create ("two");
  write_byte (9, 0, 4 << 20);
  same_snapshot ("one", "one");
  same_snapshot ("two", "two");
  dump ("three");
  run ("qemu-img snapshot -c three image");

  apply ("one");
  same ("one");
  write_byte (10, 5, 500000);
  apply ("1");
  same ("one");
  apply ("two");
  same ("two");
  apply ("three");
  same ("three");
  run ("qemu-img snapshot -a two image; qemu-img check -q image");
  same ("two");
  write_byte (11, 1000000, 100);
  dump ("four");

  delete ("two");
  same ("four");
  same_snapshot ("one", "one");
  same_snapshot ("three", "three");
  run ("qemu-img snapshot -d three image; qemu-img check -q image");
  create ("five");
  delete ("one");
  same ("four");
  same_snapshot ("five", "four");
  delete ("five");
  same ("four");
  run ("test -z \"$(qemu-img snapshot -l image)\"");
  run ("qemu-io -c 'write -q -P 12 0 4M' image >/dev/null; "
       "qemu-img check -q image");
}

static void
put (struct core *core, uint8_t byte, uint64_t off, uint64_t len)
{
  static uint8_t buf[1 << 20];

  assert (len <= sizeof buf);
  memset (buf, byte, len);
  OK (io_pwrite (&core->io, buf, len, off, 0, NULL));
}

static void
expect (struct core *core, uint8_t byte, uint64_t off, uint64_t len)
{
  static uint8_t buf[1 << 20];
  uint64_t i;

  assert (len <= sizeof buf);
  OK (io_pread (&core->io, buf, len, off));
  for (i = 0; i < len; i++)
    assert (buf[i] == byte);
}

/* All in one session, the caches full of what was there before. */
static void
test_session (const char *options)
{
  const struct timespec when = { .tv_sec = 0 };
  struct backend *b;
  struct core *core;
  uint64_t i;

  run ("rm -f image; qemu-img create -q -f qcow2 %s image 64M", options);
  core = open_image (&b);
  for (i = 0; i < 64; i += 3)
    put (core, 1, i << 20, 1 << 20);
  OK (snapshot_create (core, "one", &when));
  put (core, 2, 0, 1 << 20);
  put (core, 2, 10 << 20, 100000);
  OK (snapshot_create (core, "two", &when));
  put (core, 3, 3 << 20, 5);
  OK (snapshot_apply (core, "one"));
  for (i = 0; i < 64; i++)
    expect (core, i % 3 == 0, i << 20, 1 << 20);
  for (i = 0; i < core->map.nr_l1; i++) {
    struct l1_entry e = core->map.l1[i];

    assert (l1_entry_off (e) == 0 ||
            overlap_find (core->overlap, l1_entry_off (e), 1) == OVERLAP_L2);
  }
  put (core, 4, 3 << 20, 1 << 20);
  put (core, 4, 7 << 20, 1 << 20);
  OK (snapshot_apply (core, "two"));
  expect (core, 2, 0, 1 << 20);
  expect (core, 2, 10 << 20, 100000);
  expect (core, 0, (10 << 20) + 100000, 1000);
  expect (core, 1, 3 << 20, 1 << 20);
  OK (snapshot_delete (core, "one"));
  put (core, 5, 4 << 20, 1 << 20);
  put (core, 5, 6 << 20, 1 << 20);
  OK (snapshot_delete (core, "two"));
  put (core, 6, 0, 5000);
  expect (core, 6, 0, 5000);
  expect (core, 2, 5000, 1000);
  expect (core, 5, 4 << 20, 1 << 20);
  expect (core, 5, 6 << 20, 1 << 20);
  close_image (core, b);
}

/* Sizes: the snapshot brings its own back. */
static void
test_size (void)
{
  struct backend *b;
  struct core *core;

  run ("rm -f image; qemu-img create -q -f qcow2 -o cluster_size=4k image 3M; "
       "qemu-io -c 'write -q -P 1 0 3M' image >/dev/null");
  dump ("small");
  create ("small");
  run ("qemu-img resize -q image 70M; "
       "qemu-io -c 'write -q -P 2 2M 67M' image >/dev/null");
  dump ("large");
  create ("large");
  apply ("small");
  same ("small");
  apply ("large");
  same ("large");
  run ("qemu-img resize -q --shrink image 1M; "
       "qemu-img check -q image");
  apply ("small");
  same ("small");
  delete ("small");
  apply ("large");
  same ("large");
  delete ("large");
  same ("large");

  /* Version 2 cannot. */
  run ("rm -f image; qemu-img create -q -f qcow2 -o compat=0.10 image 3M; "
       "qemu-img snapshot -c one image; "
       "printf '\\0\\0\\0\\0\\0\\100\\0\\0' | "
       "dd of=image bs=1 seek=24 conv=notrunc status=none");
  core = open_image (&b);
  nr_errors = 0;
  assert (snapshot_apply (core, "one") == -ENOTSUP && nr_errors == 1);
  core_close (core);
  backend_close (b);

  /* A disk of 0 bytes. */
  run ("rm -f image; qemu-img create -q -f qcow2 image 0");
  create ("nothing");
  apply ("nothing");
  delete ("nothing");
}

static void
test_refusals (void)
{
  const struct timespec when = { .tv_sec = 0 };
  char name[258];
  struct backend *b;
  struct core *core;

  memset (name, 'n', 256);
  name[256] = '\0';
  run ("rm -f image; qemu-img create -q -f qcow2 image 3M; "
       "qemu-img snapshot -c one image");
  core = open_image (&b);
  nr_errors = 0;
  assert (snapshot_create (core, "one", &when) == -EEXIST);
  assert (snapshot_create (core, "1", &when) == -EEXIST);
  assert (snapshot_create (core, "", &when) == -EINVAL);
  assert (snapshot_create (core, name, &when) == -EINVAL);
  assert (snapshot_apply (core, "two") == -ENOENT);
  assert (snapshot_delete (core, "two") == -ENOENT);
  assert (nr_errors == 6);
  close_image (core, b);

  /* Refcounts of one bit: what was counted is taken back. */
  run ("rm -f image; qemu-img create -q -f qcow2 -o refcount_bits=1 image 3M;"
       "qemu-io -c 'write -q 0 3M' image >/dev/null");
  core = open_image (&b);
  nr_errors = 0;
  assert (snapshot_create (core, "one", &when) == -ERANGE);
  assert (nr_errors == 1 && strstr (last_error, "1 bits"));
  close_image (core, b);
  run ("test $(qemu-img check --output=json image | "
       "grep -c 'leaks\\|corruptions') = 0");

  /* Two bits allow two snapshots, not three; here the first clusters of
   * the disk could have one more.
   */
  run ("rm -f image; qemu-img create -q -f qcow2 -o refcount_bits=2 image 3M;"
       "qemu-io -c 'write -q 0 3M' image >/dev/null");
  create ("one");
  create ("two");
  write_byte (1, 0, 1 << 20);
  core = open_image (&b);
  assert (snapshot_create (core, "three", &when) == -ERANGE);
  close_image (core, b);

  run ("rm -f image data; qemu-img create -q -f qcow2 -o data_file=data "
       "image 3M");
  core = open_image (&b);
  assert (snapshot_create (core, "one", &when) == -ENOTSUP);
  core_close (core);
  backend_close (b);
}

/* An entry that lies stops everything before it began. */
static void
test_broken (void)
{
  const struct timespec when = { .tv_sec = 0 };
  struct backend *b;
  struct core *core;
  static const char *const lies[] = {
    /* seek in the L2 table at 0x40000, big-endian bytes */
    "'\\200\\0\\0\\0\\0\\5\\2\\0'",     /* unaligned */
    "'\\200\\0\\0\\0\\0\\3\\0\\0'",     /* the L1 table */
    "'\\200\\0\\0\\0\\1\\0\\0\\0'",     /* behind the end */
  };
  size_t i;

  for (i = 0; i < sizeof lies / sizeof lies[0]; i++) {
    run ("rm -f image; qemu-img create -q -f qcow2 image 3M; "
         "qemu-io -c 'write -q 0 3M' image >/dev/null; "
         "qemu-img snapshot -c one image; cp image saved; "
         "printf %s | dd of=image bs=1 seek=$((0x40000)) conv=notrunc "
         "status=none; cp image lying", lies[i]);
    core = open_image (&b);
    nr_errors = 0;
    assert (snapshot_create (core, "two", &when) == -EIO);
    assert (snapshot_apply (core, "one") == -EIO);
    assert (snapshot_delete (core, "one") == -EIO);
    assert (nr_errors == 3 && strstr (last_error, "repair"));
    core_close (core);
    backend_close (b);
  }
}

/* A backend on top of the file of which call N fails. */
struct faulty {
  struct backend b;
  struct backend *below;
  unsigned calls, fail_at;
};

static int
faulty_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  return backend_pread (((struct faulty *) b)->below, buf, len, off);
}

static int
fault (struct backend *b)
{
  struct faulty *f = (struct faulty *) b;

  return f->calls++ == f->fail_at ? -EIO : 0;
}

static int
faulty_pwritev (struct backend *b, struct iovec *iov, int iovcnt,
                uint64_t off, unsigned flags)
{
  int r = fault (b);

  return r < 0 ? r : backend_pwritev (((struct faulty *) b)->below, iov,
                                      iovcnt, off, flags);
}

static int
faulty_flush (struct backend *b)
{
  int r = fault (b);

  return r < 0 ? r : backend_flush (((struct faulty *) b)->below);
}

static int
faulty_zero (struct backend *b, uint64_t off, uint64_t len)
{
  int r = fault (b);

  return r < 0 ? r : backend_zero (((struct faulty *) b)->below, off, len);
}

static int
faulty_punch (struct backend *b, uint64_t off, uint64_t len)
{
  return backend_punch (((struct faulty *) b)->below, off, len);
}

static int
faulty_truncate (struct backend *b, uint64_t len, bool allocate)
{
  int r = fault (b);

  return r < 0 ? r : backend_truncate (((struct faulty *) b)->below, len,
                                       allocate);
}

static int64_t
faulty_size (struct backend *b)
{
  return backend_size (((struct faulty *) b)->below);
}

static const struct backend_ops faulty_ops = {
  .pread = faulty_pread, .pwritev = faulty_pwritev, .flush = faulty_flush,
  .zero = faulty_zero, .punch = faulty_punch, .truncate = faulty_truncate,
  .size = faulty_size,
};

/* Run OP on a copy of "saved", call N failing.  Returns the result; *CALLS
 * is how many there are.  The process is then taken to be dead.
 */
static int
run_faulty (int op, unsigned n, unsigned *calls)
{
  const struct timespec when = { .tv_sec = 0 };
  const struct core_options opts = {
    .writable = true, .metadata_cache = 1 << 20, .ccache = ccache,
  };
  struct faulty f = { .b = { .ops = &faulty_ops, .name = (char *) "faulty",
                             .writable = true, .min_io = 1 },
                      .fail_at = n };
  struct core *core;
  char path[256];
  int r;

  run ("cp saved image");
  snprintf (path, sizeof path, "%s/image", dir);
  OK (backend_file_open (path, BACKEND_FILE_WRITABLE, &f.below));
  OK (core_open (&f.b, &opts, &core));
  r = op == 0 ? snapshot_create (core, "two", &when)
    : op == 1 ? snapshot_apply (core, "one") : snapshot_delete (core, "one");
  *calls = f.calls;
  core_close (core);
  backend_close (f.below);
  return r;
}

/* What was promised: nothing lost, and the next open repairs. */
static void
test_faults (void)
{
  unsigned n, calls;
  int op, r;

  /* Fragments, so that L2 tables have more than one run. */
  run ("rm -f image; qemu-img create -q -f qcow2 -o cluster_size=4k image 3M;"
       "qemu-io -c 'write -q -P 1 0 2M' image >/dev/null; "
       "qemu-img snapshot -c one image; "
       "qemu-img convert -O raw image one.raw; "
       "qemu-io -c 'write -q -P 2 1M 2M' image >/dev/null; "
       "cp image saved; qemu-img convert -O raw image two.raw");
  for (op = 0; op < 3; op++)
    for (n = 0, calls = 1; n <= calls; n++) {
      r = run_faulty (op, n, &calls);
      /* Some failures are none, such as one of growing in large steps. */
      assert (r == 0 || (r == -EIO && n < calls));
      /* Worse than leaks only while the dirty bit says so.  Opening for
       * writing repairs that.
       */
      run ("s=0; qemu-img check -q image >check.out 2>&1 || s=$?; "
           "if [ $s = 2 ]; then qemu-img info --output=json image | "
           "grep -q '\"dirty-flag\": true'; fi");
      run ("qemu-io -c flush image >check.out 2>&1; "
           "qemu-img check -q -r leaks image >check.out 2>&1; "
           "qemu-img check -q image");
      run ("qemu-img convert -O raw image now.raw; cmp -s now.raw two.raw%s",
           op == 1 ? " || cmp now.raw one.raw" : "");
      run ("if qemu-img snapshot -l image | grep -q ' one '; then "
           "qemu-img convert -l snapshot.name=one -O raw image now.raw; "
           "cmp now.raw one.raw; else test %d = 2; fi", op);
    }
}

int
main (void)
{
  if (system ("qemu-img --version >/dev/null 2>&1 && "
              "qemu-io --version >/dev/null 2>&1") != 0) {
    fprintf (stderr, "test-snapshot: skipped: qemu-img, qemu-io are not "
             "installed\n");
    return 77;
  }
  assert (mkdtemp (dir) != NULL);
  OK (ccache_create (1 << 20, &ccache));
  test_kind ("", true);
  test_kind ("-o compat=0.10", true);
  test_kind ("-o cluster_size=512,refcount_bits=64", false);
  test_kind ("-o cluster_size=4k,refcount_bits=8", false);
  test_kind ("-o extended_l2=on,compression_type=zstd,refcount_bits=32", true);
  test_kind ("-o lazy_refcounts=on,cluster_size=2M", false);
  test_session ("");
  test_session ("-o cluster_size=4k,lazy_refcounts=on");
  test_size ();
  test_refusals ();
  test_broken ();
  test_faults ();
  ccache_free (ccache);
  run ("rm -rf %s", dir);
  return 0;
}
