/* SPDX-License-Identifier: BSD-3-Clause */
/* Work on an image before it is served, when there are no requests. */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-file.h"
#include "backend-nbd.h"
#include "check.h"
#include "core.h"
#include "jobs.h"
#include "options.h"
#include "resize.h"
#include "snapshot.h"

/* Problems that are printed; the rest is only counted. */
#define MAX_PROBLEMS 20

static unsigned nr_problems;

static void
print_problem (void *opaque, const char *text)
{
  (void) opaque;
  if (nr_problems++ < MAX_PROBLEMS)
    fprintf (stderr, "%s\n", text);
  else if (nr_problems == MAX_PROBLEMS + 1)
    fprintf (stderr, "(more problems are counted, but not listed)\n");
}

static void
print_progress (void *opaque, uint64_t done, uint64_t total)
{
  static int shown = -1;        /* percent */
  int percent = total > 0 ? 100.0 * done / total : 100;

  (void) opaque;
  if (percent == shown || !isatty (STDERR_FILENO))
    return;
  if (done < total) {
    fprintf (stderr, "\rchecked %3d %%", percent);
    shown = percent;
  }
  else if (shown != -1) {
    fprintf (stderr, "\r              \r");
    shown = -1;
  }
}

const struct check_options jobs_check_options = {
  .progress = print_progress,
  .problem = print_problem,
};

static int
open_readonly (const char *name, bool uri, struct backend **file,
               struct core **core)
{
  const struct core_options opts = {
    .metadata_cache = options.metadata_cache,
  };
  int r;

  if (uri)
    r = backend_nbd_open (name, NULL, false, file);
  else
    r = backend_file_open (name, options.lock ? BACKEND_FILE_LOCK : 0, file);
  if (r < 0)
    return r;
  r = core_open (*file, &opts, core);
  if (r < 0)
    backend_close (*file);
  return r;
}

void
jobs_check (const char *name, bool uri)
{
  struct check_result res;
  struct backend *file;
  struct core *core;
  char text[1024];
  int r;

  if (open_readonly (name, uri, &file, &core) < 0)
    exit (1);
  r = check_run (core, &jobs_check_options, &res);
  check_describe (&res, text, sizeof text);
  fprintf (stderr, "%s", text);
  core_close (core);
  backend_close (file);
  if (r < 0 || res.check_errors)
    exit (1);
  if (res.corruptions)
    exit (2);
  exit (res.leaks ? 3 : 0);
}

/* The time that a new snapshot gets.  SOURCE_DATE_EPOCH (seconds) makes it
 * reproducible.
 */
static struct timespec
now (void)
{
  const char *s = getenv ("SOURCE_DATE_EPOCH");
  struct timespec t = { 0 };
  char *end;
  long long sec;

  if (s) {
    sec = strtoll (s, &end, 10);
    if (*s && *end == '\0' && sec >= 0) {
      t.tv_sec = sec;
      return t;
    }
  }
  clock_gettime (CLOCK_REALTIME, &t);
  return t;
}

int
jobs_run (struct image *image)
{
  struct core *core = image_core (image);
  struct timespec when;
  int r = 0;

  if (options.snapshot_apply)
    r = snapshot_apply (core, options.snapshot_apply);
  if (r == 0 && options.snapshot_delete)
    r = snapshot_delete (core, options.snapshot_delete);
  if (r == 0 && options.resize != -1)
    r = resize_image (core, options.resize, options.shrink);
  if (r == 0 && options.snapshot_create) {
    when = now ();
    r = snapshot_create (core, options.snapshot_create, &when);
  }
  return r;
}
