/* SPDX-License-Identifier: BSD-3-Clause */
/* A plugin for tests of the filters: a disk in memory that exports the
 * hints symbol as the qcow2 plugin does, and writes to a log what reaches
 * it.  One line for each call:
 *
 *   open compress=0|1 level=N window=N
 *   write|zero OFFSET COUNT fua=0|1 trim=0|1 compress=0|1 level=N window=N
 *         grow=N align=N
 *   flush
 *
 * and at the end "max-active N": how many writes with the compress hint
 * were in progress at once, and "leaked N": calls that found a hint set
 * which belongs to another request.
 */

#include <config.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <inttypes.h>
#include <errno.h>
#include <time.h>
#include <pthread.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "qcow2-hints.h"

extern struct qcow2_hints *nbdkit_qcow2_hints (void);

static int64_t disk_size = 64 << 20;
static int64_t cluster = 65536;
static unsigned delay_us;               /* in each write */
static int64_t fail_at = -1;            /* writes of this byte fail */
static int fail_errno = EIO;
static int no_zero, no_flush, serialize, refuse;
static unsigned version = QCOW2_HINTS_VERSION;
static FILE *logfile;
static uint8_t *disk;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned active, max_active, leaked;

struct qcow2_hints *
nbdkit_qcow2_hints (void)
{
  static __thread struct qcow2_hints hints;

  hints.version = version;
  hints.size = sizeof hints;
  return &hints;
}

static int
parse_errno (const char *value)
{
  if (strcmp (value, "ENOSPC") == 0)
    return ENOSPC;
  return strcmp (value, "EFBIG") == 0 ? EFBIG : EIO;
}

static int
hintstest_config (const char *key, const char *value)
{
  if (strcmp (key, "size") == 0)
    return (disk_size = nbdkit_parse_size (value)) == -1 ? -1 : 0;
  if (strcmp (key, "cluster") == 0)
    return (cluster = nbdkit_parse_size (value)) == -1 ? -1 : 0;
  if (strcmp (key, "fail-at") == 0)
    return (fail_at = nbdkit_parse_size (value)) == -1 ? -1 : 0;
  if (strcmp (key, "delay-us") == 0)
    return nbdkit_parse_unsigned (key, value, &delay_us);
  if (strcmp (key, "version") == 0)
    return nbdkit_parse_unsigned (key, value, &version);
  if (strcmp (key, "no-zero") == 0)
    return (no_zero = nbdkit_parse_bool (value)) == -1 ? -1 : 0;
  if (strcmp (key, "no-flush") == 0)
    return (no_flush = nbdkit_parse_bool (value)) == -1 ? -1 : 0;
  if (strcmp (key, "serialize") == 0)
    return (serialize = nbdkit_parse_bool (value)) == -1 ? -1 : 0;
  if (strcmp (key, "refuse") == 0)
    return (refuse = nbdkit_parse_bool (value)) == -1 ? -1 : 0;
  if (strcmp (key, "fail-errno") == 0) {
    fail_errno = parse_errno (value);
    return 0;
  }
  if (strcmp (key, "log") == 0) {
    logfile = fopen (value, "we");
    if (logfile == NULL) {
      nbdkit_error ("%s: %m", value);
      return -1;
    }
    return 0;
  }
  nbdkit_error ("unknown parameter %s", key);
  return -1;
}

static int
hintstest_get_ready (void)
{
  disk = calloc (1, disk_size);
  if (disk == NULL) {
    nbdkit_error ("calloc: %m");
    return -1;
  }
  if (refuse == 1 && nbdkit_qcow2_hints ()->compress) {
    nbdkit_error ("this image cannot take compressed clusters");
    return -1;
  }
  return 0;
}

static void
hintstest_unload (void)
{
  if (logfile) {
    fprintf (logfile, "max-active %u\nleaked %u\n", max_active, leaked);
    fclose (logfile);
  }
  free (disk);
}

static int
hintstest_thread_model (void)
{
  return serialize ? NBDKIT_THREAD_MODEL_SERIALIZE_ALL_REQUESTS
                   : NBDKIT_THREAD_MODEL_PARALLEL;
}

static void *
hintstest_open (int readonly)
{
  const struct qcow2_hints *h = nbdkit_qcow2_hints ();

  (void) readonly;
  if (logfile)
    fprintf (logfile, "open compress=%d level=%d window=%u\n",
             h->compress, h->compress_level, h->compress_window);
  return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t
hintstest_get_size (void *handle)
{
  (void) handle;
  return disk_size;
}

static int
hintstest_block_size (void *handle, uint32_t *minimum, uint32_t *preferred,
                      uint32_t *maximum)
{
  (void) handle;
  *minimum = 1;
  *preferred = cluster;
  *maximum = UINT32_MAX;
  return 0;
}

static int
hintstest_can_zero (void *handle)
{
  (void) handle;
  return !no_zero;
}

static int
hintstest_can_flush (void *handle)
{
  (void) handle;
  return !no_flush;
}

static int
hintstest_can_fua (void *handle)
{
  (void) handle;
  return NBDKIT_FUA_NATIVE;
}

static int
hintstest_can_multi_conn (void *handle)
{
  (void) handle;
  return 1;
}

static void
log_request (const char *name, uint32_t count, uint64_t offset,
             uint32_t flags)
{
  const struct qcow2_hints *h = nbdkit_qcow2_hints ();

  if (logfile == NULL)
    return;
  fprintf (logfile,
           "%s %" PRIu64 " %" PRIu32 " fua=%d trim=%d compress=%d level=%d "
           "window=%u grow=%" PRIu64 " align=%" PRIu64 "\n",
           name, offset, count, !!(flags & NBDKIT_FLAG_FUA),
           !!(flags & NBDKIT_FLAG_MAY_TRIM), h->compress,
           h->compress ? h->compress_level : 0,
           h->compress ? h->compress_window : 0, h->grow_size, h->grow_align);
}

static void
enter (bool compress)
{
  pthread_mutex_lock (&lock);
  if (compress && ++active > max_active)
    max_active = active;
  pthread_mutex_unlock (&lock);
}

static void
leave (bool compress)
{
  pthread_mutex_lock (&lock);
  if (compress)
    active--;
  pthread_mutex_unlock (&lock);
}

static void
check_no_hints (void)
{
  const struct qcow2_hints *h = nbdkit_qcow2_hints ();

  if (h->compress || h->grow_size) {
    pthread_mutex_lock (&lock);
    leaked++;
    pthread_mutex_unlock (&lock);
  }
}

static int
hintstest_pread (void *handle, void *buf, uint32_t count, uint64_t offset,
                 uint32_t flags)
{
  (void) handle;
  (void) flags;
  check_no_hints ();
  memcpy (buf, disk + offset, count);
  return 0;
}

static int
hintstest_pwrite (void *handle, const void *buf, uint32_t count,
                  uint64_t offset, uint32_t flags)
{
  const bool compress = nbdkit_qcow2_hints ()->compress;
  const struct timespec ts = { 0, delay_us * 1000L };
  int r = 0;

  (void) handle;
  enter (compress);
  log_request ("write", count, offset, flags);
  if (delay_us)
    nanosleep (&ts, NULL);
  memcpy (disk + offset, buf, count);
  if (fail_at >= 0 && (uint64_t) fail_at >= offset &&
      (uint64_t) fail_at < offset + count) {
    nbdkit_error ("write of byte %" PRIi64 " fails by request", fail_at);
    errno = fail_errno;
    r = -1;
  }
  leave (compress);
  return r;
}

static int
hintstest_zero (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  (void) handle;
  log_request ("zero", count, offset, flags);
  memset (disk + offset, 0, count);
  return 0;
}

static int
hintstest_flush (void *handle, uint32_t flags)
{
  (void) handle;
  (void) flags;
  check_no_hints ();
  if (logfile)
    fprintf (logfile, "flush\n");
  return 0;
}

static struct nbdkit_plugin plugin = {
  .name               = "hintstest",
  .config             = hintstest_config,
  .thread_model       = hintstest_thread_model,
  .get_ready          = hintstest_get_ready,
  .unload             = hintstest_unload,
  .open               = hintstest_open,
  .get_size           = hintstest_get_size,
  .block_size         = hintstest_block_size,
  .can_zero           = hintstest_can_zero,
  .can_flush          = hintstest_can_flush,
  .can_fua            = hintstest_can_fua,
  .can_multi_conn     = hintstest_can_multi_conn,
  .pread              = hintstest_pread,
  .pwrite             = hintstest_pwrite,
  .zero               = hintstest_zero,
  .flush              = hintstest_flush,
  .errno_is_preserved = 1,
};

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

extern struct nbdkit_plugin *plugin_init (void);
NBDKIT_REGISTER_PLUGIN (plugin)
