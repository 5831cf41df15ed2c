/* SPDX-License-Identifier: BSD-3-Clause */
/* The cache of decompressed clusters: right bytes, each cluster filled as
 * few times as promised, memory bounded, failures and drops, threads.
 */

#include <config.h>

#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ccache.h"

#define KiB ((size_t) 1024)
#define MiB (1024 * KiB)

/* A layer of clusters whose content follows from owner, cluster and
 * version; cluster I is at host offset I * 1000 + 17.
 */
struct layer {
  uint64_t owner;
  size_t cluster_size;
  atomic_uint version[4096];
  atomic_uint fills;            /* calls of fill */
  atomic_ulong bytes;           /* sum of their WANT */
  atomic_int error;             /* if nonzero, fill fails with it */
  unsigned delay_us;
};

struct fill {
  struct layer *layer;
  uint64_t idx;
};

static uint8_t
expected (uint64_t owner, uint64_t idx, unsigned version, size_t at)
{
  return owner * 31 + idx * 7 + version * 101 + at + (at >> 8) * 3;
}

static int64_t
fill_cluster (void *opaque, void *out, size_t out_len, size_t want)
{
  struct fill *f = opaque;
  const unsigned version = f->layer->version[f->idx];
  uint8_t *p = out;
  size_t i;

  assert (out_len == f->layer->cluster_size);
  assert (want > 0 && want <= out_len);
  f->layer->fills++;
  f->layer->bytes += want;
  if (f->layer->delay_us)
    usleep (f->layer->delay_us);
  for (i = 0; i < want; ++i)
    p[i] = expected (f->layer->owner, f->idx, version, i);
  memset (p + want, 0xee, out_len - want); /* scratch of the decoder */
  return f->layer->error ? f->layer->error : (int64_t) want;
}

static uint64_t
host_off (uint64_t idx)
{
  return idx * 1000 + 17;
}

static int
read_at (struct ccache *cc, struct layer *l, uint64_t idx, size_t offset,
         size_t count, uint8_t *buf)
{
  struct fill f = { l, idx };
  const struct ccache_request req = {
    .key = { l->owner, host_off (idx) },
    .cluster_idx = idx,
    .cluster_size = l->cluster_size,
    .offset = offset,
    .count = count,
    .buf = buf,
  };

  return ccache_read (cc, &req, fill_cluster, &f);
}

static void
check (struct ccache *cc, struct layer *l, uint64_t idx, size_t offset,
       size_t count)
{
  const unsigned version = l->version[idx];
  uint8_t *buf = malloc (count + 1);
  size_t i;

  assert (buf);
  buf[count] = 0x77;
  assert (read_at (cc, l, idx, offset, count, buf) == 0);
  for (i = 0; i < count; ++i)
    assert (buf[i] == expected (l->owner, idx, version, offset + i));
  assert (buf[count] == 0x77);
  free (buf);
}

static void
layer_reset (struct layer *l, uint64_t owner, size_t cluster_size)
{
  size_t i;

  l->owner = owner;
  l->cluster_size = cluster_size;
  for (i = 0; i < 4096; ++i)
    l->version[i] = 0;
  l->fills = 0;
  l->bytes = 0;
  l->error = 0;
  l->delay_us = 0;
}

static struct ccache *
create (uint64_t max)
{
  struct ccache *cc;

  assert (ccache_create (max, &cc) == 0);
  return cc;
}

static uint64_t
used (struct ccache *cc)
{
  struct ccache_stats stats;

  ccache_get_stats (cc, &stats);
  return stats.used;
}

static struct layer la, lb;

static void
test_sequential (void)
{
  struct ccache *cc = create (MiB);
  struct ccache_stats stats;
  unsigned idx;
  size_t off;

  layer_reset (&la, 1, 64 * KiB);
  for (idx = 0; idx < 64; ++idx)
    for (off = 0; off < 64 * KiB; off += 4 * KiB)
      check (cc, &la, idx, off, 4 * KiB);
  /* Each cluster once, but for the first 4k, when nothing was known. */
  assert (la.fills == 65);
  assert (la.bytes == 64 * 64 * KiB + 4 * KiB);
  ccache_get_stats (cc, &stats);
  assert (stats.fills_full == 64 && stats.fills_part == 1);
  assert (stats.hits == 64 * 16 - 65);

  /* Backwards; and two streams at once. */
  layer_reset (&la, 1, 64 * KiB);
  for (idx = 1000; idx > 990; --idx)
    for (off = 64 * KiB; off > 0; off -= 4 * KiB)
      check (cc, &la, idx, off - 4 * KiB, 4 * KiB);
  assert (la.bytes == 10 * 64 * KiB);
  layer_reset (&la, 1, 64 * KiB);
  for (idx = 0; idx < 10; ++idx)
    for (off = 0; off < 64 * KiB; off += 4 * KiB) {
      check (cc, &la, 2000 + idx, off, 4 * KiB);
      check (cc, &la, 3000 + idx, off, 4 * KiB);
    }
  assert (la.fills == 2 * 11);
  ccache_free (cc);
}

static void
test_random (void)
{
  struct ccache *cc = create (MiB);
  unsigned i;

  layer_reset (&la, 1, 64 * KiB);
  /* Just the wanted bytes. */
  for (i = 0; i < 40; ++i)
    check (cc, &la, i * 100, 8 * KiB, 4 * KiB);
  assert (la.fills == 40 && la.bytes == 40 * 12 * KiB);
  /* What was before them is there, what is after them is not. */
  check (cc, &la, 3900, 0, 12 * KiB);
  assert (la.fills == 40);
  check (cc, &la, 3900, 12 * KiB, 1);
  assert (la.fills == 41 && la.bytes == 40 * 12 * KiB + 64 * KiB);
  check (cc, &la, 3900, 60 * KiB, 4 * KiB);
  assert (la.fills == 41);
  ccache_free (cc);
}

static void
test_arguments (void)
{
  struct ccache *cc = create (MiB);
  uint8_t buf[1];

  layer_reset (&la, 1, 512);
  assert (read_at (cc, &la, 0, 513, 0, buf) == -EINVAL);
  assert (read_at (cc, &la, 0, 512, 1, buf) == -EINVAL);
  assert (read_at (cc, &la, 0, 1, SIZE_MAX, buf) == -EINVAL);
  assert (read_at (cc, &la, 0, 512, 0, buf) == 0);
  assert (la.fills == 0);
  check (cc, &la, 0, 511, 1);
  ccache_free (cc);
  ccache_free (NULL);
}

static void
test_no_cache (void)
{
  const uint64_t maxes[] = { 0, 64 * KiB };     /* no room for bookkeeping */
  unsigned i;

  for (i = 0; i < 2; ++i) {
    struct ccache *cc = create (maxes[i]);

    layer_reset (&la, 1, 64 * KiB);
    check (cc, &la, 5, 4 * KiB, 4 * KiB);
    check (cc, &la, 5, 4 * KiB, 4 * KiB);
    check (cc, &la, 5, 8 * KiB, 4 * KiB);
    check (cc, &la, 5, 0, 64 * KiB);
    assert (la.fills == 4 && la.bytes == (8 + 8 + 12 + 64) * KiB);
    ccache_drop (cc, 1, 0, UINT64_MAX);
    assert (used (cc) == 0);
    ccache_free (cc);
  }
}

static void
test_whole (void)
{
  struct ccache *cc = create (MiB);
  unsigned i;

  /* Whole clusters are kept while there is room, and evict nothing. */
  layer_reset (&la, 1, 64 * KiB);
  for (i = 0; i < 100; ++i)
    check (cc, &la, i, 0, 64 * KiB);
  assert (la.fills == 100);
  for (i = 0; i < 15; ++i)
    check (cc, &la, i, 0, 64 * KiB);
  assert (la.fills == 100);
  check (cc, &la, 50, 0, 64 * KiB);
  assert (la.fills == 101);
  assert (used (cc) <= MiB);
  ccache_free (cc);
}

static void
test_bounded (void)
{
  const size_t max = MiB;
  struct ccache *cc = create (max);
  struct ccache_stats stats;
  unsigned i;

  /* Mixed sizes; the largest does not fit at all. */
  static const size_t sizes[] = { 512, 64 * KiB, 4 * KiB, 512 * KiB, 2 * MiB };

  layer_reset (&la, 1, 512);
  for (i = 0; i < 5000; ++i) {
    la.owner = 1 + i % 5;
    la.cluster_size = sizes[i % 5];
    check (cc, &la, i * 37 % 4096, i % 512, 1);
    assert (used (cc) <= max);
  }
  ccache_get_stats (cc, &stats);
  assert (stats.peak <= max);
  assert (stats.peak > max / 2);

  /* The recently used stay. */
  layer_reset (&la, 9, 64 * KiB);
  for (i = 0; i < 1000; ++i) {
    check (cc, &la, 1, 0, 10);
    check (cc, &la, 10 + i * 3, 0, 10);
  }
  assert (la.fills == 1001);

  for (i = 0; i < 10; ++i)
    ccache_drop_owner (cc, i);
  assert (used (cc) == 0);
  ccache_free (cc);
}

static void
test_owners (void)
{
  struct ccache *cc = create (16 * MiB);
  unsigned i;

  /* Same offsets, other layers, other cluster sizes. */
  layer_reset (&la, 1, 64 * KiB);
  layer_reset (&lb, 2, 4 * KiB);
  for (i = 0; i < 100; ++i) {
    check (cc, &la, i, 0, 4 * KiB);
    check (cc, &lb, i, 0, 4 * KiB);
  }
  la.fills = lb.fills = 0;
  for (i = 0; i < 100; ++i) {
    check (cc, &la, i, 0, 4 * KiB);
    check (cc, &lb, i, 0, 4 * KiB);
  }
  assert (la.fills == 0 && lb.fills == 0);
  ccache_drop_owner (cc, 1);
  for (i = 0; i < 100; ++i) {
    check (cc, &la, i, 0, 4 * KiB);
    check (cc, &lb, i, 0, 4 * KiB);
  }
  assert (la.fills == 100 && lb.fills == 0);
  ccache_free (cc);
}

static void
test_drop (void)
{
  struct ccache *cc = create (64 * MiB);
  unsigned i, n;

  for (n = 0; n < 6; ++n) {
    /* first cluster, number of clusters */
    static const unsigned ranges[6][2] = {
      { 5, 1 }, { 0, 1 }, { 10, 100 }, { 0, 4096 }, { 4000, 96 }, { 7, 0 },
    };
    const unsigned first = ranges[n][0], nr = ranges[n][1];

    layer_reset (&la, 1, 512);
    for (i = 0; i < 4096; ++i)
      check (cc, &la, i, 0, 512);
    la.fills = 0;
    if (nr == 1)
      ccache_drop (cc, 1, host_off (first), 1);
    else if (nr == 96)
      ccache_drop (cc, 1, host_off (first), UINT64_MAX);
    else
      ccache_drop (cc, 1, host_off (first), nr * 1000);
    for (i = 0; i < nr; ++i)
      la.version[first + i] = 1;
    for (i = 0; i < 4096; ++i)
      check (cc, &la, i, 0, 512);
    assert (la.fills == nr);
    ccache_drop_owner (cc, 1);
    assert (used (cc) == 0);
  }
  ccache_free (cc);
}

static void
test_failure (void)
{
  struct ccache *cc = create (MiB);
  uint8_t *buf = malloc (64 * KiB);

  assert (buf);
  layer_reset (&la, 1, 64 * KiB);
  la.error = -EIO;
  assert (read_at (cc, &la, 3, 0, 512, buf) == -EIO);
  assert (read_at (cc, &la, 3, 0, 64 * KiB, buf) == -EIO);
  la.error = -ENOMEM;
  assert (read_at (cc, &la, 3, 512, 512, buf) == -ENOMEM);
  assert (used (cc) == 0);
  la.error = 0;
  check (cc, &la, 3, 0, 512);
  /* A longer prefix that fails. */
  check (cc, &la, 1000, 0, 512);
  la.error = -EIO;
  assert (read_at (cc, &la, 1000, 512, 512, buf) == -EIO);
  la.error = 0;
  check (cc, &la, 1000, 0, 64 * KiB);
  free (buf);
  ccache_free (cc);
}

/*----------------------------------------------------------------------
 * Threads.
 */

struct job {
  struct ccache *cc;
  size_t offset, count;
  int r;
};

static void *
run_read (void *vp)
{
  struct job *job = vp;
  uint8_t *buf = malloc (job->count);
  size_t i;

  assert (buf);
  job->r = read_at (job->cc, &la, 7, job->offset, job->count, buf);
  for (i = 0; job->r == 0 && i < job->count; ++i)
    assert (buf[i] == expected (1, 7, 0, job->offset + i));
  free (buf);
  return NULL;
}

/* Eight threads want the same cluster while it is being filled. */
static void
run_together (struct ccache *cc, size_t count, int error, unsigned fills_max)
{
  pthread_t threads[8];
  struct job jobs[8];
  unsigned i;

  layer_reset (&la, 1, 64 * KiB);
  la.delay_us = 50000;
  la.error = error;
  for (i = 0; i < 8; ++i) {
    jobs[i] = (struct job) { cc, 0, count, 1 };
    assert (pthread_create (&threads[i], NULL, run_read, &jobs[i]) == 0);
  }
  for (i = 0; i < 8; ++i) {
    assert (pthread_join (threads[i], NULL) == 0);
    assert (jobs[i].r == error);
  }
  assert (la.fills >= 1 && la.fills <= fills_max);
  ccache_drop_owner (cc, 1);
}

static void
test_together (void)
{
  struct ccache *cc = create (MiB);
  unsigned i;

  run_together (cc, 4 * KiB, 0, 1);
  run_together (cc, 64 * KiB, 0, 1);
  /* Each one that waited tries for itself, once. */
  run_together (cc, 4 * KiB, -EIO, 8);
  run_together (cc, 64 * KiB, -EIO, 8);
  assert (used (cc) == 0);

  /* No room: whole clusters go straight to the reader, and those who wait
   * get a copy.
   */
  layer_reset (&lb, 2, 64 * KiB);
  for (i = 0; i < 40; ++i)
    check (cc, &lb, i * 3, 0, 512);
  run_together (cc, 64 * KiB, 0, 1);
  assert (used (cc) <= MiB);
  ccache_free (cc);
}

struct drop_job {
  struct ccache *cc;
  struct layer *layer;
  size_t count;
};

static void *
run_slow_read (void *vp)
{
  struct drop_job *job = vp;
  uint8_t *buf = malloc (job->count);

  assert (buf);
  assert (read_at (job->cc, job->layer, 9, 0, job->count, buf) == 0);
  assert (buf[0] == expected (1, 9, 0, 0));
  free (buf);
  return NULL;
}

/* A fill that was running when its cluster was dropped is not found
 * afterwards.
 */
static void
test_drop_while_filling (void)
{
  static const size_t counts[] = { 4 * KiB, 64 * KiB };
  unsigned n, i;

  for (n = 0; n < 2; ++n) {
    struct ccache *cc = create (MiB);
    struct drop_job job = { cc, &la, counts[n] };
    pthread_t threads[3];

    layer_reset (&la, 1, 64 * KiB);
    la.delay_us = 100000;
    for (i = 0; i < 3; ++i)
      assert (pthread_create (&threads[i], NULL, run_slow_read, &job) == 0);
    while (la.fills == 0)
      usleep (100);
    usleep (20000);             /* the fill has read the version */
    ccache_drop (cc, 1, host_off (9), 1);
    la.version[9] = 1;
    check (cc, &la, 9, 0, counts[n]);   /* does not wait for the old one */
    for (i = 0; i < 3; ++i)
      assert (pthread_join (threads[i], NULL) == 0);
    check (cc, &la, 9, 0, counts[n]);
    ccache_drop_owner (cc, 1);
    assert (used (cc) == 0);
    ccache_free (cc);
  }
}

/* Readers of all sizes against a thread that rewrites clusters, as the
 * engine does: it drops when no reader of the old content is left.
 */
#define STRESS_CLUSTERS 40
#define STRESS_THREADS 6
#define STRESS_READS 3000

struct stress {
  struct ccache *cc;
  pthread_rwlock_t locks[STRESS_CLUSTERS];
  struct layer layers[2];
  atomic_bool stop;
};

static struct stress stress;

static int64_t
fill_or_fail (void *opaque, void *out, size_t out_len, size_t want)
{
  static atomic_uint calls;

  if (++calls % 20 == 0)
    return -EIO;
  return fill_cluster (opaque, out, out_len, want);
}

static void *
run_stress (void *vp)
{
  uint64_t seed = 1 + (uintptr_t) vp;
  uint8_t *buf = malloc (64 * KiB);
  unsigned i;

  assert (buf);
  for (i = 0; i < STRESS_READS; ++i) {
    uint64_t rnd = seed = seed * 6364136223846793005 + 1442695040888963407;
    struct layer *l = &stress.layers[rnd >> 63];
    const uint64_t idx = (rnd >> 40) % STRESS_CLUSTERS;
    struct fill f = { l, idx };
    struct ccache_request req = {
      .key = { l->owner, host_off (idx) }, .cluster_idx = idx,
      .cluster_size = l->cluster_size, .buf = buf,
    };
    size_t at;
    int r;

    rnd >>= 8;
    if (i % 4 == 0)
      req.count = l->cluster_size;
    else {
      req.offset = rnd % l->cluster_size;
      req.count = 1 + (rnd >> 16) % (l->cluster_size - req.offset);
    }
    pthread_rwlock_rdlock (&stress.locks[idx]);
    r = ccache_read (stress.cc, &req, fill_or_fail, &f);
    assert (r == 0 || r == -EIO);
    if (r == 0)
      for (at = 0; at < req.count; at += 1 + at / 3)
        assert (buf[at] == expected (l->owner, idx, l->version[idx],
                                     req.offset + at));
    pthread_rwlock_unlock (&stress.locks[idx]);
  }
  free (buf);
  return NULL;
}

static void *
run_rewriter (void *vp)
{
  unsigned i = 0;

  (void) vp;
  while (!stress.stop) {
    const uint64_t idx = i++ * 7 % STRESS_CLUSTERS;
    struct layer *l = &stress.layers[i & 1];

    pthread_rwlock_wrlock (&stress.locks[idx]);
    l->version[idx]++;
    ccache_drop (stress.cc, l->owner, host_off (idx), i % 3 ? 1 : 3000);
    pthread_rwlock_unlock (&stress.locks[idx]);
    usleep (50);
  }
  return NULL;
}

static void
test_stress (uint64_t max)
{
  pthread_t threads[STRESS_THREADS], rewriter;
  struct ccache_stats stats;
  uintptr_t i;

  stress.cc = create (max);
  stress.stop = false;
  layer_reset (&stress.layers[0], 11, 16 * KiB);
  layer_reset (&stress.layers[1], 12, 4 * KiB);
  for (i = 0; i < STRESS_CLUSTERS; ++i)
    pthread_rwlock_init (&stress.locks[i], NULL);
  assert (pthread_create (&rewriter, NULL, run_rewriter, NULL) == 0);
  for (i = 0; i < STRESS_THREADS; ++i)
    assert (pthread_create (&threads[i], NULL, run_stress, (void *) i) == 0);
  for (i = 0; i < STRESS_THREADS; ++i)
    assert (pthread_join (threads[i], NULL) == 0);
  stress.stop = true;
  assert (pthread_join (rewriter, NULL) == 0);

  ccache_get_stats (stress.cc, &stats);
  assert (stats.peak <= max + STRESS_THREADS * 200);
  ccache_drop_owner (stress.cc, 11);
  ccache_drop_owner (stress.cc, 12);
  assert (used (stress.cc) == 0);
  ccache_free (stress.cc);
  for (i = 0; i < STRESS_CLUSTERS; ++i)
    pthread_rwlock_destroy (&stress.locks[i]);
}

int
main (void)
{
  test_arguments ();
  test_sequential ();
  test_random ();
  test_no_cache ();
  test_whole ();
  test_bounded ();
  test_owners ();
  test_drop ();
  test_failure ();
  test_together ();
  test_drop_while_filling ();
  test_stress (0);
  test_stress (40 * KiB);
  test_stress (200 * KiB);
  test_stress (MiB);
  return 0;
}
