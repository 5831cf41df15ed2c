/* SPDX-License-Identifier: BSD-3-Clause */
/* nbdkit-preallocate-filter: grow storage ahead of allocating writes.
 *
 * Two ways, chosen when the server starts:
 *
 * - Over the qcow2 plugin of this package each write and zero request
 *   carries the hint to grow the image's file in large steps.  All else
 *   is the plugin's business.
 *
 * - Over any other plugin, for each connection that can do what is needed
 *   for it, zero holes are allocated ahead with zero requests (ahead.c).
 *
 * A connection that can neither is passed through.
 */

#include <config.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <dlfcn.h>

#include <nbdkit-filter.h>

#include "qcow2-hints.h"
#include "ahead.h"

/* The smallest unit in which space is counted: file systems do not
 * allocate less than this.
 */
#define MIN_BLOCK 4096

static uint64_t prealloc_size = UINT64_C (128) << 20;
static uint64_t prealloc_align = UINT64_C (1) << 20;

static qcow2_hints_fn *get_hints;       /* NULL over other plugins */

struct handle {
  char *exportname;
  struct ahead *ahead;          /* NULL: nothing to do here */
};

static int
parse_size (const char *key, const char *value, const char *max_str,
            uint64_t *r)
{
  const int64_t max = nbdkit_parse_size (max_str);
  const int64_t i = nbdkit_parse_size (value);

  if (i == -1)
    return -1;
  if (i < 512 || i > max) {
    nbdkit_error ("preallocate: %s=%s is out of range (512 to %s)",
                  key, value, max_str);
    return -1;
  }
  *r = i;
  return 0;
}

static int
preallocate_config (nbdkit_next_config *next, nbdkit_backend *nxdata,
                    const char *key, const char *value)
{
  if (strcmp (key, "prealloc-size") == 0)
    return parse_size (key, value, "1T", &prealloc_size);

  if (strcmp (key, "prealloc-align") == 0) {
    if (parse_size (key, value, "1G", &prealloc_align) == -1)
      return -1;
    if (prealloc_align & (prealloc_align - 1)) {
      nbdkit_error ("preallocate: %s=%s is not a power of two", key, value);
      return -1;
    }
    return 0;
  }

  return next (nxdata, key, value);
}

#define preallocate_config_help \
  "prealloc-size=SIZE    Grow by this much at a time (default: 128M).\n" \
  "prealloc-align=SIZE   To a multiple of this, a power of two\n" \
  "                      (default: 1M)."

static int
preallocate_get_ready (int thread_model)
{
  struct qcow2_hints *hints;

  (void) thread_model;
  get_hints = (qcow2_hints_fn *) dlsym (RTLD_DEFAULT, QCOW2_HINTS_SYMBOL);
  if (get_hints == NULL)
    return 0;

  hints = get_hints ();
  if (hints->version != QCOW2_HINTS_VERSION ||
      hints->size < offsetof (struct qcow2_hints, layer_extents)) {
    nbdkit_error ("preallocate: filter and qcow2 plugin are not of the same "
                  "version of nbdkit-qcow2 (their interfaces are %d and %u): "
                  "install both from one build",
                  QCOW2_HINTS_VERSION, (unsigned) hints->version);
    return -1;
  }
  return 0;
}

static void *
preallocate_open (nbdkit_next_open *next, nbdkit_context *nxdata,
                  int readonly, const char *exportname, int is_tls)
{
  struct handle *h;

  (void) is_tls;
  if (next (nxdata, readonly, exportname) == -1)
    return NULL;

  h = calloc (1, sizeof *h);
  if (h == NULL || (h->exportname = strdup (exportname)) == NULL) {
    nbdkit_error ("preallocate: malloc: %m");
    free (h);
    return NULL;
  }
  return h;
}

/* Can the plugin do all that is needed here?  1, 0 or -1 (error logged). */
static int
is_able (nbdkit_next *next)
{
  const int can_write = next->can_write (next);
  const int can_zero = next->can_zero (next);
  const int can_trim = next->can_trim (next);
  const int can_extents = next->can_extents (next);
  const char *missing = NULL;

  if (can_write == -1 || can_zero == -1 || can_trim == -1 ||
      can_extents == -1)
    return -1;

  if (!can_write)
    missing = "it is read-only";
  else if (can_zero != NBDKIT_ZERO_NATIVE)
    missing = "the plugin has no efficient zero request";
  else if (!can_extents)
    missing = "the plugin does not say where its holes are";
  else if (!can_trim)
    missing = "the plugin cannot give back space";
  if (missing)
    nbdkit_debug ("preallocate: does nothing here: %s", missing);
  return missing == NULL;
}

static int
preallocate_prepare (nbdkit_next *next, void *handle, int readonly)
{
  struct handle *h = handle;
  uint32_t minimum, preferred, maximum;
  uint64_t block = MIN_BLOCK;
  int r;

  (void) readonly;
  if (get_hints)
    return 0;

  r = is_able (next);
  if (r <= 0)
    return r;
  if (next->block_size (next, &minimum, &preferred, &maximum) == -1)
    return -1;
  while (block < minimum)
    block *= 2;
  h->ahead = ahead_get (h->exportname, block, prealloc_size, prealloc_align);
  return h->ahead == NULL ? -1 : 0;
}

/* Here and not in .close, which has no NEXT, and which nbdkit leaves out
 * when it is being stopped.
 */
static int
preallocate_finalize (nbdkit_next *next, void *handle)
{
  struct handle *h = handle;

  if (h->ahead)
    ahead_put (h->ahead, next);
  h->ahead = NULL;
  return 0;
}

static void
preallocate_close (void *handle)
{
  struct handle *h = handle;

  if (h->ahead)
    ahead_put (h->ahead, NULL);
  free (h->exportname);
  free (h);
}

/* The one place where -1 and *ERR come from. */
static int
fail (int *err, int e)
{
  *err = e ? e : EIO;
  return -1;
}

static void
set_grow (uint64_t size, uint64_t align)
{
  struct qcow2_hints *hints = get_hints ();

  hints->grow_size = size;
  hints->grow_align = align;
}

/* A write or zero request. */
struct request {
  const void *buf;              /* NULL: zero */
  uint32_t count;
  uint64_t offset;
  uint32_t flags;
};

/* Send it down.  0, or an errno value. */
static int
send_request (nbdkit_next *next, const struct request *req)
{
  int r, err = 0;

  if (req->buf)
    r = next->pwrite (next, req->buf, req->count, req->offset, req->flags,
                      &err);
  else
    r = next->zero (next, req->count, req->offset, req->flags, &err);
  if (r == 0)
    return 0;
  return err ? err : EIO;
}

static int
send_hinted (nbdkit_next *next, const struct request *req, int *err)
{
  int e;

  set_grow (prealloc_size, prealloc_align);
  e = send_request (next, req);
  set_grow (0, 0);
  return e ? fail (err, e) : 0;
}

/* Send it down with space allocated ahead of it.  For want of space, once
 * more with nothing ahead, so that a request fails only if it would have
 * failed without this filter.
 */
static int
send_ahead (nbdkit_next *next, struct handle *h,
            const struct request *req, int *err)
{
  const uint64_t end = req->offset + req->count;
  struct range r;
  int e;

  ahead_begin (h->ahead, next, req->offset, end, req->buf != NULL, &r);
  e = send_request (next, req);
  ahead_end (&r);

  if (e && ahead_is_nospace (e) && ahead_give_back (h->ahead, next)) {
    ahead_begin (h->ahead, next, req->offset, end, false, &r);
    e = send_request (next, req);
    ahead_end (&r);
  }
  return e ? fail (err, e) : 0;
}

static int
preallocate_pwrite (nbdkit_next *next, void *handle,
                    const void *buf, uint32_t count, uint64_t offset,
                    uint32_t flags, int *err)
{
  struct handle *h = handle;
  const struct request req = { buf, count, offset, flags };

  if (get_hints)
    return send_hinted (next, &req, err);
  if (h->ahead)
    return send_ahead (next, h, &req, err);
  return next->pwrite (next, buf, count, offset, flags, err);
}

static int
preallocate_zero (nbdkit_next *next, void *handle,
                  uint32_t count, uint64_t offset, uint32_t flags, int *err)
{
  struct handle *h = handle;
  const struct request req = { NULL, count, offset, flags };

  if (get_hints)
    return send_hinted (next, &req, err);

  /* One that may trim is harmless next to another zero request, and what
   * is allocated ahead there is still to be given back.
   */
  if (h->ahead && !(flags & NBDKIT_FLAG_MAY_TRIM))
    return send_ahead (next, h, &req, err);
  return next->zero (next, count, offset, flags, err);
}

static struct nbdkit_filter filter = {
  .name              = "preallocate",
  .longname          = "nbdkit preallocate filter",
  .description       = "Grow storage ahead of allocating writes.",
  .unload            = ahead_unload,
  .config            = preallocate_config,
  .config_help       = preallocate_config_help,
  .get_ready         = preallocate_get_ready,
  .open              = preallocate_open,
  .close             = preallocate_close,
  .prepare           = preallocate_prepare,
  .finalize          = preallocate_finalize,
  .pwrite            = preallocate_pwrite,
  .zero              = preallocate_zero,
};

extern struct nbdkit_filter *filter_init (void);
NBDKIT_REGISTER_FILTER (filter)
