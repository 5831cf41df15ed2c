/* SPDX-License-Identifier: BSD-3-Clause */
/* Many threads write to one export over several connections, and each
 * knows byte for byte what it must read back.
 *
 * Usage: cowmerge-model URI SEED SECONDS CLUSTER [durable|trim]...
 *
 * The first half of the export is cut in lanes of a few hundred bytes,
 * which belong to the threads in turn: so all threads write to the same
 * clusters at once, each to its own bytes.  In the second half the
 * clusters belong to the threads in turn, in groups; there requests are
 * also large, zero, trim and look at extents.  A thread has two
 * connections, and takes either for each request.
 *
 *   durable   the export "NAME:stable" has what survives a power loss;
 *             check it after flush and FUA.  (cowmerge-test-plugin)
 *   trim      use trim; what was trimmed may read as zero or as before
 */

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pthread.h>

#include <libnbd.h>

#define NR_THREADS 6
#define MAX_REQUEST (1024 * 1024)
#define GROUP 6                 /* clusters that belong to one thread */

static const char *uri;
static uint64_t size, half;
static uint32_t cluster;
static unsigned lane;
static bool durable, use_trim;
static time_t end_time;
static uint64_t base_seed;

/* What must be read.  Each byte is the business of one thread. */
static uint8_t *shadow;

struct thread {
  pthread_t id;
  unsigned nr;
  uint64_t rng;
  struct nbd_handle *nbd[2];
  struct nbd_handle *stable;
  uint8_t *buf;
  uint64_t requests;
};

static struct thread threads[NR_THREADS];

static void
die (const char *what)
{
  fprintf (stderr, "cowmerge-model: seed %" PRIu64 ": %s: %s\n",
           base_seed, what, nbd_get_error () ? nbd_get_error () : "");
  exit (EXIT_FAILURE);
}

static uint64_t
rnd (struct thread *t, uint64_t n)
{
  t->rng ^= t->rng << 13;
  t->rng ^= t->rng >> 7;
  t->rng ^= t->rng << 17;
  return t->rng % n;
}

static struct nbd_handle *
connect_to (const char *suffix)
{
  struct nbd_handle *nbd = nbd_create ();
  char *name;

  if (nbd == NULL)
    die ("nbd_create");
  if (suffix && nbd_set_export_name (nbd, suffix) == -1)
    die ("nbd_set_export_name");
  /* The URI has no export name. */
  if (nbd_add_meta_context (nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) == -1)
    die ("nbd_add_meta_context");
  name = strstr (uri, "socket=");
  if (name == NULL || nbd_connect_unix (nbd, name + 7) == -1)
    die ("connect");
  return nbd;
}

static void
compare (const struct thread *t, const char *what, const uint8_t *got,
         uint64_t off, uint64_t count)
{
  for (uint64_t i = 0; i < count; ++i) {
    if (got[i] == shadow[off + i])
      continue;
    fprintf (stderr, "cowmerge-model: seed %" PRIu64 ": thread %u: %s: "
             "byte %" PRIu64 " (cluster %" PRIu64 "+%" PRIu64 ") is %u, "
             "should be %u\n", base_seed, t->nr, what, off + i,
             (off + i) / cluster, (off + i) % cluster,
             got[i], shadow[off + i]);
    exit (EXIT_FAILURE);
  }
}

static void
fill (struct thread *t, uint64_t off, uint64_t count)
{
  for (uint64_t i = 0; i < count; ++i)
    t->buf[i] = rnd (t, 256);
  memcpy (shadow + off, t->buf, count);
}

static struct nbd_handle *
any (struct thread *t)
{
  return t->nbd[rnd (t, 2)];
}

static void
check_stable (struct thread *t, uint64_t off, uint64_t count)
{
  if (!durable)
    return;
  if (nbd_pread (t->stable, t->buf, count, off, 0) == -1)
    die ("pread of what is stable");
  compare (t, "not stable", t->buf, off, count);
}

static void
do_write (struct thread *t, uint64_t off, uint64_t count)
{
  bool fua = rnd (t, 20) == 0;

  fill (t, off, count);
  if (nbd_pwrite (any (t), t->buf, count, off,
                  fua ? LIBNBD_CMD_FLAG_FUA : 0) == -1)
    die ("pwrite");
  if (fua)
    check_stable (t, off, count);
}

static void
do_read (struct thread *t, uint64_t off, uint64_t count)
{
  if (nbd_pread (any (t), t->buf, count, off, 0) == -1)
    die ("pread");
  compare (t, "read", t->buf, off, count);
}

/* A range in the lanes: all in one of this thread's, or for reading a long
 * one of which only its own bytes are compared.
 */
static void
do_lane (struct thread *t)
{
  uint64_t nr = half / lane / NR_THREADS;
  /* Stay in a few clusters for a while, so that they become complete. */
  uint64_t spot = (t->requests / 4096 * 7919 + rnd (t, 600)) % nr;
  uint64_t start = (spot * NR_THREADS + t->nr) * lane;
  uint64_t off = rnd (t, 2) ? start : start + rnd (t, lane);
  uint64_t count = start + lane - off, len;

  if (rnd (t, 3) == 0)
    count = 1 + rnd (t, count);
  switch (rnd (t, 8)) {
  case 0:
  case 1:
    do_read (t, off, count);
    break;
  case 2:
    len = 1 + rnd (t, 4 * cluster < MAX_REQUEST ? 4 * cluster : MAX_REQUEST);
    if (off + len > half)
      len = half - off;
    if (nbd_pread (any (t), t->buf, len, off, 0) == -1)
      die ("pread");
    for (uint64_t i = 0; i < len; ++i)
      if ((off + i) / lane % NR_THREADS == t->nr)
        compare (t, "read of lanes", t->buf + i, off + i, 1);
    break;
  case 3:
    memset (shadow + off, 0, count);
    if (nbd_zero (any (t), count, off,
                  rnd (t, 2) ? LIBNBD_CMD_FLAG_NO_HOLE : 0) == -1)
      die ("zero");
    break;
  default:
    do_write (t, off, count);
  }
}

static void
do_zero (struct thread *t, uint64_t off, uint64_t count)
{
  uint32_t flags = rnd (t, 2) ? LIBNBD_CMD_FLAG_NO_HOLE : 0;
  bool fua = rnd (t, 10) == 0;

  if (rnd (t, 4) == 0) {
    /* This one may fail, and then must not change anything. */
    if (nbd_zero (any (t), count, off,
                  flags | LIBNBD_CMD_FLAG_FAST_ZERO) == 0)
      memset (shadow + off, 0, count);
    return;
  }
  memset (shadow + off, 0, count);
  if (nbd_zero (any (t), count, off,
                flags | (fua ? LIBNBD_CMD_FLAG_FUA : 0)) == -1)
    die ("zero");
  if (fua)
    check_stable (t, off, count);
}

static void
do_trim (struct thread *t, uint64_t off, uint64_t count)
{
  if (nbd_trim (any (t), count, off, 0) == -1)
    die ("trim");
  if (nbd_pread (any (t), t->buf, count, off, 0) == -1)
    die ("pread");
  for (uint64_t i = 0; i < count; ++i) {
    if (t->buf[i] == 0)
      shadow[off + i] = 0;
    else if (t->buf[i] != shadow[off + i])
      compare (t, "read of what was trimmed", t->buf + i, off + i, 1);
  }
}

/* What is said to be zero must be. */
struct block_status {
  uint64_t off;
  bool bad;
};

static int
on_extent (void *opaque, const char *context, uint64_t off,
           uint32_t *entries, size_t nr, int *error)
{
  struct block_status *bs = opaque;

  (void) context;
  (void) error;
  for (size_t i = 0; i + 1 < nr; i += 2) {
    if (entries[i + 1] & LIBNBD_STATE_ZERO)
      for (uint64_t j = off; j < off + entries[i] && j < bs->off; ++j)
        bs->bad |= shadow[j] != 0;
    off += entries[i];
  }
  return 0;
}

static void
do_extents (struct thread *t, uint64_t off, uint64_t count)
{
  struct block_status bs = { .off = off + count };
  uint32_t flags = rnd (t, 2) ? LIBNBD_CMD_FLAG_REQ_ONE : 0;

  if (nbd_block_status (any (t), count, off,
                        (nbd_extent_callback) {
                          .callback = on_extent, .user_data = &bs
                        }, flags) == -1)
    die ("block status");
  if (bs.bad)
    die ("data is reported as zero");
}

/* A group of clusters of this thread. */
static uint64_t
group_start (struct thread *t)
{
  uint64_t group = (uint64_t) GROUP * cluster;
  uint64_t nr = (size - half) / group / NR_THREADS;

  return half + (rnd (t, nr) * NR_THREADS + t->nr) * group;
}

/* A range in such a group. */
static void
do_group (struct thread *t)
{
  uint64_t group = (uint64_t) GROUP * cluster;
  uint64_t start = group_start (t);
  uint64_t off = start, count;

  switch (rnd (t, 3)) {
  case 0:                       /* whole clusters */
    off += rnd (t, GROUP) * cluster;
    count = (1 + rnd (t, GROUP)) * cluster;
    break;
  case 1:                       /* small */
    off += rnd (t, group);
    count = 1 + rnd (t, cluster / 4);
    break;
  default:
    off += rnd (t, group);
    count = 1 + rnd (t, group);
  }
  if (off + count > start + group)
    count = start + group - off;
  if (count > MAX_REQUEST)
    count = MAX_REQUEST;

  switch (rnd (t, 10)) {
  case 0: do_zero (t, off, count); break;
  case 1:
    if (use_trim)
      do_trim (t, off, count);
    break;
  case 2: do_extents (t, off, count); break;
  case 3:
    if (nbd_cache (any (t), count, off, 0) == -1)
      die ("cache");
    break;
  case 4: case 5: case 6: do_read (t, off, count); break;
  default: do_write (t, off, count);
  }
}

static void
do_flush (struct thread *t)
{
  uint64_t off = group_start (t);

  if (nbd_flush (any (t), 0) == -1)
    die ("flush");
  check_stable (t, off, cluster);
}

static void *
run (void *vp)
{
  struct thread *t = vp;

  while (time (NULL) < end_time) {
    t->requests++;
    if (rnd (t, 300) == 0)
      do_flush (t);
    else if (rnd (t, 2))
      do_lane (t);
    else
      do_group (t);
    if (rnd (t, 2000) == 0) {
      /* Reconnect, with data of this thread in the air. */
      unsigned i = rnd (t, 2);

      if (rnd (t, 2))
        nbd_shutdown (t->nbd[i], 0);
      nbd_close (t->nbd[i]);
      t->nbd[i] = connect_to (NULL);
    }
  }
  return NULL;
}

static void
read_all (struct nbd_handle *nbd, uint8_t *buf)
{
  for (uint64_t off = 0; off < size; off += MAX_REQUEST) {
    uint64_t n = size - off < MAX_REQUEST ? size - off : MAX_REQUEST;

    if (nbd_pread (nbd, buf + off, n, off, 0) == -1)
      die ("pread");
  }
}

static void
check_all (const char *what, const char *suffix)
{
  struct nbd_handle *nbd = connect_to (suffix);
  uint8_t *buf = malloc (size);
  struct thread nobody = { .nr = NR_THREADS };

  if (buf == NULL)
    die ("malloc");
  read_all (nbd, buf);
  compare (&nobody, what, buf, 0, size);
  free (buf);
  nbd_shutdown (nbd, 0);
  nbd_close (nbd);
}

static void
start (unsigned i)
{
  struct thread *t = &threads[i];

  t->nr = i;
  t->rng = base_seed * 1000003 + i * 7907 + 1;
  t->buf = malloc (MAX_REQUEST);
  if (t->buf == NULL)
    die ("malloc");
  t->nbd[0] = connect_to (NULL);
  t->nbd[1] = connect_to (NULL);
  t->stable = durable ? connect_to (":stable") : NULL;
  if (pthread_create (&t->id, NULL, run, t) != 0)
    die ("pthread_create");
}

static void
finish (struct thread *t)
{
  pthread_join (t->id, NULL);
  for (unsigned i = 0; i < 2; ++i) {
    nbd_shutdown (t->nbd[i], 0);
    nbd_close (t->nbd[i]);
  }
  nbd_close (t->stable);
  free (t->buf);
}

int
main (int argc, char *argv[])
{
  struct nbd_handle *nbd;
  uint64_t requests = 0;

  if (argc < 5) {
    fprintf (stderr, "usage: %s URI SEED SECONDS CLUSTER [durable|trim]...\n",
             argv[0]);
    exit (EXIT_FAILURE);
  }
  uri = argv[1];
  base_seed = strtoull (argv[2], NULL, 0);
  if (base_seed == 0)
    base_seed = time (NULL);
  cluster = atoi (argv[4]);
  for (int i = 5; i < argc; ++i) {
    durable |= strcmp (argv[i], "durable") == 0;
    use_trim |= strcmp (argv[i], "trim") == 0;
  }
  /* Not a divisor of anything, so that lanes cross cluster borders. */
  lane = cluster > 4096 ? 333 + base_seed % 700 : 37;

  nbd = connect_to (NULL);
  size = nbd_get_size (nbd);
  half = size / 2;
  if ((size - half) / cluster < GROUP * NR_THREADS) {
    fprintf (stderr, "%s: the export is too small\n", argv[0]);
    exit (EXIT_FAILURE);
  }
  shadow = malloc (size);
  if (shadow == NULL)
    die ("malloc");
  read_all (nbd, shadow);

  end_time = time (NULL) + atoi (argv[3]);
  for (unsigned i = 0; i < NR_THREADS; ++i)
    start (i);
  for (unsigned i = 0; i < NR_THREADS; ++i) {
    finish (&threads[i]);
    requests += threads[i].requests;
  }

  check_all ("after the last thread", NULL);
  if (nbd_flush (nbd, 0) == -1)
    die ("flush");
  check_all ("after the flush", NULL);
  if (durable)
    check_all ("stable after the flush", ":stable");
  nbd_shutdown (nbd, 0);
  nbd_close (nbd);
  free (shadow);
  printf ("seed %" PRIu64 ": %" PRIu64 " requests\n", base_seed, requests);
  return 0;
}
