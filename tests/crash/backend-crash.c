/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend that can lose power, and whose calls can be made to fail: see
 * the header.
 *
 * Invariant: replaying the whole log onto the initial content gives the
 * content of the memory backend below.  (Calls change the memory and are
 * put on the log under one lock.)
 *
 * Locks: one mutex for log, faults and counters.  It is held while the
 * memory backend is changed, and has no rank: no engine lock is taken
 * under it.
 *
 * A flush is the only call that needs time, as far as the log is concerned:
 * it covers what had ended before it began, and becomes effective at its
 * end.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-crash.h"
#include "backend-mem.h"
#include "crash-random.h"

#define SECTOR 512
#define NR_KINDS 6

struct op {
  enum crash_call call;
  uint64_t off, len;            /* truncate: LEN is the new length */
  uint8_t *data;                /* pwrite */
  uint64_t start, end;          /* moments; END 0 = under way */
  uint64_t stable_at;           /* 0 = not (yet) */
  bool doomed;                  /* a flush failed: will not become stable */
};

struct backend_crash {
  struct backend backend;
  struct backend *mem;
  struct crash_clock *clock;
  pthread_mutex_t lock;
  struct op *ops;
  size_t nr_ops, cap_ops;

  /* Content after the first BASE_OPS operations, all of which are stable at
   * moment BASE_TIME; FIRST is the initial content.
   */
  struct backend *first, *base;
  size_t base_ops;
  uint64_t base_time;

  struct crash_fault fault;
  bool has_fault;
  uint64_t counts[NR_KINDS];    /* per kind of call */
  uint64_t matched, failed;     /* calls that FAULT was asked about */
};

static const struct backend_ops crash_ops;

static struct backend_crash *
to_crash (struct backend *b)
{
  if (b->ops != &crash_ops)
    abort ();
  return (struct backend_crash *) b;
}

static void
lock (struct backend_crash *c)
{
  pthread_mutex_lock (&c->lock);
}

static void
unlock (struct backend_crash *c)
{
  pthread_mutex_unlock (&c->lock);
}

static const char *
call_name (enum crash_call call)
{
  switch (call) {
  case CRASH_PREAD: return "pread";
  case CRASH_PWRITE: return "pwrite";
  case CRASH_FLUSH: return "flush";
  case CRASH_ZERO: return "zero";
  case CRASH_PUNCH: return "punch";
  case CRASH_TRUNCATE: return "truncate";
  case CRASH_ALL_CALLS: break;
  }
  return "?";
}

/* Count the call.  0, or the error that it has to fail with.  Logs as the
 * contract of backends says.
 */
static int
check_fault_locked (struct backend_crash *c, enum crash_call call,
                    uint64_t off, uint64_t len)
{
  const struct crash_fault *f = &c->fault;

  c->counts[__builtin_ctz (call)]++;
  if (!c->has_fault || !(f->calls & call))
    return 0;
  c->matched++;
  if (c->matched <= f->nr || (c->matched > f->nr + 1 && !f->forever))
    return 0;
  c->failed++;
  if (f->err == EIO || call == CRASH_PWRITE || call == CRASH_PREAD)
    nbdkit_error ("%s: %s of %" PRIu64 " bytes at offset %" PRIu64 ": %s",
                  c->backend.name, call_name (call), len, off,
                  strerror (f->err));
  return -f->err;
}

/* A new operation that has begun.  NULL: no memory. */
static struct op *
log_locked (struct backend_crash *c, enum crash_call call,
            uint64_t off, uint64_t len)
{
  struct op *op;

  if (c->nr_ops == c->cap_ops) {
    size_t cap = c->cap_ops * 2 + 64;
    struct op *p = realloc (c->ops, cap * sizeof *p);

    if (p == NULL)
      return NULL;
    c->ops = p;
    c->cap_ops = cap;
  }
  op = &c->ops[c->nr_ops++];
  memset (op, 0, sizeof *op);
  op->call = call;
  op->off = off;
  op->len = len;
  op->start = crash_clock_tick (c->clock);
  return op;
}

static int
crash_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  struct backend_crash *c = to_crash (b);
  int r;

  lock (c);
  r = check_fault_locked (c, CRASH_PREAD, off, len);
  unlock (c);
  return r < 0 ? r : backend_pread (c->mem, buf, len, off);
}

static uint64_t
iov_size (const struct iovec *iov, int iovcnt)
{
  uint64_t sum = 0;
  int i;

  for (i = 0; i < iovcnt; ++i)
    sum += iov[i].iov_len;
  return sum;
}

static uint8_t *
iov_join (const struct iovec *iov, int iovcnt, size_t len)
{
  uint8_t *data = malloc (len + 1), *p = data;
  int i;

  for (i = 0; data && i < iovcnt; ++i) {
    memcpy (p, iov[i].iov_base, iov[i].iov_len);
    p += iov[i].iov_len;
  }
  return data;
}

/* How much of a call is done that fails half way: up to a sector border. */
static uint64_t
failed_part (const struct backend_crash *c, uint64_t off, uint64_t len)
{
  uint64_t end = (off + len / 2) / SECTOR * SECTOR;

  return c->fault.partial && end > off ? end - off : 0;
}

/* Write DATA, which now belongs to the log. */
static int
write_locked (struct backend_crash *c, uint8_t *data, uint64_t off,
              uint64_t len, bool fua)
{
  struct op *op = log_locked (c, CRASH_PWRITE, off, len);
  int r;

  if (op == NULL) {
    free (data);
    return -ENOMEM;
  }
  op->data = data;
  r = backend_pwrite (c->mem, data, len, off, 0);
  op->end = crash_clock_tick (c->clock);
  if (r < 0) {                  /* over the limit of the memory: no change */
    nbdkit_error ("%s: write of %" PRIu64 " bytes at offset %" PRIu64 ": %s",
                  c->backend.name, len, off, strerror (-r));
    op->len = 0;
  }
  else if (fua)
    op->stable_at = op->end;
  return r;
}

static int
crash_pwritev (struct backend *b, struct iovec *iov, int iovcnt,
               uint64_t off, unsigned flags)
{
  struct backend_crash *c = to_crash (b);
  uint64_t len = iov_size (iov, iovcnt);
  uint8_t *data = iov_join (iov, iovcnt, len);
  int r, err;

  if (data == NULL)
    return -ENOMEM;
  lock (c);
  err = check_fault_locked (c, CRASH_PWRITE, off, len);
  if (err < 0)
    len = failed_part (c, off, len);
  if (err < 0 && len == 0) {
    free (data);
    r = err;
  }
  else
    r = write_locked (c, data, off, len, err == 0 && (flags & BACKEND_FUA));
  unlock (c);
  return err < 0 ? err : r;
}

/* Operations are found by number, since the array may move meanwhile. */
static int
crash_flush (struct backend *b)
{
  struct backend_crash *c = to_crash (b);
  struct op *op;
  uint64_t start, end;
  size_t i, n;
  int r;

  lock (c);
  r = check_fault_locked (c, CRASH_FLUSH, 0, 0);
  op = log_locked (c, CRASH_FLUSH, 0, 0);
  if (op == NULL) {
    unlock (c);
    return -ENOMEM;
  }
  n = c->nr_ops - 1;
  start = op->start;
  unlock (c);
  sched_yield ();
  lock (c);
  end = c->ops[n].end = crash_clock_tick (c->clock);
  for (i = 0; i < c->nr_ops; ++i) {
    op = &c->ops[i];
    if (op->stable_at || op->doomed)
      continue;
    if (r < 0)
      op->doomed = true;
    else if (op->end && op->end <= start)
      op->stable_at = end;
  }
  if (r == 0)
    c->ops[n].stable_at = end;
  unlock (c);
  return r;
}

static int
crash_zero (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_crash *c = to_crash (b);
  struct op *op;
  int r = 0, err;

  lock (c);
  err = check_fault_locked (c, CRASH_ZERO, off, len);
  if (err < 0)
    len = failed_part (c, off, len);
  if (err == 0 || len > 0) {
    op = log_locked (c, CRASH_ZERO, off, len);
    r = op == NULL ? -ENOMEM : c->mem->ops->zero (c->mem, off, len);
    if (op)
      op->end = crash_clock_tick (c->clock);
    if (op && r < 0)
      op->len = 0;
  }
  unlock (c);
  return err < 0 ? err : r;
}

static int
crash_punch (struct backend *b, uint64_t off, uint64_t len)
{
  struct backend_crash *c = to_crash (b);
  struct op *op;
  int r;

  lock (c);
  r = check_fault_locked (c, CRASH_PUNCH, off, len);
  if (r == 0) {
    op = log_locked (c, CRASH_PUNCH, off, len);
    r = op == NULL ? -ENOMEM : backend_punch (c->mem, off, len);
    if (op)
      op->end = crash_clock_tick (c->clock);
  }
  unlock (c);
  return r;
}

static int
crash_truncate (struct backend *b, uint64_t len, bool allocate)
{
  struct backend_crash *c = to_crash (b);
  struct op *op;
  int r;

  lock (c);
  r = check_fault_locked (c, CRASH_TRUNCATE, len, 0);
  if (r == 0)
    r = backend_truncate (c->mem, len, allocate);
  if (r == 0) {
    op = log_locked (c, CRASH_TRUNCATE, 0, len);
    if (op)
      op->end = crash_clock_tick (c->clock);
    else
      r = -ENOMEM;
  }
  unlock (c);
  return r;
}

static int64_t
crash_size (struct backend *b)
{
  return backend_size (to_crash (b)->mem);
}

static int
crash_extent (struct backend *b, uint64_t off, uint64_t len,
              enum backend_extent_type *type, uint64_t *extent_len)
{
  struct backend *mem = to_crash (b)->mem;

  return mem->ops->extent (mem, off, len, type, extent_len);
}

static void
crash_close (struct backend *b)
{
  struct backend_crash *c = to_crash (b);
  size_t i;

  for (i = 0; i < c->nr_ops; ++i)
    free (c->ops[i].data);
  free (c->ops);
  backend_close (c->mem);
  backend_close (c->first);
  backend_close (c->base);
  pthread_mutex_destroy (&c->lock);
  free (b->name);
  free (c);
}

static const struct backend_ops crash_ops = {
  .pread = crash_pread,
  .pwritev = crash_pwritev,
  .flush = crash_flush,
  .zero = crash_zero,
  .punch = crash_punch,
  .truncate = crash_truncate,
  .size = crash_size,
  .extent = crash_extent,
  .close = crash_close,
};

int
backend_crash_create (struct backend *mem, struct crash_clock *clock,
                      struct backend **b)
{
  struct backend_crash *c = calloc (1, sizeof *c);

  if (c == NULL)
    return -ENOMEM;
  c->backend.ops = &crash_ops;
  c->backend.writable = true;
  c->backend.min_io = mem->min_io;
  c->clock = clock;
  pthread_mutex_init (&c->lock, NULL);
  c->backend.name = strdup (mem->name);
  if (c->backend.name == NULL ||
      backend_mem_clone (mem, &c->first) < 0 ||
      backend_mem_clone (mem, &c->base) < 0) {
    crash_close (&c->backend);
    return -ENOMEM;
  }
  c->mem = mem;
  *b = &c->backend;
  return 0;
}

/* ---------------------------------------------------------------------- */

static bool
changes_file (const struct op *op)
{
  return op->call != CRASH_FLUSH;
}

int
backend_crash_times (struct backend *b, uint64_t **times, size_t *nr)
{
  struct backend_crash *c = to_crash (b);
  uint64_t *p;
  size_t i, n = 0;

  lock (c);
  p = malloc ((2 * c->nr_ops + 1) * sizeof *p);
  if (p)
    p[n++] = 0;
  for (i = 0; p && i < c->nr_ops; ++i) {
    const struct op *op = &c->ops[i];

    if (changes_file (op))
      p[n++] = op->start;
    if (op->end && op->stable_at == op->end)
      p[n++] = op->end;
  }
  unlock (c);
  *times = p;
  *nr = n;
  return p ? 0 : -ENOMEM;
}

static bool
is_stable (const struct op *op, uint64_t t)
{
  return op->stable_at && op->stable_at <= t;
}

static bool
is_open (const struct op *op, uint64_t t)
{
  return changes_file (op) && op->start <= t && !is_stable (op, t);
}

size_t
backend_crash_unsynced (struct backend *b, uint64_t t)
{
  struct backend_crash *c = to_crash (b);
  size_t i, n = 0;

  lock (c);
  for (i = 0; i < c->nr_ops; ++i)
    n += is_open (&c->ops[i], t);
  unlock (c);
  return n;
}

/* [OFF, OFF + LEN) of the operation, which lies inside it. */
static int
apply_part (struct backend *mem, const struct op *op,
            uint64_t off, uint64_t len)
{
  switch (op->call) {
  case CRASH_PWRITE:
    return backend_pwrite (mem, op->data + (off - op->off), len, off, 0);
  case CRASH_ZERO:
    return mem->ops->zero (mem, off, len);
  case CRASH_PUNCH:
    return backend_punch (mem, off, len);
  case CRASH_TRUNCATE:
    return backend_truncate (mem, op->len, false);
  case CRASH_PREAD:
  case CRASH_FLUSH:
  case CRASH_ALL_CALLS:
    break;
  }
  return 0;
}

static int
apply_whole (struct backend *mem, const struct op *op)
{
  return op->len == 0 && op->call != CRASH_TRUNCATE ? 0 :
    apply_part (mem, op, op->off, op->len);
}

/* Only the growth that came with the operation: it happened, and its data
 * was lost.
 */
static int
apply_growth (struct backend *mem, const struct op *op)
{
  int64_t size = backend_size (mem);

  if ((op->call != CRASH_PWRITE && op->call != CRASH_ZERO) || op->len == 0 ||
      op->off + op->len <= (uint64_t) size)
    return 0;
  return backend_truncate (mem, op->off + op->len, false);
}

static int
apply_torn (struct backend *mem, const struct op *op, uint64_t *seed)
{
  uint64_t way = crash_random_next (seed) % 8, sectors, limit, i;
  uint64_t first = op->off / SECTOR, end = op->off + op->len;
  int r = 0;

  if (way < 2)
    return 0;
  if (way < 4 || op->call == CRASH_TRUNCATE)
    return apply_whole (mem, op);
  if (way == 4)
    return apply_growth (mem, op);
  sectors = (end + SECTOR - 1) / SECTOR - first;
  limit = crash_random_next (seed) % (sectors + 1);
  for (i = 0; r == 0 && i < sectors; ++i) {
    uint64_t lo = (first + i) * SECTOR, hi = lo + SECTOR;
    bool keep = way == 5 ? i < limit : way == 6 ? i >= limit
                : crash_random_next (seed) & 1;

    if (lo < op->off)
      lo = op->off;
    if (hi > end)
      hi = end;
    if (keep && hi > lo)
      r = apply_part (mem, op, lo, hi - lo);
  }
  return r;
}

/* Number N of the operations whose fate is open. */
static int
apply_choice (struct backend *mem, const struct op *op, size_t n,
              const struct crash_choice *choice, uint64_t *seed)
{
  bool keep = false;

  switch (choice->keep) {
  case CRASH_KEEP_NONE: break;
  case CRASH_KEEP_ALL: keep = true; break;
  case CRASH_KEEP_ONLY: keep = n == choice->arg; break;
  case CRASH_LOSE_ONLY: keep = n != choice->arg; break;
  case CRASH_KEEP_RANDOM: keep = crash_random_next (seed) & 1; break;
  case CRASH_KEEP_TORN: return apply_torn (mem, op, seed);
  }
  return keep ? apply_whole (mem, op) : 0;
}

/* Bring the base up to T, as far as everything is stable. */
static int
advance_base_locked (struct backend_crash *c, uint64_t t)
{
  int r = 0;

  if (t < c->base_time) {
    struct backend *base;

    r = backend_mem_clone (c->first, &base);
    if (r < 0)
      return r;
    backend_close (c->base);
    c->base = base;
    c->base_ops = 0;
  }
  c->base_time = t;
  while (r == 0 && c->base_ops < c->nr_ops &&
         (!changes_file (&c->ops[c->base_ops]) ||
          is_stable (&c->ops[c->base_ops], t)))
    r = apply_whole (c->base, &c->ops[c->base_ops++]);
  return r;
}

int
backend_crash_image (struct backend *b, uint64_t t,
                     const struct crash_choice *choice,
                     struct backend **image)
{
  struct backend_crash *c = to_crash (b);
  uint64_t seed = choice->arg;
  size_t i, n = 0;
  int r;

  lock (c);
  r = advance_base_locked (c, t);
  if (r == 0)
    r = backend_mem_clone (c->base, image);
  if (r < 0) {
    unlock (c);
    return r;
  }
  for (i = c->base_ops; r == 0 && i < c->nr_ops; ++i) {
    const struct op *op = &c->ops[i];

    if (is_stable (op, t))
      r = apply_whole (*image, op);
    else if (is_open (op, t))
      r = apply_choice (*image, op, n++, choice, &seed);
  }
  unlock (c);
  if (r < 0)
    backend_close (*image);
  return r;
}

void
backend_crash_dump (struct backend *b, uint64_t t)
{
  struct backend_crash *c = to_crash (b);
  size_t i, n = 0;

  lock (c);
  for (i = 0; i < c->nr_ops && c->ops[i].start <= t; ++i) {
    const struct op *op = &c->ops[i];

    fprintf (stderr, "%s: %6" PRIu64 " %-8s 0x%" PRIx64 " + 0x%" PRIx64,
             c->backend.name, op->start, call_name (op->call),
             op->off, op->len);
    if (is_open (op, t))
      fprintf (stderr, "  open %zu", n++);
    fprintf (stderr, "\n");
  }
  unlock (c);
}

/* ---------------------------------------------------------------------- */

void
backend_crash_set_fault (struct backend *b, const struct crash_fault *fault)
{
  struct backend_crash *c = to_crash (b);

  lock (c);
  c->has_fault = fault != NULL;
  if (fault)
    c->fault = *fault;
  memset (c->counts, 0, sizeof c->counts);
  c->matched = c->failed = 0;
  unlock (c);
}

uint64_t
backend_crash_calls (struct backend *b, unsigned calls)
{
  struct backend_crash *c = to_crash (b);
  uint64_t n = 0;
  unsigned i;

  lock (c);
  for (i = 0; i < NR_KINDS; ++i)
    if (calls & (1U << i))
      n += c->counts[i];
  unlock (c);
  return n;
}

uint64_t
backend_crash_failed (struct backend *b)
{
  struct backend_crash *c = to_crash (b);
  uint64_t n;

  lock (c);
  n = c->failed;
  unlock (c);
  return n;
}
