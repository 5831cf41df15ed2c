/* SPDX-License-Identifier: BSD-3-Clause */
/* nbdkit-compress-filter: store written clusters compressed.
 *
 * The qcow2 plugin below compresses, in the thread that calls it, each
 * whole cluster of a write that carries the compress hint.  This filter
 * cuts writes at cluster borders, and sends the pieces down in several
 * threads (pool.c).  Whole clusters that are all zero become zero
 * requests; parts of clusters pass as plain writes.
 *
 * Pieces of one request reach the plugin in any order, which the NBD
 * protocol allows (a write is not atomic), and the request ends after the
 * last of them.
 *
 * The filter never looks at what is compressed: codec, level and format
 * are the plugin's business, and the data is right whatever it does.
 */

#include <config.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <dlfcn.h>

#include <nbdkit-filter.h>

#include "qcow2-hints.h"
#include "pool.h"

#define MAX_THREADS 256
#define MAX_LEVEL 22            /* of zstd; the plugin knows more */

/* Smaller clusters are handed out in batches of this size, so that the
 * work on a piece outweighs handing it out.
 */
#define MIN_PIECE 65536

static unsigned compress_threads;       /* 0: one for each CPU */
static int compress_level;              /* 0: the codec's default */
static unsigned compress_window = 4096;

static qcow2_hints_fn *get_hints;
static unsigned slots;

struct handle {
  uint64_t disk_size;
  uint32_t cluster;             /* power of two */
  bool zeroes;                  /* the plugin has a zero request */
  bool flush;                   /* it has a flush request */
};

static int
parse_threads (const char *value)
{
  if (nbdkit_parse_unsigned ("compress-threads", value,
                             &compress_threads) == -1)
    return -1;
  if (compress_threads < 1 || compress_threads > MAX_THREADS) {
    nbdkit_error ("compress: compress-threads=%s is out of range (1 to %d)",
                  value, MAX_THREADS);
    return -1;
  }
  return 0;
}

static int
parse_level (const char *value)
{
  if (nbdkit_parse_int ("compress-level", value, &compress_level) == -1)
    return -1;
  if (compress_level < 1 || compress_level > MAX_LEVEL) {
    nbdkit_error ("compress: compress-level=%s is out of range "
                  "(1 to 9 for zlib images, 1 to %d for zstd images)",
                  value, MAX_LEVEL);
    return -1;
  }
  return 0;
}

static int
parse_window (const char *value)
{
  const int64_t i = nbdkit_parse_size (value);

  if (i == -1)
    return -1;
  if (i != 4096 && i != 32768) {
    nbdkit_error ("compress: compress-window=%s must be 4k or 32k", value);
    return -1;
  }
  compress_window = i;
  return 0;
}

static int
compress_config (nbdkit_next_config *next, nbdkit_backend *nxdata,
                 const char *key, const char *value)
{
  if (strcmp (key, "compress-threads") == 0)
    return parse_threads (value);
  if (strcmp (key, "compress-level") == 0)
    return parse_level (value);
  if (strcmp (key, "compress-window") == 0)
    return parse_window (value);
  return next (nxdata, key, value);
}

#define compress_config_help \
  "compress-threads=N    Clusters being compressed at once (default: the\n" \
  "                      number of online CPUs).\n" \
  "compress-level=N      1 (fastest) to 9 for zlib images, to 22 for zstd\n" \
  "                      images (default: the codec's).\n" \
  "compress-window=SIZE  4k (default) or 32k: how far back repetitions are\n" \
  "                      looked for, zlib images only."

static void
set_hints (void)
{
  struct qcow2_hints *hints = get_hints ();

  hints->compress_level = compress_level;
  hints->compress_window = compress_window;
  hints->compress = true;
}

static void
clear_hints (void)
{
  get_hints ()->compress = false;
}

static int
find_plugin (void)
{
  const struct qcow2_hints *hints;

  get_hints = (qcow2_hints_fn *) dlsym (RTLD_DEFAULT, QCOW2_HINTS_SYMBOL);
  if (get_hints == NULL) {
    nbdkit_error ("compress: this filter works only over the qcow2 plugin of "
                  "nbdkit-qcow2, since only a qcow2 image can hold compressed "
                  "clusters");
    return -1;
  }
  hints = get_hints ();
  if (hints->version != QCOW2_HINTS_VERSION ||
      hints->size < offsetof (struct qcow2_hints, grow_size)) {
    nbdkit_error ("compress: filter and qcow2 plugin are not of the same "
                  "version of nbdkit-qcow2 (their interfaces are %d and %u): "
                  "install both from one build",
                  QCOW2_HINTS_VERSION, (unsigned) hints->version);
    return -1;
  }
  return 0;
}

/* From here to .after_fork the main thread carries the hint, so that a
 * plugin that opens its image meanwhile can refuse one that cannot be
 * compressed before the server starts.
 */
static int
compress_config_complete (nbdkit_next_config_complete *next,
                          nbdkit_backend *nxdata)
{
  if (find_plugin () == -1)
    return -1;
  set_hints ();
  return next (nxdata);
}

static int
compress_get_ready (int thread_model)
{
  const long cpus = sysconf (_SC_NPROCESSORS_ONLN);

  slots = compress_threads;
  if (slots == 0)
    slots = cpus < 1 ? 1 : cpus > MAX_THREADS ? MAX_THREADS : cpus;

  /* Another filter wants one request at a time: it gets one. */
  if (thread_model != NBDKIT_THREAD_MODEL_PARALLEL) {
    nbdkit_debug ("compress: one thread only: the thread model is not "
                  "parallel");
    slots = 1;
  }
  return 0;
}

static int
compress_after_fork (nbdkit_backend *nxdata)
{
  int r;

  (void) nxdata;
  clear_hints ();
  r = pool_start (slots);
  if (r < 0) {
    nbdkit_error ("compress: cannot start %u threads: %s",
                  slots, strerror (-r));
    return -1;
  }
  return 0;
}

static void
compress_cleanup (nbdkit_backend *nxdata)
{
  (void) nxdata;
  pool_stop ();
}

static void *
compress_open (nbdkit_next_open *next, nbdkit_context *nxdata,
               int readonly, const char *exportname, int is_tls)
{
  struct handle *h;
  int r;

  (void) is_tls;
  if (!readonly)
    set_hints ();
  r = next (nxdata, readonly, exportname);
  clear_hints ();
  if (r == -1)
    return NULL;

  h = calloc (1, sizeof *h);
  if (h == NULL)
    nbdkit_error ("compress: malloc: %m");
  return h;
}

static void
compress_close (void *handle)
{
  free (handle);
}

static int
compress_prepare (nbdkit_next *next, void *handle, int readonly)
{
  struct handle *h = handle;
  const int64_t size = next->get_size (next);
  const int can_write = next->can_write (next);
  const int can_zero = next->can_zero (next);
  const int can_flush = next->can_flush (next);
  uint32_t minimum, maximum;

  (void) readonly;
  if (size == -1 || can_write == -1 || can_zero == -1 || can_flush == -1 ||
      next->block_size (next, &minimum, &h->cluster, &maximum) == -1)
    return -1;

  /* A filter between here and the plugin hides the size of clusters. */
  if (h->cluster == 0)
    h->cluster = 65536;
  h->disk_size = size;
  h->zeroes = can_zero == NBDKIT_ZERO_NATIVE;
  h->flush = can_flush == 1;
  return 0;
}

/* The one place where -1 and *ERR come from.  R is -errno. */
static int
fail (int *err, int r)
{
  *err = r < 0 ? -r : EIO;
  return -1;
}

static int
send_plain (nbdkit_next *next, const void *buf, uint32_t count,
            uint64_t offset, uint32_t flags)
{
  int err = 0;

  if (next->pwrite (next, buf, count, offset, flags, &err) == 0)
    return 0;
  return -(err ? err : EIO);
}

static int
send_compressed (nbdkit_next *next, const void *buf, uint32_t count,
                 uint64_t offset, uint32_t flags)
{
  int r;

  set_hints ();
  r = send_plain (next, buf, count, offset, flags);
  clear_hints ();
  return r;
}

static int
send_zero (nbdkit_next *next, uint32_t count, uint64_t offset, uint32_t flags)
{
  int err = 0;

  if (next->zero (next, count, offset, flags | NBDKIT_FLAG_MAY_TRIM,
                  &err) == 0)
    return 0;
  return -(err ? err : EIO);
}

/* The whole clusters of one write. */
struct write {
  struct job job;               /* first */
  const struct handle *h;
  nbdkit_next *next;
  const uint8_t *buf;
  uint32_t count, piece;        /* bytes of all, bytes of one part */
  uint64_t offset;
  uint32_t flags;
};

/* Zero clusters that one thread found and did not send down yet. */
struct zeroes {
  uint32_t pos, count;          /* in write.buf */
};

static bool
is_zero (const uint8_t *buf, size_t len)
{
  const size_t first = len < 16 ? len : 16;

  for (size_t i = 0; i < first; ++i)
    if (buf[i])
      return false;
  return memcmp (buf, buf + first, len - first) == 0;
}

static int
flush_zeroes (const struct write *w, struct zeroes *z)
{
  const uint32_t count = z->count;

  z->count = 0;
  if (count == 0)
    return 0;
  return send_zero (w->next, count, w->offset + z->pos, w->flags);
}

static int
add_zeroes (const struct write *w, struct zeroes *z,
            uint32_t pos, uint32_t count)
{
  int r = 0;

  if (z->pos + z->count != pos)
    r = flush_zeroes (w, z);
  if (z->count == 0)
    z->pos = pos;
  z->count += count;
  return r;
}

/* The end of the clusters from POS on, not beyond END, that are all zero,
 * as the first one is or is not (*ZERO).
 */
static uint32_t
find_run (const struct write *w, uint32_t pos, uint32_t end, bool *zero)
{
  const uint32_t cluster = w->h->cluster;
  uint32_t n = end - pos < cluster ? end - pos : cluster;

  *zero = w->h->zeroes && is_zero (w->buf + pos, n);
  do {
    pos += n;
    n = end - pos < cluster ? end - pos : cluster;
  } while (n > 0 &&
           *zero == (w->h->zeroes && is_zero (w->buf + pos, n)));
  return pos;
}

static int
write_part (const struct write *w, unsigned part, struct zeroes *z)
{
  uint32_t pos = part * w->piece, run_end;
  const uint32_t end =
    w->count - pos < w->piece ? w->count : pos + w->piece;
  int r = 0;

  for (; r == 0 && pos < end; pos = run_end) {
    bool zero;

    run_end = find_run (w, pos, end, &zero);
    if (zero)
      r = add_zeroes (w, z, pos, run_end - pos);
    else
      r = send_compressed (w->next, w->buf + pos, run_end - pos,
                           w->offset + pos, w->flags);
  }
  return r;
}

/* Neighbouring zero clusters go down as one request, so far as one thread
 * gets them one after the other.
 */
static void
work (struct job *job)
{
  struct write *w = (struct write *) job;
  struct zeroes z = { 0, 0 };
  int part, r;

  while ((part = pool_claim (job)) >= 0) {
    r = write_part (w, part, &z);
    if (r < 0)
      pool_fail (job, r);
  }
  r = flush_zeroes (w, &z);
  if (r < 0)
    pool_fail (job, r);
}

/* Write whole clusters. */
static int
send_clusters (nbdkit_next *next, const struct handle *h,
               const uint8_t *buf, uint32_t count, uint64_t offset,
               uint32_t flags)
{
  struct write w = {
    .job.work = work, .h = h, .next = next,
    .buf = buf, .count = count, .offset = offset, .flags = flags,
    .piece = h->cluster < MIN_PIECE ? MIN_PIECE : h->cluster,
  };

  w.job.nr = count / w.piece + (count % w.piece != 0);
  return pool_run (&w.job);
}

static int
compress_pwrite (nbdkit_next *next, void *handle,
                 const void *buf, uint32_t count, uint64_t offset,
                 uint32_t flags, int *err)
{
  const struct handle *h = handle;
  const uint64_t mask = h->cluster - 1;
  const uint64_t end = offset + count;
  const uint64_t first = (offset + mask) & ~mask;
  uint64_t last = end & ~mask;
  bool flush_after = false;
  int r = 0;

  if (end == h->disk_size)
    last = end;                 /* the last cluster is short, but whole */
  if (first >= last) {
    r = send_plain (next, buf, count, offset, flags);
    return r < 0 ? fail (err, r) : 0;
  }

  /* One flush for all pieces, where there are several. */
  if ((flags & NBDKIT_FLAG_FUA) && h->flush && count > h->cluster) {
    flags &= ~NBDKIT_FLAG_FUA;
    flush_after = true;
  }

  if (first > offset)
    r = send_plain (next, buf, first - offset, offset, flags);
  if (r == 0 && last < end)
    r = send_plain (next, (const uint8_t *) buf + (last - offset), end - last,
                    last, flags);
  if (r == 0)
    r = send_clusters (next, h, (const uint8_t *) buf + (first - offset),
                       last - first, first, flags);
  if (r < 0)
    return fail (err, r);

  /* This sets *ERR itself. */
  return flush_after ? next->flush (next, 0, err) : 0;
}

static struct nbdkit_filter filter = {
  .name              = "compress",
  .longname          = "nbdkit compress filter",
  .description       = "Store written clusters of a qcow2 image compressed.",
  .config            = compress_config,
  .config_complete   = compress_config_complete,
  .config_help       = compress_config_help,
  .get_ready         = compress_get_ready,
  .after_fork        = compress_after_fork,
  .cleanup           = compress_cleanup,
  .open              = compress_open,
  .close             = compress_close,
  .prepare           = compress_prepare,
  .pwrite            = compress_pwrite,
};

extern struct nbdkit_filter *filter_init (void);
NBDKIT_REGISTER_FILTER (filter)
