/* SPDX-License-Identifier: BSD-3-Clause */
/* Changing an image, then checking it.
 *
 * The input has an image and a script of requests and of admin operations.
 * Where our check finds an image right, or where repair has made it so, it
 * must be right after the script as well, with no more leaks; and the first
 * WINDOW bytes of the disk must read as what was written.  Where the check
 * finds errors, the script must do no harm to the program; and so where it
 * does not look (fuzz-alias.c).
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "fuzz-disk.h"
#include "ondisk.h"
#include "repair.h"
#include "resize.h"
#include "snapshot.h"

#define WINDOW          (256 * 1024)
#define MAX_REQUEST     (128 * 1024)
#define MAX_OPS         40
#define OP_LEN          8
#define MAX_MESSAGES    600     /* some for each request */
#define CHECK_BUDGET    (UINT64_C (64) << 20)

/* Options of the input. */
#define OPT_DISCARD     1
#define OPT_DETECT      2
#define OPT_REPAIR      4       /* also what is not dirty */
#define OPT_LEAKS       8       /* repair only leaks */

struct run {
  struct backend *file, *data;
  struct fuzz_disk disk;
  unsigned flags;               /* FUZZ_DISK_* */
  bool open;
  bool failed;                  /* a request did: leaks are allowed */
  bool leaks_allowed;           /* for another reason */
  bool strict;                  /* the image was right */
  bool follow;                  /* SHADOW is the truth */
  uint64_t shadow_len;
  uint8_t shadow[WINDOW];
};

static uint8_t buf[MAX_REQUEST], was[MAX_REQUEST];

/* ------------------------------------------------------------------
 * What the disk must read as.
 */

static void
read_shadow (struct run *t)
{
  struct io *io = &t->disk.core->io;

  t->shadow_len = io->size < WINDOW ? io->size : WINDOW;
  /* Nobody checks that references into a data file are different. */
  t->follow = t->strict && !t->disk.core->data_file &&
    io_pread (io, t->shadow, t->shadow_len, 0) == 0;
}

static void
compare_shadow (struct run *t)
{
  struct io *io = &t->disk.core->io;
  uint64_t off, n;

  if (!t->follow)
    return;
  FUZZ_CHECK (t->shadow_len == (io->size < WINDOW ? io->size : WINDOW));
  for (off = 0; off < t->shadow_len; off += n) {
    n = t->shadow_len - off < sizeof buf ? t->shadow_len - off : sizeof buf;
    FUZZ_CHECK (io_pread (io, buf, n, off) == 0);
    FUZZ_CHECK (memcmp (buf, t->shadow + off, n) == 0);
  }
}

/* A change of [OFF, OFF + LEN) ended with R; it is C there, or if C < 0
 * what BUF says.
 */
static void
changed (struct run *t, int r, uint64_t off, uint64_t len, int c)
{
  if (r < 0) {
    t->failed = true;
    t->follow = false;
    return;
  }
  if (off >= t->shadow_len)
    return;
  if (len > t->shadow_len - off)
    len = t->shadow_len - off;
  if (c < 0)
    memcpy (t->shadow + off, buf, len);
  else
    memset (t->shadow + off, c, len);
}

/* ------------------------------------------------------------------
 * The script.
 */

static void
open_disk (struct run *t)
{
  t->open = fuzz_disk_open (t->file, t->data, t->flags, &t->disk) == 0;
  if (t->open &&
      (t->disk.core->header.incompatible & INCOMPAT_DIRTY) != 0) {
    /* Something failed, so it stays for the next repair. */
    FUZZ_CHECK (t->failed || !t->strict);
    core_close (t->disk.core);
    ccache_free (t->disk.ccache);
    backend_close (t->disk.raw);
    t->open = false;
  }
}

static void
close_disk (struct run *t)
{
  if (t->open && fuzz_disk_close (&t->disk) < 0) {
    t->failed = true;
    t->follow = false;
  }
  t->open = false;
}

static void
reopen (struct run *t)
{
  close_disk (t);
  open_disk (t);
  FUZZ_CHECK (t->open || !t->strict || t->failed);
  if (t->open)
    compare_shadow (t);
}

static void
admin (struct run *t, const uint8_t *op)
{
  static const struct timespec when = { .tv_sec = 1 };
  struct core *core;
  char name[8];
  int r;

  close_disk (t);
  if (fuzz_disk_open (t->file, t->data, t->flags | FUZZ_DISK_ADMIN,
                      &t->disk) < 0)
    return;
  core = t->disk.core;
  t->open = true;
  snprintf (name, sizeof name, "%u", op[2] % 4);
  switch (op[1] % 5) {
  case 0: r = snapshot_create (core, name, &when); break;
  case 1: r = snapshot_apply (core, name); break;
  case 2: r = snapshot_delete (core, name); break;
  case 3: r = resize_image (core, core->header.size + get_be16 (op + 2) * 512,
                            false); break;
  default: r = resize_image (core, get_be16 (op + 2) * UINT64_C (512), true);
  }
  if (r < 0)
    t->failed = true;
  close_disk (t);
  open_disk (t);
  if (t->open)
    read_shadow (t);
}

/* Mostly inside the window. */
static uint64_t
get_range (struct run *t, const uint8_t *op, uint64_t *len)
{
  const struct geometry *geo = &t->disk.core->geo;
  uint64_t size = t->disk.core->io.size;
  uint64_t off = get_be32 (op + 4) >> 8, n = get_be16 (op + 2) + 1;

  if (op[7] % 8 != 0 && size > WINDOW)
    size = WINDOW;
  else
    off <<= op[7] % 16;
  if (op[1] & 1)                /* whole sectors */
    off <<= 9;
  if (op[1] & 2)                /* whole clusters */
    n <<= geo->cluster_bits;
  off %= size;
  if (op[1] & 2)
    off &= ~(geo->cluster_size - 1);
  if (n > MAX_REQUEST)
    n = MAX_REQUEST;
  *len = n < size - off ? n : size - off;
  return off;
}

static void
write_disk (struct run *t, const uint8_t *op, uint64_t off, uint64_t len)
{
  const struct io_hints hints = {
    .compress = op[0] % 12 == 3 &&
      t->disk.core->data_file == NULL,
    .codec = { .type = t->disk.core->io.codec },
    .growth = { .size = op[1] & 8 ? 65536 : 0, .align = 4096 },
  };
  uint64_t i;

  memset (buf, op[0] % 12 == 4 ? 0 : op[6], len);
  if (op[1] & 16)
    for (i = 0; i < len; ++i)
      buf[i] = i * 7 + (i >> 8) * op[6];
  changed (t, io_pwrite (&t->disk.core->io, buf, len, off,
                         op[1] & 4 ? IO_FUA : 0, &hints), off, len, -1);
}

/* Bytes after a trim: as before, or zero. */
static void
trim_disk (struct run *t, const uint8_t *op, uint64_t off, uint64_t len)
{
  struct io *io = &t->disk.core->io;
  uint64_t i;
  int r;

  if (io_pread (io, was, len, off) < 0)
    t->follow = false;
  r = io_trim (io, len, off, op[1] & 4 ? IO_FUA : 0);
  if (r == 0 && t->follow) {
    FUZZ_CHECK (io_pread (io, buf, len, off) == 0);
    for (i = 0; i < len; ++i)
      FUZZ_CHECK (buf[i] == 0 || buf[i] == was[i]);
  }
  changed (t, r, off, len, -1);
}

static void
run_op (struct run *t, const uint8_t *op)
{
  struct io *io = &t->disk.core->io;
  uint64_t len, off;
  int r;

  if (op[0] % 12 == 10) {
    admin (t, op);
    return;
  }
  if (op[0] % 12 == 9) {
    reopen (t);
    return;
  }
  if (io->size == 0)
    return;
  off = get_range (t, op, &len);
  switch (op[0] % 12) {
  case 5: case 6:
    r = io_zero (io, len, off, op[1] & 4 ? IO_MAY_TRIM : 0, NULL);
    changed (t, r, off, len, 0);
    break;
  case 7:
    trim_disk (t, op, off, len);
    break;
  case 8:
    if (io_flush (io) < 0)
      t->failed = true;
    break;
  case 11:
    r = io_zero (io, len, off, IO_FAST_ZERO | IO_MAY_TRIM, NULL);
    if (r != -ENOTSUP)
      changed (t, r, off, len, 0);
    break;
  default:
    write_disk (t, op, off, len);
  }
}

/* Refcounts of what lies beyond the end of the file: leaks that a check
 * sees only when the file has become longer.
 */
static bool
has_hidden_leaks (struct core *core)
{
  const int64_t size = backend_size (core->file);
  uint64_t end;

  WRITE_SCOPE (&core->meta);
  return refcount_end_locked (&core->refcount, &end) < 0 ||
    end > geometry_clusters (&core->geo, size);
}

static void
run_script (struct run *t, const uint8_t *p, size_t len)
{
  unsigned i;

  open_disk (t);
  FUZZ_CHECK (t->open || !t->strict);
  if (!t->open)
    return;
  if (t->strict && fuzz_disk_is_aliased (t->disk.core))
    t->strict = false;
  read_shadow (t);
  t->leaks_allowed = has_hidden_leaks (t->disk.core);
  for (i = 0; t->open && i < MAX_OPS && len >= OP_LEN;
       ++i, p += OP_LEN, len -= OP_LEN)
    run_op (t, p);
  if (t->open)
    compare_shadow (t);
  close_disk (t);
}

/* ------------------------------------------------------------------ */

static bool
is_right (const struct check_result *res)
{
  return res->corruptions == 0 && res->check_errors == 0;
}

/* Repair as the server does before the first change.  False: no use. */
static bool
repair (struct run *t, unsigned options, struct check_result *res)
{
  const enum repair_mode mode = options & OPT_LEAKS ? REPAIR_LEAKS :
    REPAIR_ALL;
  struct check_result said;
  int r;

  t->file->writable = true;
  fuzz_mem_read_budget (t->file, CHECK_BUDGET);
  r = repair_run (t->file, mode, NULL, &said);
  fuzz_mem_read_budget (t->file, UINT64_MAX);
  if (r < 0)
    return false;
  if (!fuzz_disk_check (t->file, CHECK_BUDGET, res))
    return false;
  if (is_right (&said)) {
    FUZZ_CHECK (is_right (res));
    FUZZ_CHECK (res->leaks <= said.leaks);
  }
  return true;
}

static bool
is_marked (struct backend *file)
{
  struct fuzz_disk disk;
  uint64_t features = 0;

  if (fuzz_disk_open (file, NULL, FUZZ_DISK_ADMIN, &disk) == 0) {
    features = disk.core->header.incompatible;
    if (fuzz_disk_close (&disk) < 0)
      abort ();
  }
  return features & (INCOMPAT_DIRTY | INCOMPAT_CORRUPT);
}

static void
test_image (struct run *t, const struct fuzz_image *image)
{
  struct check_result before, after;

  if (!fuzz_disk_check (t->file, CHECK_BUDGET, &before))
    return;
  if ((is_marked (t->file) || (image->options & OPT_REPAIR)) &&
      !repair (t, image->options, &before))
    return;
  if (is_marked (t->file))
    return;
  t->strict = is_right (&before);
  t->flags = FUZZ_DISK_WRITABLE;
  if (image->options & OPT_DISCARD)
    t->flags |= FUZZ_DISK_DISCARD;
  if (image->options & OPT_DETECT)
    t->flags |= FUZZ_DISK_DETECT_ZEROES;
  fuzz_mem_read_budget (t->file, 4 * CHECK_BUDGET);
  run_script (t, image->script, image->script_len);
  fuzz_mem_read_budget (t->file, UINT64_MAX);
  if (!t->strict)
    return;
  if (!fuzz_disk_check (t->file, 4 * CHECK_BUDGET, &after))
    return;
  FUZZ_CHECK (is_right (&after));
  FUZZ_CHECK (t->failed || t->leaks_allowed ||
              after.leaks <= before.leaks);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  static struct run t;
  struct fuzz_image image;

  if (!fuzz_image_load (data, size, &image))
    return 0;
  memset (&t, 0, sizeof t);
  t.file = image.file;
  t.data = fuzz_mem_create ("data");
  fuzz_log_errors ();
  test_image (&t, &image);
  FUZZ_CHECK (fuzz_log_errors () <= MAX_MESSAGES);
  backend_close (t.data);
  backend_close (t.file);
  return 0;
}

#include "fuzz-mutator.h"
