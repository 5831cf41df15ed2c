/* SPDX-License-Identifier: BSD-3-Clause */
/* One shared image object per file, for all connections: so a flush on one
 * connection covers the writes of all (multi-conn).
 *
 * file=, uri=: the image is opened before the server forks, and closed when
 * it stops.  The default export is the active layer (or the snapshot that
 * snapshot= names); "@NAME" is the internal snapshot NAME.
 *
 * dir=: the export NAME is the image DIR/NAME, "NAME@SNAPSHOT" one of its
 * snapshots; opened (with create=true also made) by the first connection,
 * closed after the last one.
 *
 * The list is protected by LOCK_REGISTRY.  An image that is being made, opened
 * or closed is on the list without the lock being held, since that may take
 * long (key derivation, a server far away, the last flush): whoever wants the
 * same image waits, and then looks again; others do not notice.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-file.h"
#include "ccache.h"
#include "jobs.h"
#include "locks.h"
#include "new-image.h"
#include "ondisk.h"
#include "options.h"
#include "served.h"

struct served {
  char *path;                   /* or URI */
  struct image *image;
  bool busy;                    /* being opened or closed */
  unsigned refs;
  struct served *next;
};

static struct ranked_mutex lock;
static pthread_cond_t no_longer_busy = PTHREAD_COND_INITIALIZER;
static struct served *list;
static struct ccache *ccache;
static bool readonly;

static enum image_repair
repair_option (void)
{
  if (options.repair == NULL)
    return IMAGE_REPAIR_NONE;
  return strcmp (options.repair, "all") == 0 ? IMAGE_REPAIR_ALL
    : IMAGE_REPAIR_LEAKS;
}

/* Take S off the list, and tell those who wait for it. */
static void
remove_locked (struct served *s)
{
  struct served **p;

  for (p = &list; *p != s; p = &(*p)->next)
    ;
  *p = s->next;
  pthread_cond_broadcast (&no_longer_busy);
}

static void
free_served (struct served *s)
{
  free (s->path);
  free (s);
}

/* A new entry for PATH on the list, busy, with one reference. */
static int
add_locked (const char *path, struct served **ret)
{
  struct served *s;

  s = calloc (1, sizeof *s);
  if (s == NULL || (s->path = strdup (path)) == NULL) {
    nbdkit_error ("out of memory");
    free (s);
    return -ENOMEM;
  }
  s->busy = true;
  s->refs = 1;
  s->next = list;
  list = s;
  *ret = s;
  return 0;
}

/* Open the image of S, with CREATE after making it.  If that fails, S is
 * gone.
 */
static int
open_busy (struct served *s, bool create)
{
  const struct image_options opts = {
    .writable = !readonly &&
      (options.snapshot == NULL || options_change_image ()),
    .lock = options.lock,
    .external_deny = options.external_deny,
    .discard = options.discard,
    .detect_zeroes = options.detect_zeroes,
    .metadata_cache = options.metadata_cache,
    .ccache = ccache,
    .backing_format = options.backing_format,
    .passphrase = options.passphrase,
    .repair = repair_option (),
    .check = &jobs_check_options,
    .data_file = options.create ? NULL : options.data_file,
  };
  int r = 0;

  if (create)
    r = new_image_create (s->path);
  if (r == 0)
    r = image_open (s->path, options.uri != NULL, &opts, &s->image);

  MUTEX_SCOPE (&lock);

  if (r < 0) {
    remove_locked (s);
    free_served (s);
    return r;
  }
  s->busy = false;
  pthread_cond_broadcast (&no_longer_busy);
  return 0;
}

/* Close the image of S, to which there is no reference, and forget it. */
static void
close_busy (struct served *s)
{
  int r;

  r = image_close (s->image);
  if (r < 0)
    nbdkit_error ("%s: closing the image failed: %s; what was written since "
                  "the last flush may be lost", s->path, strerror (-r));
  {
    MUTEX_SCOPE (&lock);
    remove_locked (s);
  }
  free_served (s);
}

int
served_start (bool ro)
{
  const char *path = options.file ? options.file : options.uri;
  struct served *s;
  struct io *io;
  int r;

  ranked_mutex_init (&lock, LOCK_REGISTRY);
  readonly = ro;
  if (ro && options_change_image ()) {
    nbdkit_error ("repair=, resize=, snapshot-create=, snapshot-apply=, "
                  "snapshot-delete= and create=true change the image, which "
                  "nbdkit -r forbids");
    return -EROFS;
  }
  r = ccache_create (options.cluster_cache, &ccache);
  if (r < 0) {
    nbdkit_error ("cluster-cache: %s", strerror (-r));
    return r;
  }
  if (options.dir) {
    if (access (options.dir, R_OK | X_OK) == -1) {
      r = -errno;
      nbdkit_error ("dir=%s: %s", options.dir, strerror (-r));
    }
    return r;
  }
  if (options.check)
    jobs_check (path, options.uri != NULL);
  {
    MUTEX_SCOPE (&lock);
    r = add_locked (path, &s);
  }
  if (r == 0)
    r = open_busy (s, options.create);
  if (r == 0 && !readonly)
    r = jobs_run (s->image);
  if (r == 0 && options.snapshot)
    r = image_snapshot (s->image, options.snapshot, &io);
  return r;
}

/* There are no connections any more. */
void
served_stop (void)
{
  while (list)
    close_busy (list);
  ccache_free (ccache);
  ccache = NULL;
}

struct image *
served_image (struct served *s)
{
  return s->image;
}

/* The entry of PATH once it is not busy, with a reference more; or NULL. */
static struct served *
find_locked (const char *path)
{
  struct served *s;

 again:
  for (s = list; s; s = s->next) {
    if (strcmp (s->path, path) != 0)
      continue;
    if (s->busy) {
      ranked_mutex_wait (&no_longer_busy, &lock);
      goto again;
    }
    s->refs++;
    return s;
  }
  return NULL;
}

/* The image of PATH, open or to be opened; with CREATE also to be made. */
static int
get_path (const char *path, bool create, struct served **s)
{
  int r;

  {
    MUTEX_SCOPE (&lock);

    *s = find_locked (path);
    if (*s)
      return 0;
    create = create && access (path, F_OK) == -1 && errno == ENOENT;
    if (create && readonly) {
      nbdkit_error ("%s: does not exist, and is not created since the "
                    "server is read-only", path);
      return -ENOENT;
    }
    r = add_locked (path, s);
  }
  return r < 0 ? r : open_busy (*s, create);
}

/* DIR/NAME, or NULL after a message.  LEN bytes of NAME are the name. */
static char *
path_of (const char *name, size_t len)
{
  char *path;

  if (len == 0 || name[0] == '.' || memchr (name, '/', len)) {
    nbdkit_error ("export \"%s\": with dir= an export is the name of an "
                  "image, without \"/\" and not beginning with \".\"", name);
    return NULL;
  }
  if (asprintf (&path, "%s/%.*s", options.dir, (int) len, name) == -1) {
    nbdkit_error ("out of memory");
    return NULL;
  }
  return path;
}

static int
get_in_dir (const char *name, struct served **s, struct io **io)
{
  const char *at = strrchr (name, '@');
  const char *snapshot = NULL;
  char *path;
  int r;

  path = path_of (name, strlen (name));
  if (path && at && access (path, F_OK) == -1) {
    free (path);
    path = path_of (name, at - name);
    snapshot = at + 1;
  }
  if (path == NULL)
    return -EINVAL;
  /* An image that is not there has no snapshots. */
  r = get_path (path, options.create && snapshot == NULL, s);
  free (path);
  if (r < 0)
    return r;
  if (snapshot == NULL) {
    *io = image_io ((*s)->image);
    return 0;
  }
  r = image_snapshot ((*s)->image, snapshot, io);
  if (r < 0)
    served_put (*s);
  return r;
}

int
served_get (const char *name, struct served **s, struct io **io)
{
  struct image *image;
  int r = 0;

  if (options.dir)
    return get_in_dir (name, s, io);

  image = list->image;
  if (name[0] == '@')
    r = image_snapshot (image, name + 1, io);
  else if (options.snapshot)
    r = image_snapshot (image, options.snapshot, io);
  else
    *io = image_io (image);
  if (r < 0)
    return r;

  MUTEX_SCOPE (&lock);
  *s = list;
  list->refs++;
  return 0;
}

void
served_put (struct served *s)
{
  {
    MUTEX_SCOPE (&lock);

    if (--s->refs > 0)
      return;
    s->busy = true;
  }
  close_busy (s);
}

/* "internal snapshot 1, 2026-11-30 12:00:00 UTC, 1073741824 bytes" */
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

typedef int list_fn (void *opaque, const char *name, const char *description);

/* The export of one image and those of its snapshots. */
static int
list_image (const char *name, const struct core *core, list_fn *fn,
            void *opaque)
{
  const struct snapshot_table *t = &core->snapshots;
  char description[256], *export;
  size_t i;
  int r;

  snprintf (description, sizeof description, "%" PRIu64 " bytes",
            core->header.size);
  r = fn (opaque, name, description);
  for (i = 0; r == 0 && i < t->nr; ++i) {
    const struct snapshot_entry *s = &t->entries[i];

    describe (s, description, sizeof description);
    if (asprintf (&export, "%s@%s", name, s->name[0] ? s->name : s->id) == -1)
      return -1;
    r = fn (opaque, export, description);
    free (export);
  }
  return r;
}

/* List DIR/NAME if it is an image.  It may be open for writing, here or
 * elsewhere, so this looks at it without locks.
 */
static int
list_file (const char *name, list_fn *fn, void *opaque)
{
  const struct core_options opts = { .writable = false };
  struct backend *file;
  struct core *core;
  struct stat st;
  uint8_t magic[4];
  char *path;
  int r = 0;

  path = path_of (name, strlen (name));
  if (path == NULL)
    return -1;
  if (stat (path, &st) == 0 && S_ISREG (st.st_mode) &&
      access (path, R_OK) == 0 && backend_file_open (path, 0, &file) == 0) {
    if (backend_pread (file, magic, sizeof magic, 0) == 0 &&
        get_be32 (magic) == QCOW2_MAGIC &&
        core_open (file, &opts, &core) == 0) {
      r = list_image (name, core, fn, opaque);
      core_close (core);
    }
    backend_close (file);
  }
  free (path);
  return r;
}

static int
list_dir (list_fn *fn, void *opaque)
{
  struct dirent **entries;
  int i, n, r = 0;

  n = scandir (options.dir, &entries, NULL, alphasort);
  if (n == -1) {
    nbdkit_error ("dir=%s: %s", options.dir, strerror (errno));
    return -1;
  }
  for (i = 0; i < n; ++i) {
    if (r == 0 && entries[i]->d_name[0] != '.')
      r = list_file (entries[i]->d_name, fn, opaque);
    free (entries[i]);
  }
  free (entries);
  return r;
}

int
served_list (list_fn *fn, void *opaque)
{
  if (options.dir)
    return list_dir (fn, opaque);
  return list_image ("", image_core (list->image), fn, opaque);
}
