/* SPDX-License-Identifier: BSD-3-Clause */
/* Grow and shrink, in turns with QEMU: content against a raw file of the
 * same history, a clean check at every step, bitmaps and snapshots present.
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
#include "image.h"
#include "resize.h"
#include "snapshot.h"
#include "test-qemu.h"

static struct ccache *ccache;

static struct image *
open_image (void)
{
  const struct image_options opts = {
    .writable = true, .metadata_cache = 4 << 20, .ccache = ccache,
    .discard = true,
  };
  struct image *image;
  char path[256];

  snprintf (path, sizeof path, "%s/image", dir);
  OK (image_open (path, false, &opts, &image));
  return image;
}

static void
close_image (struct image *image)
{
  OK (image_close (image));
  run ("qemu-img check -q image >check.out 2>&1 || "
       "{ cat check.out; exit 1; }");
}

static void
resize (uint64_t size, bool shrink)
{
  struct image *image = open_image ();

  OK (resize_image (image_core (image), size, shrink));
  close_image (image);
}

/* The same with a raw file beside it. */
static void
resize_both (uint64_t size)
{
  resize (size, true);
  run ("truncate -s %" PRIu64 " raw", size);
}

static void
same (void)
{
  run ("qemu-img convert -f qcow2 -O raw image now.raw; cmp now.raw raw");
}

__attribute__ ((__format__ (__printf__, 1, 2))) static void
write_both (const char *fmt, ...)
{
  char what[256];
  va_list args;

  va_start (args, fmt);
  vsnprintf (what, sizeof what, fmt, args);
  va_end (args);
  run ("qemu-io -f qcow2 -c '%s' image >/dev/null; "
       "qemu-io -f raw -c '%s' raw >/dev/null; qemu-img check -q image",
       what, what);
}

static void
test_kind (const char *options)
{
  run ("rm -f image raw; qemu-img create -q -f qcow2 %s image 3M; "
       "truncate -s 3M raw", options);
  write_both ("write -q -P 1 0 3M");
  resize_both (5 << 20);
  same ();
  write_both ("write -q -P 2 4M 1M");
  resize_both ((3 << 20) + 512 * 7);    /* inside a cluster */
  same ();
  resize_both (70 << 20);               /* old data must not come back */
  same ();
  write_both ("write -q -P 3 60M 10M");
  resize_both (1 << 20);
  same ();
  resize_both (0);
  same ();
  resize_both (20 << 20);
  same ();
  write_both ("write -q -P 4 100k 12M");
  run ("qemu-img resize -q --shrink image 2050k; truncate -s 2050k raw; "
       "qemu-img resize -q image 4M");
  /* QEMU lets the tail of the last cluster reappear: take it as it is. */
  run ("qemu-img convert -f qcow2 -O raw image raw");
  resize_both (8 << 20);
  same ();
  run ("qemu-img resize -q image 9M; truncate -s 9M raw");
  same ();
}

/* L1 tables of many clusters, and back. */
static void
test_l1 (void)
{
  run ("rm -f image raw; qemu-img create -q -f qcow2 -o cluster_size=512 "
       "image 1M; truncate -s 1M raw");
  write_both ("write -q -P 1 0 1M");
  resize_both (UINT64_C (4) << 30);
  write_both ("write -q -P 2 3000M 100k");
  run ("qemu-io -c 'read -q -P 2 3000M 100k' -c 'read -q -P 1 0 1M' "
       "-c 'read -q -P 0 1M 1M' image >out; ! grep -i pattern out");
  resize_both (1 << 20);
  same ();
  /* Empty refcount blocks stay, but not what they described. */
  run ("test $(stat -c %%b image) -lt $((1400000 / 512))");
}

/* A backing file that is longer than the disk was. */
static void
test_backing (const char *options)
{
  run ("rm -f image raw; qemu-io -f raw -c 'write -q -P 9 0 10M' base "
       ">/dev/null 2>&1 || { truncate -s 10M base; "
       "qemu-io -f raw -c 'write -q -P 9 0 10M' base >/dev/null; }; "
       "qemu-img create -q -f qcow2 -b base -F raw %s image 2M; "
       "head -c 2M base >raw", options);
  same ();
  resize_both ((1 << 20) + 512);
  same ();
  resize_both (7 << 20);
  same ();
  resize_both (20 << 20);
  same ();
  write_both ("write -q -P 3 1M 2M");
  same ();
}

static void
test_data_file (void)
{
  run ("rm -f image data raw; "
       "qemu-img create -q -f qcow2 -o data_file=data image 3M; "
       "truncate -s 3M raw");
  write_both ("write -q -P 1 0 3M");
  resize_both (8 << 20);
  same ();
  run ("test $(stat -c %%s data) = 8388608");
  resize_both (2 << 20);
  same ();
  run ("test $(stat -c %%s data) = 2097152");

  run ("rm -f image data raw; qemu-img create -q -f qcow2 "
       "-o data_file=data,data_file_raw=on image 3M; truncate -s 3M raw");
  write_both ("write -q -P 1 0 3M");
  resize_both (8 << 20);
  same ();
  run ("cmp data raw");
  write_both ("write -q -P 2 7M 1M");
  resize_both (2 << 20);
  same ();
  run ("cmp data raw");
}

static void
test_snapshots (void)
{
  struct image *image;

  run ("rm -f image raw; qemu-img create -q -f qcow2 -o cluster_size=4k "
       "image 12M; truncate -s 12M raw");
  write_both ("write -q -P 1 0 12M");
  run ("qemu-img snapshot -c one image; cp raw one.raw");
  resize_both (1 << 20);
  same ();
  resize_both (30 << 20);
  same ();
  /* qemu-img gives the snapshot the size that the disk has now. */
  run ("qemu-img convert -l snapshot.name=one -O raw image now.raw; "
       "cmp -n $(stat -c %%s one.raw) now.raw one.raw");
  image = open_image ();
  OK (snapshot_apply (image_core (image), "one"));
  close_image (image);
  run ("cp one.raw raw");
  same ();
  resize_both (5 << 20);
  image = open_image ();
  OK (snapshot_delete (image_core (image), "one"));
  close_image (image);
  same ();
}

/* What is dirty in the bitmap NAME, as "offset+length" of all ranges. */
static void
expect_dirty (const char *name, const char *ranges)
{
  run ("rm -f sock; qemu-nbd -r -t -B %s -k $PWD/sock -f qcow2 image & "
       "pid=$!; while ! test -S sock; do sleep 0.05; done; "
       "nbdinfo --map=qemu:dirty-bitmap:%s \"nbd+unix:///?socket=$PWD/sock\" "
       ">map; kill $pid; wait $pid || true; "
       "got=$(echo $(awk '$3 == 1 {print $1 \"+\" $2}' map)); "
       "test \"$got\" = \"%s\" || { cat map; exit 1; }",
       name, name, ranges);
}

static bool
have_nbdinfo (void)
{
  return system ("nbdinfo --version >/dev/null 2>&1 && "
                 "qemu-nbd --version >/dev/null 2>&1") == 0;
}

static void
test_bitmaps (void)
{
  struct image *image;

  /* Tables of 512 bytes: 64 entries, each for 4096 bits. */
  run ("rm -f image; qemu-img create -q -f qcow2 -o cluster_size=512 "
       "image 1M; qemu-img bitmap --add -g 512 image b0; "
       "qemu-img bitmap --add -g 64k image b1; "
       "qemu-img bitmap --add --disable -g 512 image off; "
       "qemu-io -c 'write -q 0 1k' -c 'write -q 900k 1k' image >/dev/null");
  expect_dirty ("b0", "0+1024 921600+1024");
  resize (300 << 20, false);
  expect_dirty ("b0", "0+1024 921600+1024");
  expect_dirty ("b1", "0+65536 917504+65536");
  run ("qemu-io -c 'write -q 299M 1k' image >/dev/null");
  image = open_image ();
  OK (io_zero (image_io (image), 512, 298 << 20, 0, NULL));
  OK (io_pwrite (image_io (image), "x", 1, 200 << 20, 0, NULL));
  close_image (image);
  expect_dirty ("b0", "0+1024 921600+1024 209715200+512 312475648+512 "
                "313524224+1024");
  resize ((900 << 10) + 512, true);
  expect_dirty ("b0", "0+1024 921600+512");
  expect_dirty ("off", "");
  resize (200 << 20, false);
  expect_dirty ("b0", "0+1024 921600+512");

  /* A snapshot changes everything, and the size. */
  run ("qemu-img snapshot -c one image");
  resize (2 << 20, true);
  image = open_image ();
  OK (snapshot_apply (image_core (image), "one"));
  close_image (image);
  expect_dirty ("b0", "0+209715200");
  expect_dirty ("b1", "0+209715200");
  expect_dirty ("off", "");
  image = open_image ();
  OK (snapshot_delete (image_core (image), "one"));
  close_image (image);
  expect_dirty ("b1", "0+209715200");

  /* One that is in use stands in the way; a crash leaves marks. */
  image = open_image ();
  nr_errors = 0;
  assert (resize_image (image_core (image), 0, true) == -ENOTSUP);
  assert (nr_errors == 1);
  close_image (image);
  run ("! qemu-img info image | grep in-use");
}

static void
test_refusals (void)
{
  struct image *image;
  struct core *core;

  run ("rm -f image; qemu-img create -q -f qcow2 -o compat=0.10 image 3M; "
       "qemu-img snapshot -c one image");
  image = open_image ();
  core = image_core (image);
  nr_errors = 0;
  assert (resize_image (core, 4 << 20, false) == -ENOTSUP);
  assert (nr_errors == 1 && strstr (last_error, "version 2"));
  close_image (image);

  run ("rm -f image; qemu-img create -q -f qcow2 image 3M");
  image = open_image ();
  core = image_core (image);
  nr_errors = 0;
  assert (resize_image (core, 2 << 20, false) == -EINVAL);
  assert (nr_errors == 1 && strstr (last_error, "shrink=true"));
  assert (resize_image (core, (UINT64_C (2) << 50) + 1, false) == -EFBIG);
  assert (resize_image (core, UINT64_MAX, false) == -EFBIG);
  assert (nr_errors == 3);
  OK (resize_image (core, 3 << 20, false));
  OK (resize_image (core, (3 << 20) + 1, false));
  assert (core->header.size == (3 << 20) + 512);
  close_image (image);
  run ("qemu-img info image | grep -q '(3146240 bytes)'");
}

int
main (void)
{
  if (system ("qemu-img --version >/dev/null 2>&1 && "
              "qemu-io --version >/dev/null 2>&1") != 0) {
    fprintf (stderr, "test-resize: skipped: qemu-img, qemu-io are not "
             "installed\n");
    return 77;
  }
  assert (mkdtemp (dir) != NULL);
  OK (ccache_create (1 << 20, &ccache));
  test_kind ("");
  test_kind ("-o compat=0.10,cluster_size=4k");
  test_kind ("-o extended_l2=on,lazy_refcounts=on");
  test_kind ("-o cluster_size=2M,refcount_bits=1");
  test_kind ("-o cluster_size=512,refcount_bits=64");
  test_l1 ();
  test_backing ("");
  test_backing ("-o compat=0.10");
  test_backing ("-o extended_l2=on");
  test_data_file ();
  test_snapshots ();
  test_refusals ();
  if (have_nbdinfo ())
    test_bitmaps ();
  ccache_free (ccache);
  run ("rm -rf %s", dir);
  return 0;
}
