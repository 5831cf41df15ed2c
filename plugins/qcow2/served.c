/* SPDX-License-Identifier: BSD-3-Clause */
/* One shared image object per file, for all connections: so a flush on one
 * connection covers the writes of all (multi-conn).
 *
 * Exports: the default one is the active layer (or the snapshot that
 * snapshot= names); "@NAME" is the internal snapshot NAME.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "ccache.h"
#include "new-image.h"
#include "options.h"
#include "served.h"

struct served {
  struct image *image;
};

static struct served the_image;
static struct ccache *ccache;

static int
open_image (bool readonly)
{
  const struct image_options opts = {
    .writable = !readonly && options.snapshot == NULL,
    .lock = options.lock,
    .external_deny = options.external_deny,
    .discard = options.discard,
    .detect_zeroes = options.detect_zeroes,
    .metadata_cache = options.metadata_cache,
    .ccache = ccache,
    .backing_format = options.backing_format,
    .data_file = options.create ? NULL : options.data_file,
  };

  return image_open (options.file, false, &opts, &the_image.image);
}

int
served_start (bool readonly)
{
  struct io *io;
  int r;

  r = ccache_create (options.cluster_cache, &ccache);
  if (r < 0) {
    nbdkit_error ("cluster-cache: %s", strerror (-r));
    return r;
  }
  r = options.create ? new_image_create () : 0;
  if (r == 0)
    r = open_image (readonly);
  if (r == 0 && options.snapshot)
    r = image_snapshot (the_image.image, options.snapshot, &io);
  return r;
}

int
served_get (const char *name, struct served **s, struct io **io)
{
  *s = &the_image;
  if (name[0] == '@')
    return image_snapshot (the_image.image, name + 1, io);
  if (options.snapshot)
    return image_snapshot (the_image.image, options.snapshot, io);
  *io = image_io (the_image.image);
  return 0;
}

void
served_put (struct served *s)
{
  (void) s;
}

struct image *
served_image (struct served *s)
{
  return s->image;
}

void
served_stop (void)
{
  int r;

  if (the_image.image) {
    r = image_close (the_image.image);
    if (r < 0)
      nbdkit_error ("%s: closing the image failed: %s; what was written "
                    "since the last flush may be lost",
                    options.file, strerror (-r));
  }
  the_image.image = NULL;
  ccache_free (ccache);
  ccache = NULL;
}

/* "2026-11-30 12:00:00 UTC, 1073741824 bytes" */
static void
describe (const struct snapshot_entry *s, char *buf, size_t len)
{
  time_t t = s->date_sec;
  char date[64];
  struct tm tm;

  if (gmtime_r (&t, &tm) == NULL ||
      strftime (date, sizeof date, "%Y-%m-%d %H:%M:%S UTC", &tm) == 0)
    snprintf (date, sizeof date, "at an unknown time");
  snprintf (buf, len, "internal snapshot %s, %s, %" PRIu64 " bytes",
            s->id, date, s->disk_size);
}

int
served_list (int (*fn) (void *opaque, const char *name,
                        const char *description),
             void *opaque)
{
  const struct snapshot_table *t =
    &image_core (the_image.image)->snapshots;
  char description[256], *name;
  size_t i;
  int r;

  r = fn (opaque, "", "active layer");
  for (i = 0; r == 0 && i < t->nr; ++i) {
    const struct snapshot_entry *s = &t->entries[i];

    describe (s, description, sizeof description);
    if (asprintf (&name, "@%s", s->name[0] ? s->name : s->id) == -1)
      return -1;
    r = fn (opaque, name, description);
    free (name);
  }
  return r;
}
