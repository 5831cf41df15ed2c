/* SPDX-License-Identifier: BSD-3-Clause */
/* Sixteen threads do all that clients can do to one image at the same time,
 * for the thread sanitizer and the lock ranks, and look at what they get.
 *
 * The disk has areas:
 *  - owned: the clusters are shared, each sector belongs to one thread, which
 *    knows what must be in it.  Half of it has data when the snapshot is made.
 *  - fought for: threads write sectors, others zero and trim them.
 *  - packed: whole clusters, written compressed.
 * Others read the snapshot, which must not change, all of the disk, with
 * caches that are too small for it, and ask for extents.
 *
 * Each sector has its number in it, and a tag, so that data of the wrong
 * place are found.
 */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "image.h"
#include "snapshot.h"
#include "test-qemu.h"
#include "test-random.h"

#define NR_THREADS 16
#define NR_OWNERS 8
#define NR_UNITS 1024           /* of the owned area */
#define UNIT_SECTORS 3          /* of each owner in each unit */
#define NR_REQUESTS 250
#define SECTOR 512
#define NOT_OURS 256            /* no tag */

/* Reading what another thread wrote to a file orders nothing: the file system
 * must not hide races.
 */
extern const char *__tsan_default_options (void);

const char *
__tsan_default_options (void)
{
  return "io_sync=0";
}

struct kind {
  const char *options;          /* of qemu-img create */
  uint64_t stride;              /* from one unit to the next */
  uint64_t cluster_size;
};

static const struct kind kinds[] = {
  /* 512-byte clusters: the tables do not fit into their cache. */
  { "cluster_size=512,refcount_bits=8", 64 * 1024, 512 },
  { "cluster_size=4k,lazy_refcounts=on", 16 * 1024, 4096 },
  { "cluster_size=64k,extended_l2=on,compression_type=zstd", 12288, 65536 },
};

/* Areas, in bytes. */
#define FOUGHT_SIZE (256 * 1024)
#define PACKED_SIZE (1024 * 1024)

struct stress {
  const struct kind *kind;
  struct image *image;
  struct io *io;
  uint64_t fought, packed, size;        /* where they begin, and all ends */
  /* Of each unit, owner, and sector.  Only the owner looks. */
  uint8_t tags[NR_UNITS][NR_OWNERS][UNIT_SECTORS];
};

struct client {
  struct stress *s;
  pthread_t thread;
  unsigned id;
  uint64_t random;
};

static uint64_t
below (struct client *c, uint64_t n)
{
  return test_random (&c->random) % n;
}

/* Tag 0 is zeroes. */
static void
fill (uint8_t *buf, uint64_t off, unsigned tag)
{
  uint64_t word = tag ? off / SECTOR * 256 + tag : 0;
  unsigned i;

  for (i = 0; i < SECTOR; i += sizeof word)
    memcpy (buf + i, &word, sizeof word);
}

static unsigned
tag_of (const uint8_t *buf, uint64_t off)
{
  uint8_t want[SECTOR];
  uint64_t word;
  unsigned tag;

  memcpy (&word, buf, sizeof word);
  tag = word % 256;
  fill (want, off, tag);
  return memcmp (want, buf, SECTOR) == 0 ? tag : NOT_OURS;
}

static void
must_be (struct io *io, uint64_t off, unsigned tag)
{
  uint8_t buf[SECTOR];
  unsigned seen;

  OK (io_pread (io, buf, SECTOR, off));
  seen = tag_of (buf, off);
  if (seen != tag) {
    fprintf (stderr, "%s: sector at %" PRIu64 " has tag %u instead of %u\n",
             io->name, off, seen, tag);
    abort ();
  }
}

/* --- the owned area --- */

static uint64_t
owned_off (const struct stress *s, unsigned unit, unsigned owner)
{
  return unit * s->kind->stride + owner * UNIT_SECTORS * SECTOR;
}

static unsigned
first_tag (unsigned unit, unsigned owner)
{
  return unit % 2 ? 1 + owner : 0;
}

static void
write_owned (struct client *c, unsigned unit, unsigned first, unsigned nr,
             unsigned tag)
{
  const uint64_t off = owned_off (c->s, unit, c->id) + first * SECTOR;
  const unsigned flags = below (c, 8) == 0 ? IO_FUA : 0;
  uint8_t buf[UNIT_SECTORS * SECTOR];
  unsigned i;

  for (i = 0; i < nr; ++i) {
    fill (buf + i * SECTOR, off + i * SECTOR, tag);
    c->s->tags[unit][c->id][first + i] = tag;
  }
  if (tag)
    OK (io_pwrite (c->s->io, buf, nr * SECTOR, off, flags, NULL));
  else
    OK (io_zero (c->s->io, nr * SECTOR, off,
                 flags | (below (c, 2) ? IO_MAY_TRIM : 0), NULL));
}

static void *
owner (void *arg)
{
  struct client *c = arg;
  unsigned i, j;

  for (i = 0; i < NR_REQUESTS; ++i) {
    const unsigned unit = below (c, NR_UNITS);
    const unsigned first = below (c, UNIT_SECTORS);
    const unsigned nr = 1 + below (c, UNIT_SECTORS - first);

    for (j = first; j < first + nr; ++j)
      must_be (c->s->io, owned_off (c->s, unit, c->id) + j * SECTOR,
               c->s->tags[unit][c->id][j]);
    write_owned (c, unit, first, nr, below (c, 4) ? 1 + below (c, 255) : 0);
    if (below (c, 32) == 0)
      OK (io_flush (c->s->io));
  }
  return NULL;
}

/* --- the area that is fought for --- */

static void
some_range (struct client *c, uint64_t *off, uint64_t *len)
{
  const uint64_t sectors = FOUGHT_SIZE / SECTOR;
  uint64_t n = below (c, 2) ? 8 : 2 * c->s->kind->cluster_size / SECTOR;
  const uint64_t first = below (c, sectors);

  if (n > sectors - first)
    n = sectors - first;
  *off = c->s->fought + first * SECTOR;
  *len = (1 + below (c, n)) * SECTOR;
}

static void *
fighter (void *arg)
{
  struct client *c = arg;
  uint8_t *buf = malloc (FOUGHT_SIZE);
  uint64_t off, len, i;
  unsigned n;

  assert (buf != NULL);
  for (n = 0; n < NR_REQUESTS; ++n) {
    some_range (c, &off, &len);
    for (i = 0; i < len; i += SECTOR)
      fill (buf + i, off + i, 1 + c->id);
    OK (io_pwrite (c->s->io, buf, len, off, 0, NULL));
  }
  free (buf);
  return NULL;
}

static void *
discarder (void *arg)
{
  struct client *c = arg;
  uint64_t off, len;
  unsigned n;

  for (n = 0; n < NR_REQUESTS; ++n) {
    some_range (c, &off, &len);
    if (below (c, 2))
      OK (io_trim (c->s->io, len, off, 0));
    else
      OK (io_zero (c->s->io, len, off, IO_MAY_TRIM, NULL));
  }
  return NULL;
}

/* --- the packed area, readers --- */

/* Write and read compressed clusters of its own: every second one. */
static void *
packer (void *arg)
{
  struct client *c = arg;
  struct io *io = c->s->io;
  const struct io_hints hints = {
    .compress = true, .codec = { .type = io->codec, .level = 1 },
  };
  const uint64_t cluster = c->s->kind->cluster_size;
  const uint64_t pairs = PACKED_SIZE / cluster / 2;
  uint8_t *buf = malloc (cluster);
  unsigned n;

  assert (buf != NULL);
  for (n = 0; n < NR_REQUESTS; ++n) {
    const uint64_t off = c->s->packed +
      (below (c, pairs) * 2 + c->id % 2) * cluster;
    const unsigned tag = 1 + below (c, 255);
    uint64_t i;

    for (i = 0; i < cluster; i += SECTOR)
      fill (buf + i, off + i, tag);
    OK (io_pwrite (io, buf, cluster, off, 0, &hints));
    must_be (io, off + below (c, cluster / SECTOR) * SECTOR, tag);
    if (n % 8 == 0)
      OK (io_trim (io, cluster, off, 0));
  }
  free (buf);
  return NULL;
}

static int
count_extent (void *opaque, uint64_t off, uint64_t len, unsigned flags)
{
  uint64_t *sum = opaque;

  (void) off;
  (void) flags;
  *sum += len;
  return 0;
}

static void *
reader (void *arg)
{
  struct client *c = arg;
  static const uint64_t max = 64 * 1024;
  uint8_t *buf = malloc (max);
  unsigned n;

  assert (buf != NULL);
  for (n = 0; n < 4 * NR_REQUESTS; ++n) {
    const uint64_t off = below (c, c->s->size - max);
    const uint64_t len = 1 + below (c, max);
    uint64_t sum = 0;

    OK (io_pread (c->s->io, buf, len, off));
    OK (io_cache (c->s->io, len, off));
    OK (io_extents (c->s->io, len, off, n % 2, count_extent, &sum));
    assert (sum == len);
  }
  free (buf);
  return NULL;
}

static void *
snapshot_reader (void *arg)
{
  struct client *c = arg;
  struct io *io;
  unsigned n;

  for (n = 0; n < 4 * NR_REQUESTS; ++n) {
    const unsigned unit = below (c, NR_UNITS), owner = below (c, NR_OWNERS);

    OK (image_snapshot (c->s->image, "before", &io));
    must_be (io, owned_off (c->s, unit, owner) + SECTOR,
             first_tag (unit, owner));
  }
  return NULL;
}

/* --- */

static void *(*const roles[NR_THREADS]) (void *) = {
  owner, owner, owner, owner, owner, owner, owner, owner,
  fighter, fighter, discarder,
  packer, packer,
  reader, reader, snapshot_reader,
};

static void
open_image (struct stress *s, struct ccache *ccache)
{
  const struct image_options opts = {
    .writable = true, .discard = true, .metadata_cache = 1, .ccache = ccache,
  };
  char path[256];

  snprintf (path, sizeof path, "%s/image", dir);
  OK (image_open (path, false, &opts, &s->image));
  s->io = image_io (s->image);
}

static void
make (struct stress *s, struct ccache *ccache)
{
  const struct timespec when = { .tv_sec = 1 };
  uint8_t buf[NR_OWNERS * UNIT_SECTORS * SECTOR];
  unsigned unit, i, owner;

  s->fought = NR_UNITS * s->kind->stride;
  s->packed = s->fought + FOUGHT_SIZE;
  s->size = s->packed + PACKED_SIZE;
  run ("qemu-img create -q -f qcow2 -o %s image %" PRIu64,
       s->kind->options, s->size);
  open_image (s, ccache);
  for (unit = 0; unit < NR_UNITS; ++unit) {
    for (i = 0; i < NR_OWNERS * UNIT_SECTORS; ++i) {
      owner = i / UNIT_SECTORS;
      fill (buf + i * SECTOR, owned_off (s, unit, 0) + i * SECTOR,
            first_tag (unit, owner));
      s->tags[unit][owner][i % UNIT_SECTORS] = first_tag (unit, owner);
    }
    if (unit % 2)
      OK (io_pwrite (s->io, buf, sizeof buf, owned_off (s, unit, 0), 0, NULL));
  }
  OK (snapshot_create (image_core (s->image), "before", &when));
}

/* Nobody changes the disk now. */
static void
verify (struct stress *s)
{
  uint8_t buf[SECTOR];
  uint64_t off;
  unsigned unit, i, owner, tag;

  for (unit = 0; unit < NR_UNITS; ++unit)
    for (owner = 0; owner < NR_OWNERS; ++owner)
      for (i = 0; i < UNIT_SECTORS; ++i)
        must_be (s->io, owned_off (s, unit, owner) + i * SECTOR,
                 s->tags[unit][owner][i]);
  for (off = s->fought; off < s->size; off += SECTOR) {
    OK (io_pread (s->io, buf, SECTOR, off));
    tag = tag_of (buf, off);
    assert (tag != NOT_OURS);
    if (off < s->packed)
      assert (tag == 0 || roles[tag - 1] == fighter);
  }
}

static void
stress (const struct kind *kind)
{
  static struct stress s;
  struct client clients[NR_THREADS];
  struct check_result res;
  struct ccache *ccache;
  unsigned i;

  s.kind = kind;
  OK (ccache_create (256 * 1024, &ccache));
  make (&s, ccache);
  for (i = 0; i < NR_THREADS; ++i) {
    clients[i] = (struct client) { .s = &s, .id = i, .random = i + 1 };
    assert (pthread_create (&clients[i].thread, NULL, roles[i],
                            &clients[i]) == 0);
  }
  for (i = 0; i < NR_THREADS; ++i)
    assert (pthread_join (clients[i].thread, NULL) == 0);
  verify (&s);
  OK (image_close (s.image));

  open_image (&s, ccache);
  verify (&s);
  OK (check_run (image_core (s.image), NULL, &res));
  assert (res.corruptions == 0 && res.leaks == 0 && res.check_errors == 0);
  OK (image_close (s.image));
  ccache_free (ccache);
  run ("qemu-img check -q image >check.out 2>&1 || "
       "{ cat check.out; exit 1; }");
}

int
main (void)
{
  unsigned i;

  if (system ("qemu-img --version >/dev/null 2>&1") != 0) {
    fprintf (stderr, "test-stress: skipped: qemu-img is not installed\n");
    return 77;
  }
  assert (mkdtemp (dir) != NULL);
  for (i = 0; i < sizeof kinds / sizeof kinds[0]; ++i)
    stress (&kinds[i]);
  run ("rm -rf %s", dir);
  return EXIT_SUCCESS;
}
