/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit test of check*.c and repair*.c.
 *
 * Images of many kinds are made by qemu-img and qemu-io, then broken at
 * random places.  Our check must count the same as `qemu-img check' does, and
 * after our repair the two must agree again; the guest must see the same as
 * before.  Power failures during a repair: repairing again must lead to the
 * same end.
 *
 * QCOW2_TEST_COUNT=N: number of broken images; QCOW2_TEST_SEED=N: others.
 */

#include <config.h>

#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend-file.h"
#include "check-count.h"
#include "check.h"
#include "ondisk.h"
#include "repair.h"
#include "test-mem.h"

static char dir[] = "/tmp/test-check.XXXXXX";
static uint64_t seed = 1;

static uint64_t
below (uint64_t n)
{
  return test_below (&seed, n);
}

/* ------------------------------------------------------------------
 * Reference counter.
 */

#define CLUSTERS 20000

static void
test_count (void)
{
  static uint64_t model[CLUSTERS];
  struct check_count *cc;
  uint64_t i, j, c, n;
  uint64_t times, excess;

  CHECK_OK (check_count_create (1 << 20, &cc));
  CHECK (check_count_end (cc) == 0);
  CHECK (check_count_next (cc, 0) == UINT64_MAX);
  for (i = 0; i < 30000; ++i) {
    c = below (CLUSTERS / 100) * (1 + below (90));
    for (j = below (8) ? 1 : below (600); j > 0; --j) {
      times = below (50) ? 1 : below (300);
      CHECK_OK (check_count_add (cc, c, times, 500, &excess));
      model[c] += times;
      CHECK (excess == (model[c] > 500 ? model[c] - 500 : 0));
      model[c] -= excess;
    }
    c = below (CLUSTERS);
    CHECK (check_count_get (cc, c) == model[c]);
    for (n = c; n < CLUSTERS && model[n] == 0; ++n)
      ;
    CHECK (check_count_next (cc, c) == (n < CLUSTERS ? n : UINT64_MAX));
  }
  for (n = CLUSTERS; model[n-1] == 0; --n)
    ;
  CHECK (check_count_end (cc) == n);
  check_count_free (cc);

  /* The bound on memory: two pieces. */
  CHECK_OK (check_count_create (10000, &cc));
  CHECK_OK (check_count_add (cc, UINT64_C (1) << 50, 1, 5, &excess));
  CHECK_OK (check_count_add (cc, 0, 1, 5, &excess));
  CHECK (check_count_add (cc, UINT64_C (1) << 40, 1, 5, &excess) == -ENOMEM);
  CHECK (check_count_end (cc) == (UINT64_C (1) << 50) + 1);
  check_count_free (cc);
}

/* ------------------------------------------------------------------
 * Images.
 */

__attribute__ ((__format__ (__printf__, 1, 2)))
static int
shell (const char *fmt, ...)
{
  char cmd[2048];
  va_list args;
  int n = snprintf (cmd, sizeof cmd, "cd %s && { ", dir);

  va_start (args, fmt);
  n += vsnprintf (cmd + n, sizeof cmd - n, fmt, args);
  va_end (args);
  snprintf (cmd + n, sizeof cmd - n, "; } >out 2>err");
  n = system (cmd);
  return WIFEXITED (n) ? WEXITSTATUS (n) : -1;
}

static void
remove_dir (void)
{
  char cmd[64];

  snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
  if (system (cmd) != 0)
    fprintf (stderr, "test-check: could not remove %s\n", dir);
}

static struct kind {
  const char *name, *options;
  bool v2, snapshots, compressed, bitmaps;
  uint8_t *bytes;
  size_t len;
} kinds[] = {
  { .name = "plain", .options = "", .snapshots = true },
  { .name = "small", .options = "cluster_size=512,refcount_bits=64",
    .snapshots = true },
  { .name = "one", .options = "cluster_size=4k,refcount_bits=1" },
  { .name = "v2", .options = "compat=0.10", .v2 = true, .snapshots = true },
  { .name = "lazy", .options = "lazy_refcounts=on", .snapshots = true },
  { .name = "ext", .options = "extended_l2=on,cluster_size=16k",
    .snapshots = true },
  { .name = "data", .options = "data_file=raw" },
  { .name = "comp", .options = "", .snapshots = true, .compressed = true },
  { .name = "bm", .options = "cluster_size=4k", .bitmaps = true },
};
#define NR_KINDS (sizeof kinds / sizeof kinds[0])

static uint8_t *
read_file (const char *name, size_t *len)
{
  char path[256];
  struct stat st;
  uint8_t *buf;
  int fd;

  snprintf (path, sizeof path, "%s/%s", dir, name);
  fd = open (path, O_RDONLY | O_CLOEXEC);
  CHECK (fd >= 0 && fstat (fd, &st) == 0);
  buf = malloc (st.st_size + 1);
  CHECK (buf && read (fd, buf, st.st_size) == st.st_size);
  close (fd);
  *len = st.st_size;
  buf[*len] = 0;
  return buf;
}

static void
write_file (const char *name, const uint8_t *buf, size_t len)
{
  char path[256];
  int fd;

  snprintf (path, sizeof path, "%s/%s", dir, name);
  fd = open (path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  CHECK (fd >= 0 && write (fd, buf, len) == (ssize_t) len);
  close (fd);
}

static void
make_images (void)
{
  struct kind *k;
  size_t i;

  for (i = 0; i < NR_KINDS; ++i) {
    k = &kinds[i];
    CHECK_OK (shell ("qemu-img create -f qcow2 %s%s %s 4M",
                     *k->options ? "-o " : "", k->options, k->name));
    if (k->bitmaps)
      CHECK_OK (shell ("qemu-img bitmap --add %s b0 && "
                       "qemu-img bitmap --add %s b1", k->name, k->name));
    CHECK_OK (shell ("qemu-io -f qcow2 -c 'write -P 1 0 300k' "
                     "-c 'write -P 2 2M 128k' %s %s",
                     k->v2 ? "" : "-c 'write -z 512k 128k'", k->name));
    if (k->compressed)
      CHECK_OK (shell ("qemu-io -f qcow2 -c 'write -c -P 3 1M 64k' "
                       "-c 'write -c -P 4 1088k 64k' "
                       "-c 'write -c -P 4 3M 64k' %s", k->name));
    if (k->snapshots)
      CHECK_OK (shell ("qemu-img snapshot -c s1 %s && "
                       "qemu-io -f qcow2 -c 'write -P 9 64k 128k' %s && "
                       "qemu-img snapshot -c s2 %s",
                       k->name, k->name, k->name));
    k->bytes = read_file (k->name, &k->len);
  }
}

/* ------------------------------------------------------------------
 * Breaking them.
 */

static uint64_t
field (const uint8_t *p, size_t len, uint64_t off)
{
  return len >= 8 && off <= len - 8 ? get_be64 (p + off) : 0;
}

static void
put_field (uint8_t *p, size_t len, uint64_t off, uint64_t v)
{
  if (len >= 8 && off <= len - 8)
    put_be64 (p + off, v);
}

/* A value that may or may not make sense in a table. */
static uint64_t
any_value (size_t len, uint64_t cluster)
{
  const uint64_t n = len / cluster;

  switch (below (9)) {
  case 0: return 0;
  case 1: return below (n) * cluster;
  case 2: return (below (n + 3) * cluster) | ENTRY_COPIED;
  case 3: return below (n) * cluster | L2E_ZERO;
  case 4: return below (len) & ~UINT64_C (511);
  case 5: return test_random (&seed) & ~(UINT64_C (3) << 62);
  case 6: return test_random (&seed) >> 34;
  case 7: return L2E_COMPRESSED | below (len);
  default: return below (n) * cluster | ENTRY_COPIED;
  }
}

/* An L2 table that is in the active L1 table. */
static uint64_t
any_l2 (const uint8_t *p, size_t len)
{
  const uint64_t l1 = get_be64 (p + HDR_L1_TABLE_OFFSET);
  const uint64_t nr = get_be32 (p + HDR_L1_SIZE);
  uint64_t i = below (nr), n, v;

  for (n = 0; n < nr; ++n) {
    v = field (p, len, l1 + (i + n) % nr * 8) & L1E_OFFSET_MASK;
    if (v != 0)
      return v;
  }
  return 0;
}

static void
break_image (uint8_t *p, size_t *len)
{
  const uint64_t cluster = UINT64_C (1) << get_be32 (p + HDR_CLUSTER_BITS);
  const uint64_t l1 = get_be64 (p + HDR_L1_TABLE_OFFSET);
  const uint64_t table = get_be64 (p + HDR_REFCOUNT_TABLE_OFFSET);
  const uint64_t snapshots = get_be64 (p + HDR_SNAPSHOTS_OFFSET);
  uint64_t off;

  switch (below (12)) {
  case 0:
    off = l1 + below (get_be32 (p + HDR_L1_SIZE)) * 8;
    put_field (p, *len, off, any_value (*len, cluster));
    break;
  case 1: case 2:
    off = any_l2 (p, *len) + below (cluster / 8 < 100 ? cluster / 8 : 100) * 8;
    if (off > cluster)
      put_field (p, *len, off, any_value (*len, cluster));
    break;
  case 3: case 4:
    off = any_l2 (p, *len) + below (20) * 8;
    if (off > cluster)
      put_field (p, *len, off,
                 field (p, *len, off) ^ UINT64_C (1) << below (64));
    break;
  case 5:
    off = table + below (4) * 8;
    put_field (p, *len, off, below (2) ? any_value (*len, cluster) & INT64_MAX
               : field (p, *len, off) ^ UINT64_C (1) << below (9));
    break;
  case 6: case 7:
    off = (field (p, *len, table) & REFTABLE_OFFSET_MASK) + below (80);
    if (off > cluster && off < *len)
      p[off] = test_random (&seed);
    break;
  case 8:
    *len -= 1 + below (3 * cluster < *len / 4 ? 3 * cluster : *len / 4);
    break;
  case 9:
    if (get_be32 (p + HDR_NB_SNAPSHOTS) && snapshots)
      put_field (p, *len, snapshots, field (p, *len, snapshots) ^
                 UINT64_C (1) << below (20));
    else if (get_be32 (p + HDR_VERSION) >= 3)
      p[HDR_INCOMPATIBLE + 7] |= INCOMPAT_DIRTY;
    break;
  case 10:
    /* One table for all. */
    for (off = l1; off < l1 + get_be32 (p + HDR_L1_SIZE) * 8; off += 8)
      put_field (p, *len, off, any_l2 (p, *len) | ENTRY_COPIED);
    break;
  case 11:
    /* The first snapshot has the active L1 table. */
    if (get_be32 (p + HDR_NB_SNAPSHOTS) && snapshots)
      put_field (p, *len, snapshots, l1);
    break;
  }
}

/* Is cluster OFF one that a repair may write to? */
static bool
is_table (const uint8_t *p, size_t len, uint64_t off)
{
  const uint64_t cluster = UINT64_C (1) << get_be32 (p + HDR_CLUSTER_BITS);
  const uint64_t l1 = get_be64 (p + HDR_L1_TABLE_OFFSET);
  const uint64_t l1_bytes = get_be32 (p + HDR_L1_SIZE) * UINT64_C (8);
  const uint64_t table = get_be64 (p + HDR_REFCOUNT_TABLE_OFFSET);
  uint64_t i;

  if (off < cluster || (off >= l1 && off < l1 + l1_bytes) ||
      (off >= table && off < table + cluster))
    return true;
  for (i = 0; i < cluster; i += 8) {
    if ((field (p, len, table + i) & REFTABLE_OFFSET_MASK) == off)
      return true;
  }
  for (i = 0; i < l1_bytes; i += 8) {
    if ((field (p, len, l1 + i) & L1E_OFFSET_MASK) == off)
      return true;
  }
  return false;
}

/* Was an image broken in such a way that the guest sees tables? */
static bool
guest_sees_tables (const char *name)
{
  size_t len;
  uint8_t *p = read_file (name, &len);
  const unsigned bits = get_be32 (p + HDR_CLUSTER_BITS);
  const uint64_t l1 = get_be64 (p + HDR_L1_TABLE_OFFSET);
  uint64_t i, j, l2, off;
  bool r = false;

  for (i = 0; i < get_be32 (p + HDR_L1_SIZE) && !r; ++i) {
    l2 = field (p, len, l1 + i * 8) & L1E_OFFSET_MASK;
    for (j = 0; l2 && j < UINT64_C (1) << bits && !r; j += 8) {
      off = field (p, len, l2 + j) & L2E_OFFSET_MASK;
      r = off != 0 && is_table (p, len, off >> bits << bits);
    }
  }
  free (p);
  return r;
}

/* ------------------------------------------------------------------
 * What qemu-img says.
 */

static uint64_t
json_number (const char *json, const char *key)
{
  const char *p = strstr (json, key);

  return p ? strtoull (p + strlen (key) + 2, NULL, 10) : 0;
}

/* False: it could not even check. */
static bool
qemu_check (const char *name, struct check_result *res)
{
  char *json;
  size_t len;

  memset (res, 0, sizeof *res);
  shell ("qemu-img check -f qcow2 --output=json %s", name);
  json = (char *) read_file ("out", &len);
  if (len == 0) {
    free (json);
    return false;
  }
  res->corruptions = json_number (json, "\"corruptions\"");
  res->leaks = json_number (json, "\"leaks\"");
  res->check_errors = json_number (json, "\"check-errors\"");
  res->total_clusters = json_number (json, "\"total-clusters\"");
  res->allocated_clusters = json_number (json, "\"allocated-clusters\"");
  res->fragmented_clusters = json_number (json, "\"fragmented-clusters\"");
  res->compressed_clusters = json_number (json, "\"compressed-clusters\"");
  res->image_end_off = json_number (json, "\"image-end-offset\"");
  free (json);
  return true;
}

static void
show (const char *who, const struct check_result *r)
{
  fprintf (stderr, "%s: corruptions %" PRIu64 " leaks %" PRIu64 " errors %"
           PRIu64 " total %" PRIu64 " allocated %" PRIu64 " fragmented %"
           PRIu64 " compressed %" PRIu64 " end %" PRIu64 "\n", who,
           r->corruptions, r->leaks, r->check_errors, r->total_clusters,
           r->allocated_clusters, r->fragmented_clusters,
           r->compressed_clusters, r->image_end_off);
}

static void
must_agree (const char *name, const struct check_result *ours,
            bool checked, const struct check_result *theirs)
{
  if (checked ?
      ours->corruptions == theirs->corruptions &&
      ours->leaks == theirs->leaks &&
      ours->check_errors == theirs->check_errors &&
      ours->total_clusters == theirs->total_clusters &&
      ours->allocated_clusters == theirs->allocated_clusters &&
      ours->fragmented_clusters == theirs->fragmented_clusters &&
      ours->compressed_clusters == theirs->compressed_clusters &&
      ours->image_end_off == theirs->image_end_off :
      ours->corruptions > 0 || ours->check_errors > 0)
    return;
  show ("ours", ours);
  show ("qemu-img check", theirs);
  fprintf (stderr, "they do not agree on %s/%s\n", dir, name);
  abort ();
}

/* ------------------------------------------------------------------
 * Ours.
 */

static struct backend *
open_file (const char *name, unsigned flags)
{
  struct backend *b;
  char path[256];

  snprintf (path, sizeof path, "%s/%s", dir, name);
  CHECK_OK (backend_file_open (path, flags, &b));
  return b;
}

static void
count_problem (void *opaque, const char *text)
{
  CHECK (*text != 0 && strchr (text, '\n') == NULL);
  ++*(unsigned *) opaque;
}

static void
see_progress (void *opaque, uint64_t done, uint64_t total)
{
  (void) opaque;
  CHECK (done > 0 && done <= total);
}

/* False: refused at open. */
static bool
our_check (struct backend *b, struct check_result *res)
{
  const struct core_options opts = { .metadata_cache = 1 << 20 };
  unsigned problems = 0;
  const struct check_options options = {
    .progress = see_progress, .problem = count_problem, .opaque = &problems,
  };
  struct core *core;
  char text[512];
  int r;

  if (core_open_admin (b, &opts, &core) < 0)
    return false;
  r = check_run (core, &options, res);
  CHECK (r == 0 || res->check_errors > 0);
  CHECK ((problems > 0) ==
         (res->corruptions || res->leaks || res->check_errors));
  check_describe (res, text, sizeof text);
  CHECK (strchr (text, '\n') != NULL);
  core_close (core);
  return true;
}

static bool
is_clean (const struct check_result *res)
{
  return !res->corruptions && !res->leaks && !res->check_errors;
}

static void
check_and_repair (const char *name, enum repair_mode mode)
{
  struct check_result ours, theirs;
  struct backend *b;
  bool opened, checked;

  b = open_file (name, 0);
  opened = our_check (b, &ours);
  backend_close (b);
  if (!opened)
    return;
  checked = qemu_check (name, &theirs);
  must_agree (name, &ours, checked, &theirs);

  CHECK_OK (shell ("cp %s repaired", name));
  b = open_file ("repaired", BACKEND_FILE_WRITABLE);
  CHECK_OK (repair_run (b, mode, NULL, &ours));
  backend_close (b);
  checked = qemu_check ("repaired", &theirs);
  /* Two kinds of entries are put right here, but not by qemu-img. */
  must_agree ("repaired", &ours, checked, &theirs);
  if (mode == REPAIR_ALL && !ours.corruptions)
    CHECK (is_clean (&ours));
  /* 0: the same; 1: not; others: cannot be read. */
  CHECK (shell ("qemu-img compare -f qcow2 -F qcow2 %s repaired",
                name) != 1 || ours.corruptions > 0 ||
         guest_sees_tables (name));
}

static void
test_against_qemu (unsigned count)
{
  struct kind *k;
  uint8_t *bytes;
  uint64_t n;
  size_t len;
  unsigned i;

  for (i = 0; i < NR_KINDS; ++i)
    check_and_repair (kinds[i].name, REPAIR_ALL);
  for (i = 0; i < count; ++i) {
    k = &kinds[below (NR_KINDS)];
    len = k->len;
    bytes = malloc (len);
    CHECK (bytes != NULL);
    memcpy (bytes, k->bytes, len);
    for (n = below (3) ? 1 : 1 + below (3); n > 0; --n)
      break_image (bytes, &len);
    write_file ("broken", bytes, len);
    free (bytes);
    check_and_repair ("broken", below (4) ? REPAIR_ALL : REPAIR_LEAKS);
  }
}

/* ------------------------------------------------------------------
 * Power failures.
 */

/* A file in memory that remembers what was written since the last flush. */
struct journal {
  struct backend b;
  struct backend *mem;
  struct entry {
    uint8_t *bytes;             /* NULL: a new length */
    uint64_t off, len;
  } *entries;
  size_t nr, flushed;           /* entries before FLUSHED are stable */
  size_t stop_after;            /* power fails after so many */
  bool dead;
};

static void
journal_add (struct journal *j, const void *bytes, uint64_t off,
             uint64_t len)
{
  struct entry *e;

  j->entries = realloc (j->entries, (j->nr + 1) * sizeof *j->entries);
  CHECK (j->entries != NULL);
  e = &j->entries[j->nr++];
  e->off = off;
  e->len = len;
  e->bytes = NULL;
  if (bytes) {
    e->bytes = malloc (len);
    CHECK (e->bytes != NULL);
    memcpy (e->bytes, bytes, len);
  }
  j->dead = j->nr >= j->stop_after;
}

static int
journal_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  return backend_pread (((struct journal *) b)->mem, buf, len, off);
}

static int
journal_pwritev (struct backend *b, struct iovec *iov, int iovcnt,
                 uint64_t off, unsigned flags)
{
  struct journal *j = (struct journal *) b;
  uint64_t o = off;
  int i;

  if (j->dead)
    return -EIO;
  for (i = 0; i < iovcnt; ++i) {
    journal_add (j, iov[i].iov_base, o, iov[i].iov_len);
    o += iov[i].iov_len;
  }
  return backend_pwritev (j->mem, iov, iovcnt, off, flags);
}

static int
journal_flush (struct backend *b)
{
  struct journal *j = (struct journal *) b;

  if (j->dead)
    return -EIO;
  j->flushed = j->nr;
  return 0;
}

static int
journal_unsupported (struct backend *b, uint64_t off, uint64_t len)
{
  (void) b;
  (void) off;
  (void) len;
  return -ENOTSUP;
}

static int
journal_truncate (struct backend *b, uint64_t len, bool allocate)
{
  struct journal *j = (struct journal *) b;

  if (j->dead)
    return -EIO;
  journal_add (j, NULL, 0, len);
  return backend_truncate (j->mem, len, allocate);
}

static int64_t
journal_size (struct backend *b)
{
  return backend_size (((struct journal *) b)->mem);
}

static const struct backend_ops journal_ops = {
  .pread = journal_pread,
  .pwritev = journal_pwritev,
  .flush = journal_flush,
  .zero = journal_unsupported,
  .punch = journal_unsupported,
  .truncate = journal_truncate,
  .size = journal_size,
};

static void
load (struct test_mem *m, const uint8_t *bytes, size_t len)
{
  test_mem_init (m, len);
  memcpy (m->bytes, bytes, len);
}

/* What may be on the disk: all that is stable, and some of the rest. */
static void
replay (struct test_mem *m, const struct journal *j)
{
  size_t i;

  for (i = 0; i < j->nr; ++i) {
    const struct entry *e = &j->entries[i];

    if (i >= j->flushed && below (2))
      continue;
    if (e->bytes)
      CHECK_OK (backend_pwrite (&m->b, e->bytes, e->len, e->off, 0));
    else
      CHECK_OK (backend_truncate (&m->b, e->len, false));
  }
}

/* Returns true if the repair ended before the power failed. */
static bool
fail_and_repair_again (const uint8_t *bytes, size_t len, size_t stop_after,
                       const struct check_result *wanted)
{
  struct journal j = { .b = { .ops = &journal_ops, .writable = true },
                       .stop_after = stop_after };
  struct check_result res;
  struct test_mem mem, disk;
  bool complete;
  size_t i;

  load (&mem, bytes, len);
  j.mem = &mem.b;
  j.b.name = mem.b.name;
  complete = repair_run (&j.b, REPAIR_ALL, NULL, &res) == 0 && !j.dead;
  load (&disk, bytes, len);
  replay (&disk, &j);
  CHECK_OK (repair_run (&disk.b, REPAIR_ALL, NULL, &res));
  CHECK (res.corruptions == wanted->corruptions);
  CHECK (res.leaks == wanted->leaks && res.check_errors == 0);

  if (below (8) == 0) {
    write_file ("before", bytes, len);
    write_file ("after", disk.bytes, disk.len);
    CHECK (shell ("qemu-img compare -f qcow2 -F qcow2 before after") != 1);
    CHECK (wanted->corruptions > 0 ||
           shell ("qemu-img check -f qcow2 after") == 0);
  }
  for (i = 0; i < j.nr; ++i)
    free (j.entries[i].bytes);
  free (j.entries);
  backend_close (&mem.b);
  backend_close (&disk.b);
  return complete;
}

static void
test_power (const char *name)
{
  struct check_result wanted;
  struct test_mem mem;
  uint8_t *bytes;
  size_t len, i;

  bytes = read_file (name, &len);
  load (&mem, bytes, len);
  CHECK_OK (repair_run (&mem.b, REPAIR_ALL, NULL, &wanted));
  backend_close (&mem.b);
  for (i = 1; i < 500; ++i) {
    if (fail_and_repair_again (bytes, len, i, &wanted))
      break;
  }
  CHECK (i > 1 && i < 500);
  free (bytes);
}

static void
test_power_failures (void)
{
  struct kind *k;
  uint8_t *bytes;
  uint64_t table, block, i;
  size_t n;

  for (n = 0; n < NR_KINDS; ++n) {
    k = &kinds[n];
    if (strcmp (k->name, "data") == 0)
      continue;
    bytes = malloc (k->len);
    CHECK (bytes != NULL);
    memcpy (bytes, k->bytes, k->len);
    table = get_be64 (bytes + HDR_REFCOUNT_TABLE_OFFSET);
    block = get_be64 (bytes + table);

    /* Counts that are too high and too low, in place. */
    for (i = 8; i < 40; ++i)
      bytes[block + i] ^= test_random (&seed) & 3;
    write_file ("counts", bytes, k->len);
    test_power ("counts");

    /* No refcounts at all: anew. */
    put_be64 (bytes + table, 0);
    write_file ("gone", bytes, k->len);
    test_power ("gone");
    free (bytes);
  }
}

/* ------------------------------------------------------------------ */

static unsigned
number (const char *name, unsigned otherwise)
{
  const char *s = getenv (name);

  return s ? atoi (s) : (int) otherwise;
}

int
main (void)
{
  size_t i;

  test_count ();
  if (mkdtemp (dir) == NULL)
    return 1;
  if (shell ("qemu-img --version && qemu-io --version") != 0) {
    fprintf (stderr, "test-check: skipped: needs qemu-img and qemu-io\n");
    remove_dir ();
    return 77;
  }
  seed = number ("QCOW2_TEST_SEED", 1) * UINT64_C (0x9e3779b97f4a7c15);
  make_images ();
  test_power_failures ();
  test_against_qemu (number ("QCOW2_TEST_COUNT", 60));
  remove_dir ();
  for (i = 0; i < NR_KINDS; ++i)
    free (kinds[i].bytes);
  return 0;
}
