/* SPDX-License-Identifier: BSD-3-Clause */
/* The cowmerge filter: merges small writes, and the copying that goes with
 * them in an overlay image, into writes of whole clusters.
 *
 * This file has the callbacks and parameters only.  Where things are:
 *
 *   block     the buffer of a cluster, and the pool of these
 *   claim     which clusters have a request under way
 *   presence  which clusters the image has
 *   layer     how the plugin is asked for that
 *   overlay   the blocks of one export, for all of its connections
 *   writeout  blocks -> plugin
 *   writer    the threads that do it in the background
 *   merge     write, zero, trim
 *   view      read, extents
 *   below     requests to the plugin
 *
 * Which connection does what: a write-out goes down by the connection of
 * whoever needs it: the writer that completes a cluster or needs memory,
 * the client that flushes, any writing connection for what happens in the
 * background.  This is right since all connections of an export see the
 * same data below: where the layer below does not promise that (multi-conn),
 * or does not say enough to merge anything, the filter steps aside and all
 * requests pass as they are.
 *
 * The end: a connection that wrote anything writes out all that is
 * buffered before it ends, in .finalize, the last moment at which it may
 * still call down.  So nothing depends on which connection ends last, or
 * on another one getting that far.
 *
 * Errors of late write-outs: the overlay counts them, each connection
 * remembers the count it reported last.
 *
 * Locks: the overlay's, for the fields of a handle too.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-filter.h>

#include "scope-lock.h"

#include "below.h"
#include "cowmerge.h"
#include "layer.h"
#include "merge.h"
#include "overlay.h"
#include "view.h"
#include "writeout.h"
#include "writer.h"

uint64_t cowmerge_max = 32 * 1024 * 1024;
unsigned cowmerge_delay = 1000;
uint32_t cowmerge_read_gap = 16384;

/* Clusters of qcow2 are at most 2M; other filters might ask for more. */
#define MAX_CLUSTER (32 * 1024 * 1024)

/* -D cowmerge.stats=1: print what was merged when an export closes. */
NBDKIT_DLL_PUBLIC int cowmerge_debug_stats;

static int thread_model;

struct handle {
  char *exportname;
  struct overlay *ov;           /* NULL = pass everything as it is */
  struct lender lender;
  bool can_write, can_flush, can_zero;
  bool pass_fua;                /* else a flush at the end makes up for it */
  bool wrote;                   /* it may have something buffered */
  unsigned errors_seen;         /* overlay.error_gen when last reported */
};

/* The one place where an error leaves the filter. */
static int
fail (int *err, int r)
{
  if (r >= 0)
    return 0;
  *err = -r;
  return -1;
}

static int
parse_bytes (const char *key, const char *value, int64_t min, int64_t max,
             int64_t *ret)
{
  int64_t r = nbdkit_parse_size (value);

  if (r == -1)
    return -1;
  if (r < min || r > max) {
    nbdkit_error ("%s must be between %" PRIi64 " and %" PRIi64 " bytes",
                  key, min, max);
    return -1;
  }
  *ret = r;
  return 0;
}

static int
cowmerge_config (nbdkit_next_config *next, nbdkit_backend *nxdata,
                 const char *key, const char *value)
{
  int64_t r;

  if (strcmp (key, "cowmerge-max") == 0) {
    if (parse_bytes (key, value, 1, INT64_MAX, &r) == -1)
      return -1;
    cowmerge_max = r;
    return 0;
  }
  if (strcmp (key, "cowmerge-delay") == 0)
    return nbdkit_parse_unsigned (key, value, &cowmerge_delay);
  if (strcmp (key, "cowmerge-read-gap") == 0) {
    if (parse_bytes (key, value, 0, MAX_CLUSTER, &r) == -1)
      return -1;
    cowmerge_read_gap = r;
    return 0;
  }
  return next (nxdata, key, value);
}

#define cowmerge_config_help \
  "cowmerge-max=SIZE         Memory for buffered clusters (default 32M).\n" \
  "cowmerge-delay=MS         Write out after so many milliseconds (1000).\n" \
  "cowmerge-read-gap=SIZE    Read parts so far apart together (16k)."

static int
cowmerge_config_complete (nbdkit_next_config_complete *next,
                          nbdkit_backend *nxdata)
{
  if (layer_init () == -1)
    return -1;
  return next (nxdata);
}

static int
cowmerge_get_ready (int final_thread_model)
{
  thread_model = final_thread_model;
  block_pool_init (cowmerge_max);
  layer_ready ();
  return 0;
}

static bool
work_on (struct overlay *ov, void *wake)
{
  return writeout_due (ov, NULL, wake);
}

static bool
work (int64_t *wake)
{
  return overlay_each (work_on, wake);
}

static int
cowmerge_after_fork (nbdkit_backend *nxdata)
{
  (void) nxdata;
  /* In all other models only one request at a time may go down. */
  if (thread_model != NBDKIT_THREAD_MODEL_PARALLEL)
    return 0;
  return writer_start (work);
}

static void
cowmerge_cleanup (nbdkit_backend *nxdata)
{
  (void) nxdata;
  writer_stop ();
}

static void
cowmerge_unload (void)
{
  block_pool_drain ();
}

static void *
cowmerge_open (nbdkit_next_open *next, nbdkit_context *nxdata,
               int readonly, const char *exportname, int is_tls)
{
  struct handle *h;

  (void) is_tls;
  if (next (nxdata, readonly, exportname) == -1)
    return NULL;

  h = calloc (1, sizeof *h);
  if (h)
    h->exportname = strdup (exportname);
  if (h == NULL || h->exportname == NULL) {
    nbdkit_error ("cowmerge: malloc: %m");
    free (h);
    return NULL;
  }
  list_init (&h->lender.link);
  return h;
}

/* Why nothing can be merged on this connection; NULL if it can. */
static const char *
why_not (nbdkit_next *next, uint32_t cluster)
{
  if (cluster < 512 || cluster > MAX_CLUSTER || (cluster & (cluster - 1)))
    return "the layer below does not tell its cluster size";
  if (block_cost (cluster) > cowmerge_max)
    return "cowmerge-max is too small for a cluster of this image";
  if (next->can_extents (next) != 1)
    return "the layer below has no extents";
  if (next->can_multi_conn (next) != 1)
    return "the layer below is not consistent between connections "
           "(multi-conn)";
  return NULL;
}

static int
cowmerge_prepare (nbdkit_next *next, void *handle, int readonly)
{
  struct handle *h = handle;
  uint32_t minimum, cluster, maximum;
  struct layer_facts facts;
  struct overlay_key key = { .name = h->exportname };
  const char *reason;
  int64_t size;
  int r;

  (void) readonly;
  size = next->get_size (next);
  if (size == -1 ||
      next->block_size (next, &minimum, &cluster, &maximum) == -1)
    return -1;
  r = next->can_write (next);
  if (r == -1)
    return -1;
  h->can_write = r;
  h->can_flush = next->can_flush (next) == 1;
  h->can_zero = next->can_zero (next) > NBDKIT_ZERO_NONE;
  h->pass_fua = next->can_fua (next) == NBDKIT_FUA_NATIVE || !h->can_flush;

  reason = why_not (next, cluster);
  if (reason || size == 0) {
    if (h->can_write && reason)
      nbdkit_error ("cowmerge: warning: export \"%s\": writes are not merged: "
                    "%s", h->exportname, reason);
    return 0;
  }

  if (layer_ask (next, size, &facts) < 0)
    return -1;
  key.disk = facts.disk;
  if (overlay_attach (&key, size, cluster, facts.grain, &h->ov) < 0) {
    h->ov = NULL;
    return -1;
  }
  OVERLAY_LOCK (h->ov);
  h->errors_seen = h->ov->error_gen;
  h->lender.next = next;
  if (h->can_write)
    list_append (&h->ov->lenders, &h->lender.link);
  return 0;
}

static void
print_stats (struct overlay *ov)
{
  struct overlay_counts c;

  {
    OVERLAY_LOCK (ov);
    c = ov->counts;
  }
  nbdkit_debug ("cowmerge: export \"%s\": %" PRIu64 " pieces merged, "
                "%" PRIu64 " requests straight, %" PRIu64 " clusters complete, "
                "%" PRIu64 " in part, %" PRIu64 " layer queries",
                ov->key.name, c.merged, c.straight, c.complete, c.partial,
                c.queries);
}

/* The connection may not call down any more.  Called twice if .finalize
 * was reached.
 */
static void
detach (struct handle *h)
{
  if (h->ov == NULL)
    return;
  {
    OVERLAY_LOCK (h->ov);
    list_remove (&h->lender.link);
    while (h->lender.users > 0)
      claim_wait_locked (&h->ov->claims, &h->ov->lock);
  }
  if (cowmerge_debug_stats)
    print_stats (h->ov);
  overlay_detach (h->ov);
  h->ov = NULL;
}

static int
cowmerge_finalize (nbdkit_next *next, void *handle)
{
  struct handle *h = handle;
  int r = 0;

  if (h->ov && __atomic_load_n (&h->wrote, __ATOMIC_RELAXED))
    r = writeout_all (h->ov, next);
  if (r < 0) {
    errno = -r;
    nbdkit_error ("cowmerge: export \"%s\": not all buffered data could be "
                  "written out when a connection ended: %m",
                  h->exportname);
  }
  detach (h);
  return 0;
}

static void
cowmerge_close (void *handle)
{
  struct handle *h = handle;

  detach (h);
  free (h->exportname);
  free (h);
}

/* What is buffered can be flushed, whatever the layer below can. */
static int
cowmerge_can_flush (nbdkit_next *next, void *handle)
{
  struct handle *h = handle;

  return h->ov && h->can_write ? 1 : next->can_flush (next);
}

static int
cowmerge_can_fua (nbdkit_next *next, void *handle)
{
  struct handle *h = handle;
  int r = next->can_fua (next);

  /* An emulated one would write out everything. */
  return h->ov && r > NBDKIT_FUA_NONE ? NBDKIT_FUA_NATIVE : r;
}

static int
cowmerge_pread (nbdkit_next *next, void *handle, void *buf, uint32_t count,
                uint64_t off, uint32_t flags, int *err)
{
  struct handle *h = handle;

  if (h->ov == NULL)
    return next->pread (next, buf, count, off, flags, err);
  return fail (err, view_read (h->ov, next, buf, count, off));
}

static struct merge_request
new_request (struct handle *h, nbdkit_next *next, uint32_t flags)
{
  const bool fua = flags & NBDKIT_FLAG_FUA;

  if (!__atomic_load_n (&h->wrote, __ATOMIC_RELAXED))
    __atomic_store_n (&h->wrote, true, __ATOMIC_RELAXED);
  return (struct merge_request) {
    .ov = h->ov, .next = next, .fua = fua, .can_zero = h->can_zero,
    .down_flags = fua && h->pass_fua ? NBDKIT_FLAG_FUA : 0,
  };
}

static int
cowmerge_pwrite (nbdkit_next *next, void *handle, const void *buf,
                 uint32_t count, uint64_t off, uint32_t flags, int *err)
{
  struct handle *h = handle;
  struct merge_request rq;
  int64_t wake = INT64_MAX;

  if (h->ov == NULL)
    return next->pwrite (next, buf, count, off, flags, err);

  /* Nobody else looks after what is old. */
  while (!writer_running () && writeout_due (h->ov, next, &wake))
    ;
  rq = new_request (h, next, flags);
  return fail (err, merge_write (&rq, buf, count, off));
}

static int
cowmerge_flush (nbdkit_next *next, void *handle, uint32_t flags, int *err)
{
  struct handle *h = handle;
  int r, r2 = 0;

  if (h->ov == NULL)
    return next->flush (next, flags, err);

  r = writeout_all (h->ov, next);
  if (h->can_flush)
    r2 = below_flush (next);
  if (r == 0)
    r = r2;

  /* Report each late error to each connection, even if the data is safe
   * by now: the client may have been told that it was.
   */
  OVERLAY_LOCK (h->ov);
  if (h->errors_seen != h->ov->error_gen) {
    h->errors_seen = h->ov->error_gen;
    if (r == 0)
      r = h->ov->error;
  }
  return fail (err, r);
}

static int
cowmerge_zero (nbdkit_next *next, void *handle, uint32_t count, uint64_t off,
               uint32_t flags, int *err)
{
  struct handle *h = handle;
  struct merge_request rq;

  if (h->ov == NULL)
    return next->zero (next, count, off, flags, err);
  rq = new_request (h, next, flags);
  flags &= ~NBDKIT_FLAG_FUA;
  return fail (err, merge_zero (&rq, count, off, flags));
}

static int
cowmerge_trim (nbdkit_next *next, void *handle, uint32_t count, uint64_t off,
               uint32_t flags, int *err)
{
  struct handle *h = handle;
  struct merge_request rq;

  if (h->ov == NULL)
    return next->trim (next, count, off, flags, err);
  rq = new_request (h, next, flags);
  return fail (err, merge_trim (&rq, count, off));
}

static int
cowmerge_extents (nbdkit_next *next, void *handle, uint32_t count,
                  uint64_t off, uint32_t flags,
                  struct nbdkit_extents *extents, int *err)
{
  struct handle *h = handle;

  if (h->ov == NULL)
    return next->extents (next, count, off, flags, extents, err);
  return fail (err, view_extents (h->ov, next, count, off, flags, extents));
}

static struct nbdkit_filter filter = {
  .name              = "cowmerge",
  .longname          = "nbdkit cowmerge filter",
  .description       = "Merges small writes to a qcow2 overlay into whole "
                       "clusters.",
  .unload            = cowmerge_unload,
  .config            = cowmerge_config,
  .config_complete   = cowmerge_config_complete,
  .config_help       = cowmerge_config_help,
  .get_ready         = cowmerge_get_ready,
  .after_fork        = cowmerge_after_fork,
  .cleanup           = cowmerge_cleanup,
  .open              = cowmerge_open,
  .close             = cowmerge_close,
  .prepare           = cowmerge_prepare,
  .finalize          = cowmerge_finalize,
  .can_flush         = cowmerge_can_flush,
  .can_fua           = cowmerge_can_fua,
  .pread             = cowmerge_pread,
  .pwrite            = cowmerge_pwrite,
  .flush             = cowmerge_flush,
  .trim              = cowmerge_trim,
  .zero              = cowmerge_zero,
  .extents           = cowmerge_extents,
};

extern struct nbdkit_filter *filter_init (void);
NBDKIT_REGISTER_FILTER (filter)
