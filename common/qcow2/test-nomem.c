/* SPDX-License-Identifier: BSD-3-Clause */
/* Each allocation of memory fails once: requests, commits, snapshots, resize,
 * check and repair end with -ENOMEM or -EIO, or do without; the image stays
 * consistent, and what was flushed is there.  Leaks are the sanitizer's job.
 *
 * The linker leads the engine's calls here (--wrap).
 */

#include <config.h>

#include <stdarg.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "ccache.h"
#include "check.h"
#include "create.h"
#include "image.h"
#include "io.h"
#include "ondisk.h"
#include "repair.h"
#include "resize.h"
#include "snapshot.h"
#include "test-mem.h"

#define BLOCK 4096
#define BLOCKS 300
#define SIZE ((uint64_t) BLOCK * BLOCKS)

/* --- allocations --- */

static _Atomic long countdown = -1;     /* 0: the next one fails */
static _Atomic bool fired;

static bool
fails (void)
{
  if (countdown < 0 || countdown-- > 0)
    return false;
  fired = true;
  return true;
}

#define WRAP(type, name, parameters, args)              \
  extern type __real_##name parameters;                 \
  extern type __wrap_##name parameters;                 \
  type                                                  \
  __wrap_##name parameters                              \
  {                                                     \
    if (!fails ())                                      \
      return __real_##name args;                        \
    errno = ENOMEM;                                     \
    return NULL;                                        \
  }

WRAP (void *, malloc, (size_t n), (n))
WRAP (void *, calloc, (size_t n, size_t size), (n, size))
WRAP (void *, realloc, (void *p, size_t n), (p, n))
WRAP (void *, reallocarray, (void *p, size_t n, size_t size), (p, n, size))
WRAP (void *, aligned_alloc, (size_t align, size_t n), (align, n))
WRAP (char *, strdup, (const char *s), (s))
WRAP (char *, strndup, (const char *s, size_t n), (s, n))

extern int __real_posix_memalign (void **p, size_t align, size_t n);
extern int __wrap_posix_memalign (void **p, size_t align, size_t n);

int
__wrap_posix_memalign (void **p, size_t align, size_t n)
{
  return fails () ? ENOMEM : __real_posix_memalign (p, align, n);
}

void
nbdkit_error (const char *fmt, ...)
{
  (void) fmt;
}

/* --- what must be on the disk --- */

static uint8_t last[BLOCKS];            /* value of the last good write */
static bool may_be[BLOCKS][256];

static void
model_reset (void)
{
  memset (last, 0, sizeof last);
  memset (may_be, 0, sizeof may_be);
  for (unsigned i = 0; i < BLOCKS; ++i)
    may_be[i][0] = true;
}

static void
model_flushed (void)
{
  for (unsigned i = 0; i < BLOCKS; ++i) {
    memset (may_be[i], 0, sizeof may_be[i]);
    may_be[i][last[i]] = true;
  }
}

/* Write VALUE to NR blocks; 0 is a zero request, 1 a compressed write. */
static int
put (struct io *io, unsigned first, unsigned nr, uint8_t value)
{
  static const struct io_hints compress = {
    .compress = true, .codec = { .type = CODEC_ZLIB, .level = 1 },
  };
  uint8_t *buf = mmap (NULL, nr * BLOCK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  unsigned i;
  int r;

  CHECK (buf != MAP_FAILED);
  memset (buf, value, nr * BLOCK);
  for (i = first; i < first + nr; ++i)
    may_be[i][value] = true;
  if (value == 0)
    r = io_zero (io, nr * BLOCK, first * BLOCK, IO_MAY_TRIM, NULL);
  else
    r = io_pwrite (io, buf, nr * BLOCK, first * BLOCK, 0,
                   value == 1 ? &compress : NULL);
  for (i = first; r == 0 && i < first + nr; ++i)
    last[i] = value;
  munmap (buf, nr * BLOCK);
  return r;
}

/* --- images --- */

/* What is left is looked at after the image was closed. */
static void
keep (struct backend *b)
{
  (void) b;
}

static void
init_mem (struct test_mem *m, uint64_t len)
{
  static struct backend_ops ops;

  test_mem_init (m, len);
  ops = *m->b.ops;
  ops.close = keep;
  m->b.ops = &ops;
}

static void
free_mem (struct test_mem *m)
{
  pthread_mutex_destroy (&m->lock);
  munmap (m->bytes, TEST_MEM_SIZE);
}

static void
make_image (struct test_mem *m)
{
  struct create_options o;

  init_mem (m, 0);
  create_defaults (&o);
  o.size = SIZE;
  o.cluster_size = 2 * BLOCK;
  o.refcount_bits = 16;
  CHECK_OK (create_image (&m->b, NULL, &o));
}

static void
copy_image (struct test_mem *m, const struct test_mem *from)
{
  init_mem (m, from->len);
  memcpy (m->bytes, from->bytes, from->len);
}

static int
open_image (struct test_mem *m, struct ccache *cc, struct image **image)
{
  const struct image_options opts = {
    .writable = true, .discard = true, .metadata_cache = 1, .ccache = cc,
  };

  return image_open_on (&m->b, &opts, image);
}

/* The image must be usable, and have what it should. */
static void
verify (const struct test_mem *left, bool content)
{
  struct check_result res;
  struct image *image;
  struct ccache *cc;
  struct test_mem m;
  uint8_t buf[BLOCK];
  unsigned i, j;

  copy_image (&m, left);
  if (get_be64 (m.bytes + HDR_INCOMPATIBLE) & INCOMPAT_DIRTY)
    CHECK_OK (repair_run (&m.b, REPAIR_ALL, NULL, &res));
  CHECK_OK (ccache_create (1 << 20, &cc));
  CHECK_OK (open_image (&m, cc, &image));
  CHECK_OK (check_run (image_core (image), NULL, &res));
  CHECK (res.corruptions == 0 && res.check_errors == 0);
  for (i = 0; content && i < BLOCKS; ++i) {
    CHECK_OK (io_pread (image_io (image), buf, BLOCK, i * BLOCK));
    CHECK (may_be[i][buf[0]]);
    for (j = 0; j < BLOCK; ++j)
      CHECK (buf[j] == buf[0]);
  }
  CHECK_OK (image_close (image));
  ccache_free (cc);
  free_mem (&m);
}

/* --- what is tried --- */

static int
use (struct image *image)
{
  struct io *io = image_io (image);
  uint8_t buf[BLOCK];
  unsigned i;
  int r = 0, r2;

  /* A request that fails must not break the next ones. */
  for (i = 0; i < 12; ++i) {
    static const struct { unsigned first, nr; uint8_t value; } ops[12] = {
      { 0, 16, 2 }, { 40, 1, 3 }, { 100, 2, 1 }, { 102, 2, 1 }, { 7, 5, 4 },
      { 200, 40, 5 }, { 200, 20, 0 }, { 100, 1, 6 }, { 0, 4, 0 },
      { 299, 1, 7 }, { 210, 4, 8 }, { 50, 20, 9 },
    };

    r2 = put (io, ops[i].first, ops[i].nr, ops[i].value);
    if (r2 == 0)
      r2 = io_pread (io, buf, BLOCK, ops[i].first * BLOCK);
    if (r == 0)
      r = r2;
    if (i % 4 == 3) {
      r2 = io_flush (io);
      if (r2 == 0)
        model_flushed ();
      if (r == 0)
        r = r2;
    }
  }
  return r;
}

static int
administer (struct image *image)
{
  const struct timespec when = { .tv_sec = 1 };
  struct core *core = image_core (image);
  struct io *io;
  int r;

  r = snapshot_create (core, "one", &when);
  if (r == 0)
    r = io_pwrite (image_io (image), "x", 1, 5, 0, NULL);
  if (r == 0)
    r = snapshot_create (core, "two", &when);
  if (r == 0)
    r = image_snapshot (image, "one", &io);
  if (r == 0)
    r = resize_image (core, 50 * SIZE, false);
  if (r == 0)
    r = snapshot_apply (core, "one");
  if (r == 0)
    r = resize_image (core, SIZE / 2, true);
  if (r == 0)
    r = snapshot_delete (core, "one");
  return r;
}

static int
serve (struct test_mem *m, int (*fn) (struct image *))
{
  struct image *image;
  struct ccache *cc;
  int r, r2;

  r = ccache_create (1 << 20, &cc);
  if (r < 0)
    return r;
  r = open_image (m, cc, &image);
  if (r == 0) {
    r = fn (image);
    r2 = image_close (image);
    if (r2 == 0 && fn == use)
      model_flushed ();
    if (r == 0)
      r = r2;
  }
  ccache_free (cc);
  return r;
}

static int
try_use (struct test_mem *m)
{
  return serve (m, use);
}

static int
try_admin (struct test_mem *m)
{
  return serve (m, administer);
}

/* Nothing has a refcount, so all is made anew. */
static int
try_rebuild (struct test_mem *m)
{
  const uint64_t table = get_be64 (m->bytes + HDR_REFCOUNT_TABLE_OFFSET);
  struct check_result res;
  int r;

  put_be64 (m->bytes + table, 512);
  r = repair_run (&m->b, REPAIR_ALL, NULL, &res);
  put_be64 (m->bytes + HDR_INCOMPATIBLE, INCOMPAT_DIRTY);
  return r;
}

static int
try_repair (struct test_mem *m)
{
  const uint64_t table = get_be64 (m->bytes + HDR_REFCOUNT_TABLE_OFFSET);
  const uint64_t block = get_be64 (m->bytes + table);
  struct check_result res;
  int r;

  m->bytes[block + 2 * 3 + 1] = 2;
  m->bytes[block + 2 * 40 + 1] = 7;
  r = repair_run (&m->b, REPAIR_ALL, NULL, &res);
  put_be64 (m->bytes + HDR_INCOMPATIBLE, INCOMPAT_DIRTY);
  return r;
}

static void
each_fails (const char *name, const struct test_mem *image,
            int (*fn) (struct test_mem *), bool content)
{
  struct test_mem m;
  long n = 0;
  int r;

  do {
    copy_image (&m, image);
    if (content)
      model_reset ();
    fired = false;
    countdown = n++;
    r = fn (&m);
    countdown = -1;
    CHECK (fired || r == 0);
    CHECK (r == 0 || r == -ENOMEM || r == -EIO);
    verify (&m, content);
    free_mem (&m);
  } while (fired);
  fprintf (stderr, "%s: %ld allocations\n", name, n - 1);
}

int
main (void)
{
  struct test_mem empty, used;

  make_image (&empty);
  each_fails ("requests", &empty, try_use, true);

  model_reset ();
  copy_image (&used, &empty);
  CHECK_OK (serve (&used, use));
  each_fails ("snapshots, resize", &used, try_admin, false);
  each_fails ("repair", &used, try_repair, false);
  each_fails ("rebuild", &used, try_rebuild, false);
  free_mem (&used);
  free_mem (&empty);
  return 0;
}
