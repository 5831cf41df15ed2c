/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs a workload on the engine: see the header.
 *
 * With one thread, the log, and with it what is tested, is the same each
 * time.
 */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-crash.h"
#include "backend-mem.h"
#include "ccache.h"
#include "core.h"
#include "crash-model.h"
#include "crash-random.h"
#include "crash-run.h"

#define METADATA_CACHE (64 * 1024)
#define CLUSTER_CACHE (256 * 1024)

static unsigned nr_errors;      /* messages */

/* Faults make many. */
__attribute__ ((__format__ (printf, 1, 2))) void
nbdkit_error (const char *fmt, ...)
{
  va_list args;

  nr_errors++;
  if (getenv ("QCOW2_TEST_DEBUG") == NULL)
    return;
  va_start (args, fmt);
  vfprintf (stderr, fmt, args);
  va_end (args);
  fprintf (stderr, "\n");
}

/* ----------------------------------------------------------------------
 * An image, open.
 */

struct core *
crash_run_open (struct crash_run *run, struct backend *file,
                struct backend *data, bool writable)
{
  const struct crash_setup *s = run->setup;
  struct core_options opts = {
    .writable = writable, .discard = s->discard,
    .detect_zeroes = s->detect_zeroes, .metadata_cache = METADATA_CACHE,
    .ccache = run->ccache,
  };
  struct core *core;

  if (core_open (file, &opts, &core) < 0)
    return NULL;
  if (s->raw_backing)
    core->io.backing = &run->backing;
  if (data)
    core_set_data_file (core, data);
  core->io.crypt = s->crypt;
  return core;
}

int
crash_run_read (struct io *io, uint8_t *buf)
{
  const uint64_t step = 256 * 1024;
  uint64_t off, n;
  int r = 0;

  for (off = 0; r == 0 && off < io->size; off += n) {
    n = io->size - off < step ? io->size - off : step;
    r = io_pread (io, buf + off, n, off);
  }
  return r;
}

uint8_t *
crash_run_read_snapshot (struct core *core, size_t i)
{
  struct map map;
  struct io io;
  uint8_t *buf;

  if (core_open_snapshot (core, &core->snapshots.entries[i], &map, &io) < 0)
    return NULL;
  buf = malloc (io.size + 1);
  if (buf && crash_run_read (&io, buf) < 0) {
    free (buf);
    buf = NULL;
  }
  map_close (&map);
  return buf;
}

/* A copy of INITIAL that can lose power. */
static struct backend *
crashable (struct crash_run *run, struct backend *initial)
{
  struct backend *mem, *b;

  assert (backend_mem_clone (initial, &mem) == 0);
  assert (backend_crash_create (mem, run->clock, &b) == 0);
  return b;
}

void
crash_run_start (struct crash_run *run, const struct crash_setup *setup,
                 uint64_t seed)
{
  size_t i;

  memset (run, 0, sizeof *run);
  run->setup = setup;
  run->seed = run->first_seed = seed;
  run->clock = calloc (1, sizeof *run->clock);
  assert (run->clock != NULL);
  assert (ccache_create (CLUSTER_CACHE, &run->ccache) == 0);
  if (setup->raw_backing) {
    run->backing.raw = setup->raw_backing;
    run->backing.size = backend_size (setup->raw_backing);
  }
  run->disk = crashable (run, setup->initial);
  if (setup->initial_data)
    run->data = crashable (run, setup->initial_data);
  run->core = crash_run_open (run, run->disk, run->data, true);
  assert (run->core != NULL);
  run->size = run->core->io.size;
  run->cluster_size = run->core->geo.cluster_size;
  run->buf = malloc (run->size + 1);
  assert (run->buf && crash_run_read (&run->core->io, run->buf) == 0);
  run->initial = malloc (run->size + 1);
  assert (run->initial != NULL);
  memcpy (run->initial, run->buf, run->size);
  run->model = crash_model_create (run->buf, run->size);
  run->snapshots = calloc (run->core->snapshots.nr + 1, sizeof (uint8_t *));
  assert (run->snapshots != NULL);
  for (i = 0; i < run->core->snapshots.nr; ++i) {
    run->snapshots[i] = crash_run_read_snapshot (run->core, i);
    assert (run->snapshots[i] != NULL);
  }
}

void
crash_run_end (struct crash_run *run)
{
  size_t i;

  core_close (run->core);
  backend_close (run->disk);
  backend_close (run->data);
  ccache_free (run->ccache);
  crash_model_free (run->model);
  for (i = 0; run->snapshots[i]; ++i)
    free (run->snapshots[i]);
  free (run->snapshots);
  free (run->initial);
  free (run->buf);
  free (run->clock);
}

struct crash_run *
crash_run_join (struct crash_run *run, uint64_t seed)
{
  struct crash_run *other = malloc (sizeof *other);

  assert (other != NULL);
  *other = *run;
  other->seed = seed;
  other->buf = malloc (run->size + 1);
  assert (other->buf != NULL);
  return other;
}

void
crash_run_leave (struct crash_run *other)
{
  free (other->buf);
  free (other);
}

/* ----------------------------------------------------------------------
 * What workloads do.
 */

uint64_t
crash_run_random (struct crash_run *run, uint64_t limit)
{
  return crash_random_next (&run->seed) % limit;
}

uint64_t
crash_run_size (const struct crash_run *run)
{
  return run->size;
}

uint64_t
crash_run_cluster_size (const struct crash_run *run)
{
  return run->cluster_size;
}

void
crash_run_range (struct crash_run *run, uint64_t unit, uint64_t max_len,
                 uint64_t *off, uint64_t *len)
{
  uint64_t units = (max_len + unit - 1) / unit;

  *off = crash_run_random (run, (run->size + unit - 1) / unit) * unit;
  *len = (crash_run_random (run, units) + 1) * unit;
  if (*len > run->size - *off)
    *len = run->size - *off;
}

/* The outcome of a change that began at moment START. */
static int
note_change (struct crash_run *run, uint64_t off, uint64_t len,
             const uint8_t *data, uint64_t start_time, bool fua, int r)
{
  const struct crash_change change = {
    .off = off, .len = len, .data = data, .start = start_time,
    .end = crash_clock_tick (run->clock), .ok = r == 0, .fua = fua,
  };

  assert (r == 0 || run->tolerant);
  crash_model_change (run->model, &change);
  return r;
}

int
crash_run_write (struct crash_run *run, uint64_t off, uint64_t len,
                 unsigned io_flags)
{
  uint64_t t = crash_clock_tick (run->clock);
  int r;

  crash_random_bytes (&run->seed, run->buf, len);
  r = io_pwrite (&run->core->io, run->buf, len, off, io_flags, NULL);
  return note_change (run, off, len, run->buf, t, io_flags & IO_FUA, r);
}

int
crash_run_compressed (struct crash_run *run, uint64_t off, uint64_t len)
{
  const struct io_hints hints = {
    .compress = true, .codec = { .type = run->setup->codec },
  };
  uint64_t t = crash_clock_tick (run->clock), i, part;
  int r;

  /* A random part of each cluster is random, the rest is all the same. */
  for (i = 0; i < len; i += run->cluster_size) {
    part = len - i < run->cluster_size ? len - i : run->cluster_size;
    memset (run->buf + i, (int) crash_run_random (run, 255) + 1, part);
    crash_random_bytes (&run->seed, run->buf + i, crash_run_random (run, part));
  }
  r = io_pwrite (&run->core->io, run->buf, len, off, 0, &hints);
  return note_change (run, off, len, run->buf, t, false, r);
}

int
crash_run_zero (struct crash_run *run, uint64_t off, uint64_t len,
                unsigned io_flags)
{
  uint64_t t = crash_clock_tick (run->clock);
  int r = io_zero (&run->core->io, len, off, io_flags, NULL);

  return note_change (run, off, len, NULL, t, io_flags & IO_FUA, r);
}

/* A sector that was trimmed is as it was or zero; which, one finds out by
 * reading, and then it stays so.
 */
int
crash_run_trim (struct crash_run *run, uint64_t off, uint64_t len)
{
  uint64_t t = crash_clock_tick (run->clock), i;
  uint8_t *old = malloc (len);
  int r;

  assert (old != NULL);
  r = io_pread (&run->core->io, old, len, off);
  assert (r == 0 || run->tolerant);
  r = io_trim (&run->core->io, len, off, 0);
  assert (r == 0 || run->tolerant);
  if (r == 0) {
    r = io_pread (&run->core->io, run->buf, len, off);
    for (i = 0; r == 0 && !run->tolerant && i < len; ++i)
      assert (run->buf[i] == old[i] || run->buf[i] == 0);
  }
  /* What a trim that failed, or cannot be read, did: maybe zero. */
  note_change (run, off, len, r == 0 ? run->buf : NULL, t, false, r);
  free (old);
  return r;
}

int
crash_run_flush (struct crash_run *run)
{
  uint64_t t = crash_clock_tick (run->clock);
  int r = io_flush (&run->core->io);

  assert (r == 0 || run->tolerant);
  crash_model_flush (run->model, t, crash_clock_tick (run->clock), r == 0);
  return r;
}

int
crash_run_finish (struct crash_run *run)
{
  uint64_t t = crash_clock_tick (run->clock);
  int r = core_finish (run->core);

  assert (r == 0 || run->tolerant);
  crash_model_flush (run->model, t, crash_clock_tick (run->clock), r == 0);
  return r;
}


/* ----------------------------------------------------------------------
 * What is left.
 */

size_t
crash_run_unsynced (struct crash_run *run, uint64_t t)
{
  return backend_crash_unsynced (run->disk, t) +
    (run->data ? backend_crash_unsynced (run->data, t) : 0);
}

void
crash_run_image (struct crash_run *run, uint64_t t,
                 const struct crash_choice *choice, struct crash_image *image)
{
  struct crash_choice of_file = *choice, of_data = *choice;
  size_t n = backend_crash_unsynced (run->disk, t);

  if (choice->keep == CRASH_KEEP_ONLY || choice->keep == CRASH_LOSE_ONLY) {
    if (choice->arg >= n)       /* a call to the data file */
      of_file.keep = choice->keep == CRASH_KEEP_ONLY ? CRASH_KEEP_NONE
                     : CRASH_KEEP_ALL;
    else
      of_data.keep = choice->keep == CRASH_KEEP_ONLY ? CRASH_KEEP_NONE
                     : CRASH_KEEP_ALL;
    of_data.arg -= n;
  }
  else
    of_data.arg = ~choice->arg; /* another seed */
  image->data = NULL;
  assert (backend_crash_image (run->disk, t, &of_file, &image->file) == 0);
  backend_mem_limit (image->file, UINT64_MAX);  /* there is space again */
  if (run->data)
    assert (backend_crash_image (run->data, t, &of_data, &image->data) == 0);
}

void
crash_run_image_free (struct crash_image *image)
{
  backend_close (image->file);
  backend_close (image->data);
}

void
crash_run_image_save (const struct crash_image *image)
{
  assert (backend_mem_save (image->file, "crash-failed.qcow2") == 0);
  if (image->data)
    assert (backend_mem_save (image->data, "crash-failed.data") == 0);
}

/* ----------------------------------------------------------------------
 * Images to start with.
 */

struct backend *
crash_run_create (const struct create_options *o)
{
  struct backend *mem;

  assert (backend_mem_create ("image", &mem) == 0);
  assert (create_image (mem, NULL, o) == 0);
  return mem;
}

struct backend *
crash_run_create_pair (const struct create_options *o, struct backend **data)
{
  struct backend *mem;

  assert (backend_mem_create ("image", &mem) == 0);
  assert (backend_mem_create ("data", data) == 0);
  assert (create_image (mem, *data, o) == 0);
  return mem;
}

struct backend *
crash_run_load (const char *path)
{
  struct backend *mem;

  assert (backend_mem_load (path, &mem) == 0);
  return mem;
}

struct backend *
crash_run_raw (uint64_t size, uint64_t seed)
{
  struct backend *mem;
  uint8_t *p = malloc (size);

  assert (p != NULL);
  crash_random_bytes (&seed, p, size);
  assert (backend_mem_create ("raw", &mem) == 0);
  assert (backend_pwrite (mem, p, size, 0, 0) == 0);
  free (p);
  return mem;
}

/* 0 = the default. */
static const struct kind_options {
  const char *name;
  uint32_t cluster_size;
  unsigned version, refcount_bits;
  bool lazy_refcounts, extended_l2;
} kind_options[] = {
  { "512", .cluster_size = 512 },
  { "512-refcount1", .cluster_size = 512, .refcount_bits = 1 },
  { "512-refcount64", .cluster_size = 512, .refcount_bits = 64 },
  { "4k", .cluster_size = 4096 },
  { "4k-v2", .cluster_size = 4096, .version = 2 },
  { "16k", .cluster_size = 16384 },
  { "64k", .cluster_size = 65536 },
  { "64k-lazy", .cluster_size = 65536, .lazy_refcounts = true },
  { "64k-subclusters", .cluster_size = 65536, .extended_l2 = true },
};

static void
options_of_kind (const struct crash_kind *kind, struct create_options *o)
{
  const struct kind_options *k = kind_options;

  while (strcmp (k->name, kind->name) != 0)
    assert (++k < kind_options + sizeof kind_options / sizeof *kind_options);
  create_defaults (o);
  o->size = kind->size;
  o->cluster_size = k->cluster_size;
  if (k->version)
    o->version = k->version;
  if (k->refcount_bits)
    o->refcount_bits = k->refcount_bits;
  o->lazy_refcounts = k->lazy_refcounts;
  o->extended_l2 = k->extended_l2;
  if (kind->backing_size)
    o->backing_file = o->backing_format = "raw";
}

void
crash_run_kinds (const struct crash_setup *setup,
                 void (*run) (const struct crash_setup *setup),
                 const struct crash_kind *kinds, size_t nr)
{
  struct crash_setup s = *setup;
  struct create_options o;
  char name[64];
  size_t i;

  for (i = 0; i < nr; ++i) {
    options_of_kind (&kinds[i], &o);
    snprintf (name, sizeof name, "%s-%s%s", setup->name, kinds[i].name,
              kinds[i].backing_size ? "-backing" : "");
    s.name = name;
    s.initial = crash_run_create (&o);
    s.raw_backing = kinds[i].backing_size ?
      crash_run_raw (kinds[i].backing_size, 7) : NULL;
    run (&s);
    backend_close (s.initial);
    backend_close (s.raw_backing);
  }
}

void
crash_run_command (const char *fmt, ...)
{
  char cmd[1024];
  va_list args;
  int r;

  va_start (args, fmt);
  r = vsnprintf (cmd, sizeof cmd, fmt, args);
  va_end (args);
  assert (r >= 0 && (size_t) r < sizeof cmd);
  r = system (cmd);
  if (r != 0) {
    fprintf (stderr, "failed: %s: %d\n", cmd, r);
    abort ();
  }
}

uint64_t
crash_run_env (const char *name, uint64_t def)
{
  const char *s = getenv (name);

  return s && *s ? strtoull (s, NULL, 0) : def;
}
