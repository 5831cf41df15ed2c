/* SPDX-License-Identifier: BSD-3-Clause */
/* A plugin for the tests of the cowmerge filter: images in memory which
 * behave as qcow2 overlays do, and which tell what was done to them.
 *
 * Parameters:
 *
 *   size=SIZE cluster=SIZE   of each image
 *   backing=data|zero        what clusters that are absent read as
 *   grain=SIZE               told as such (default: not told)
 *   version=N                of the hints (to be refused)
 *   stuck=FILE               while FILE exists, writes do not return
 *   jitter=US                each request takes up to twice so long,
 *                            before and after it takes effect
 *
 * Exports: any name is an image (made when first used); "+..." is the
 * image "" by another name.  Of the image NAME, "NAME:stable" has what a
 * power loss now would leave: as of the last flush, and FUA writes; and
 * "NAME:counts" has text that says what was done to it.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pthread.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "qcow2-hints.h"

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

#define MAX_IMAGES 8
#define COUNTS_SIZE 4096

static int64_t size = 16 * 1024 * 1024;
static int64_t cluster = 65536;
static bool backing_zero;
static int64_t grain;
static char *stuck;
static unsigned version = QCOW2_HINTS_VERSION;
static unsigned jitter;

enum state { ABSENT = 0, PRESENT, ZEROED };

struct counts {
  uint64_t reads, read_bytes;
  uint64_t writes, write_bytes;
  uint64_t whole;               /* writes of whole clusters only */
  uint64_t copied;              /* clusters that had to be copied in part */
  uint64_t flushes, fua, zeroes, trims, extents, layer_extents;
};

struct image {
  char *name;
  uint8_t *data, *stable;
  uint8_t *states;              /* of each cluster */
  struct counts counts;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct image images[MAX_IMAGES];
static size_t nr_images;

enum kind { IMAGE, STABLE, COUNTS };

struct handle {
  struct image *img;
  enum kind kind;
  char text[COUNTS_SIZE];
};

extern struct qcow2_hints *nbdkit_qcow2_hints (void);
extern struct nbdkit_plugin *plugin_init (void);

struct qcow2_hints *
nbdkit_qcow2_hints (void)
{
  static __thread struct qcow2_hints hints;

  hints.version = version;
  hints.size = sizeof hints;
  return &hints;
}

static int
test_config (const char *key, const char *value)
{
  if (strcmp (key, "size") == 0)
    return (size = nbdkit_parse_size (value)) == -1 ? -1 : 0;
  if (strcmp (key, "cluster") == 0)
    return (cluster = nbdkit_parse_size (value)) == -1 ? -1 : 0;
  if (strcmp (key, "grain") == 0)
    return (grain = nbdkit_parse_size (value)) == -1 ? -1 : 0;
  if (strcmp (key, "version") == 0)
    return nbdkit_parse_unsigned (key, value, &version);
  if (strcmp (key, "jitter") == 0)
    return nbdkit_parse_unsigned (key, value, &jitter);
  if (strcmp (key, "backing") == 0) {
    backing_zero = strcmp (value, "zero") == 0;
    return 0;
  }
  if (strcmp (key, "stuck") == 0) {
    stuck = nbdkit_absolute_path (value);
    return stuck ? 0 : -1;
  }
  nbdkit_error ("unknown parameter %s", key);
  return -1;
}

/* The byte of the backing file at this offset: the same formula is in the
 * tests.
 */
static uint8_t
backing_byte (uint64_t off)
{
  return backing_zero ? 0 : (off / 251 + off) % 255 + 1;
}

static struct image *
find_image (const char *name, size_t len)
{
  struct image *img;
  size_t i;

  for (i = 0; i < nr_images; ++i)
    if (strlen (images[i].name) == len &&
        strncmp (images[i].name, name, len) == 0)
      return &images[i];
  if (nr_images == MAX_IMAGES)
    return NULL;

  img = &images[nr_images];
  img->name = strndup (name, len);
  img->data = malloc (size);
  img->stable = malloc (size);
  img->states = calloc (1, size / cluster + 1);
  if (!img->name || !img->data || !img->stable || !img->states)
    return NULL;
  for (int64_t off = 0; off < size; ++off)
    img->data[off] = img->stable[off] = backing_byte (off);
  nr_images++;
  return img;
}

static void
print_counts (struct handle *h)
{
  const struct counts *c = &h->img->counts;

  snprintf (h->text, sizeof h->text,
            "reads=%" PRIu64 "\nread_bytes=%" PRIu64 "\n"
            "writes=%" PRIu64 "\nwrite_bytes=%" PRIu64 "\n"
            "whole=%" PRIu64 "\ncopied=%" PRIu64 "\n"
            "flushes=%" PRIu64 "\nfua=%" PRIu64 "\n"
            "zeroes=%" PRIu64 "\ntrims=%" PRIu64 "\n"
            "extents=%" PRIu64 "\nlayer_extents=%" PRIu64 "\n",
            c->reads, c->read_bytes, c->writes, c->write_bytes, c->whole,
            c->copied, c->flushes, c->fua, c->zeroes, c->trims, c->extents,
            c->layer_extents);
}

static void *
test_open (int readonly)
{
  const char *name = nbdkit_export_name ();
  const char *colon = strchr (name, ':');
  struct handle *h = calloc (1, sizeof *h);

  (void) readonly;
  if (h == NULL)
    return NULL;
  if (colon)
    h->kind = strcmp (colon, ":stable") == 0 ? STABLE : COUNTS;
  pthread_mutex_lock (&lock);
  h->img = find_image (name, name[0] == '+' ? 0 :
                       colon ? (size_t) (colon - name) : strlen (name));
  if (h->img && h->kind == COUNTS)
    print_counts (h);
  pthread_mutex_unlock (&lock);
  if (h->img == NULL) {
    nbdkit_error ("no such image");
    free (h);
    return NULL;
  }
  return h;
}

static void
test_close (void *handle)
{
  free (handle);
}

static void
test_unload (void)
{
  free (stuck);
  for (size_t i = 0; i < nr_images; ++i) {
    free (images[i].name);
    free (images[i].data);
    free (images[i].stable);
    free (images[i].states);
  }
}

static int64_t
test_get_size (void *handle)
{
  struct handle *h = handle;

  return h->kind == COUNTS ? COUNTS_SIZE : size;
}

static int
test_block_size (void *handle, uint32_t *minimum, uint32_t *preferred,
                 uint32_t *maximum)
{
  (void) handle;
  *minimum = 1;
  *preferred = cluster;
  *maximum = 0xffffffff;
  return 0;
}

static int
test_can_write (void *handle)
{
  struct handle *h = handle;

  return h->kind == IMAGE;
}

static int
yes (void *handle)
{
  (void) handle;
  return 1;
}

static int
test_can_fua (void *handle)
{
  (void) handle;
  return NBDKIT_FUA_NATIVE;
}

static int
test_can_cache (void *handle)
{
  (void) handle;
  return NBDKIT_CACHE_NATIVE;
}

static void
dawdle (void)
{
  if (jitter)
    usleep (rand () % (2 * jitter));
}

static int
test_pread (void *handle, void *buf, uint32_t count, uint64_t off,
            uint32_t flags)
{
  struct handle *h = handle;

  (void) flags;
  dawdle ();
  pthread_mutex_lock (&lock);
  if (h->kind == COUNTS)
    memcpy (buf, h->text + off, count);
  else
    memcpy (buf, (h->kind == STABLE ? h->img->stable : h->img->data) + off,
            count);
  if (h->kind == IMAGE) {
    h->img->counts.reads++;
    h->img->counts.read_bytes += count;
  }
  pthread_mutex_unlock (&lock);
  dawdle ();
  return 0;
}

/* Set the bytes of all the clusters that the range touches.  Returns how
 * many of them had to be copied in part.
 */
static unsigned
change_locked (struct handle *h, const void *buf, uint32_t count,
               uint64_t off, uint32_t flags)
{
  struct image *img = h->img;
  unsigned copied = 0;

  for (int64_t c = off / cluster; c <= (int64_t) (off + count - 1) / cluster;
       ++c) {
    int64_t start = c * cluster, end = start + cluster;

    if (end > size)
      end = size;
    if (img->states[c] == ABSENT && !backing_zero &&
        ((int64_t) off > start || (int64_t) (off + count) < end))
      copied++;
    img->states[c] = PRESENT;
  }
  if (buf)
    memcpy (img->data + off, buf, count);
  else
    memset (img->data + off, 0, count);
  if (flags & NBDKIT_FLAG_FUA) {
    memcpy (img->stable + off, img->data + off, count);
    img->counts.fua++;
  }
  return copied;
}

static int
test_pwrite (void *handle, const void *buf, uint32_t count, uint64_t off,
             uint32_t flags)
{
  struct handle *h = handle;
  struct counts *c = &h->img->counts;

  while (stuck && access (stuck, F_OK) == 0)
    usleep (5000);
  dawdle ();
  pthread_mutex_lock (&lock);
  c->writes++;
  c->write_bytes += count;
  if (off % cluster == 0 &&
      (count % cluster == 0 || (int64_t) (off + count) == size))
    c->whole++;
  c->copied += change_locked (h, buf, count, off, flags);
  pthread_mutex_unlock (&lock);
  dawdle ();
  return 0;
}

static int
test_flush (void *handle, uint32_t flags)
{
  struct handle *h = handle;

  (void) flags;
  dawdle ();
  pthread_mutex_lock (&lock);
  memcpy (h->img->stable, h->img->data, size);
  h->img->counts.flushes++;
  pthread_mutex_unlock (&lock);
  dawdle ();
  return 0;
}

/* Whole clusters become zeroed ones, parts are written or, by trim, left. */
static int
discard (struct handle *h, uint32_t count, uint64_t off, uint32_t flags,
         bool trim)
{
  int64_t pos = off, end = off + count;

  dawdle ();
  pthread_mutex_lock (&lock);
  if (trim)
    h->img->counts.trims++;
  else
    h->img->counts.zeroes++;
  while (pos < end) {
    int64_t start = pos / cluster * cluster, to = start + cluster;
    bool whole;

    if (to > size)
      to = size;
    whole = pos == start && end >= to;
    if (to > end)
      to = end;
    if (whole || !trim)
      change_locked (h, NULL, to - pos, pos, flags);
    if (whole)
      h->img->states[pos / cluster] = ZEROED;
    pos = to;
  }
  pthread_mutex_unlock (&lock);
  dawdle ();
  return 0;
}

static int
test_zero (void *handle, uint32_t count, uint64_t off, uint32_t flags)
{
  /* As slow as any: tests want to see it refused. */
  if ((flags & NBDKIT_FLAG_FAST_ZERO) && count % cluster != 0) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return discard (handle, count, off, flags, false);
}

static int
test_trim (void *handle, uint32_t count, uint64_t off, uint32_t flags)
{
  return discard (handle, count, off, flags, true);
}

static uint32_t
type_locked (const struct image *img, int64_t c, bool layer)
{
  switch (img->states[c]) {
  case PRESENT:
    return 0;
  case ZEROED:
    return NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO;
  default:
    if (backing_zero)
      return NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO;
    return layer ? NBDKIT_EXTENT_HOLE : 0;
  }
}

static int
test_extents (void *handle, uint32_t count, uint64_t off, uint32_t flags,
              struct nbdkit_extents *extents)
{
  struct handle *h = handle;
  struct qcow2_hints *hints = nbdkit_qcow2_hints ();
  bool layer = hints->layer_extents;
  int r = 0;

  (void) flags;
  if (layer) {
    hints->layer_disk = (uintptr_t) h->img + h->kind;
    hints->layer_grain = grain;
  }
  if (h->kind != IMAGE)
    return nbdkit_add_extent (extents, off, count, 0);
  dawdle ();
  pthread_mutex_lock (&lock);
  if (layer)
    h->img->counts.layer_extents++;
  else
    h->img->counts.extents++;
  for (int64_t c = off / cluster;
       r == 0 && c <= (int64_t) (off + count - 1) / cluster; ++c)
    r = nbdkit_add_extent (extents, c * cluster, cluster,
                           type_locked (h->img, c, layer));
  pthread_mutex_unlock (&lock);
  dawdle ();
  return r;
}

static int
test_cache (void *handle, uint32_t count, uint64_t off, uint32_t flags)
{
  (void) handle;
  (void) count;
  (void) off;
  (void) flags;
  return 0;
}

static struct nbdkit_plugin plugin = {
  .name = "cowmergetest",
  .unload = test_unload,
  .config = test_config,
  .open = test_open,
  .close = test_close,
  .get_size = test_get_size,
  .block_size = test_block_size,
  .can_write = test_can_write,
  .can_flush = yes,
  .can_trim = yes,
  .can_zero = yes,
  .can_fast_zero = yes,
  .can_extents = yes,
  .can_multi_conn = yes,
  .can_fua = test_can_fua,
  .can_cache = test_can_cache,
  .pread = test_pread,
  .pwrite = test_pwrite,
  .flush = test_flush,
  .zero = test_zero,
  .trim = test_trim,
  .extents = test_extents,
  .cache = test_cache,
  .errno_is_preserved = 1,
};

NBDKIT_REGISTER_PLUGIN (plugin)
