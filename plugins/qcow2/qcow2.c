/* SPDX-License-Identifier: BSD-3-Clause */
/* The plugin: nbdkit's callbacks in terms of the engine, nothing else.
 *
 * Errors: the engine returns -errno and has logged it; fail () is the only
 * place where that becomes nbdkit's -1 and errno.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "codec.h"
#include "crypt.h"
#include "io.h"
#include "options.h"
#include "qcow2-hints.h"
#include "served.h"

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

struct handle {                 /* one connection */
  struct served *served;
  struct io *io;
  bool readonly;
};

static _Thread_local struct qcow2_hints hints = {
  .version = QCOW2_HINTS_VERSION,
  .size = sizeof hints,
};

extern struct qcow2_hints *nbdkit_qcow2_hints (void)
  __attribute__ ((__visibility__ ("default")));

struct qcow2_hints *
nbdkit_qcow2_hints (void)
{
  return &hints;
}

/* NBD knows few errors, and nbdkit turns all others into EINVAL.  The error
 * is left in errno (.errno_is_preserved): nbdkit_set_error works only in
 * nbdkit's own threads, and filters call us from theirs.
 */
static int
fail (int r)
{
  switch (-r) {
  case EIO: case ENOSPC: case ENOMEM: case EINVAL: case EPERM: case EROFS:
    errno = -r;
    break;
  case ENOTSUP:
    errno = EOPNOTSUPP;
    break;
  case EFBIG: case EDQUOT:
    errno = ENOSPC;
    break;
  default:
    errno = EIO;
    break;
  }
  return -1;
}

static int
finish (int r)
{
  return r < 0 ? fail (r) : 0;
}

static void
qcow2_load (void)
{
  /* With RLIMIT_FSIZE a write beyond it must fail, not kill the server. */
  signal (SIGXFSZ, SIG_IGN);

  /* nbdkit allocates the buffer of each request.  Fetching large ones from
   * the kernel each time costs as much as the copying.
   */
#ifdef M_MMAP_THRESHOLD
  mallopt (M_MMAP_THRESHOLD, 64 << 20);
  mallopt (M_TRIM_THRESHOLD, 128 << 20);
#endif
}

static void
qcow2_unload (void)
{
  options_free ();
}

/* Does ARG, short options behind one dash, have the option r?  Of options
 * with a value the rest is the value; *VALUE_NEXT: the next argument is.
 */
static bool
has_short_r (const char *arg, bool *value_next)
{
  const char *p;

  for (p = arg + 1; *p; ++p) {
    if (*p == 'r')
      return true;
    if (strchr ("DegipPtuU", *p)) {
      *value_next = p[1] == '\0';
      return false;
    }
  }
  return false;
}

/* Is nbdkit's option -r on the command line?  A plugin learns it only with
 * the first connection, but the image is opened (and locked, and its errors
 * reported) before the server forks.  If this is wrong, the image is served
 * read-only in the one case, and locked more strictly than needed in the
 * other.
 */
static bool
started_readonly (void)
{
  char buf[65536], *p, *arg;
  bool value = false;
  ssize_t n;
  int fd;

  fd = open ("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd == -1)
    return false;
  n = read (fd, buf, sizeof buf - 1);
  close (fd);
  if (n <= 0)
    return false;
  buf[n] = '\0';
  for (p = buf; p < buf + n; p += strlen (arg) + 1) {
    arg = p;
    if (value) {                /* of the option before */
      value = false;
      continue;
    }
    if (strcmp (arg, "--") == 0)
      break;
    if (strcmp (arg, "--readonly") == 0 || strcmp (arg, "--read-only") == 0)
      return true;
    if (arg[0] == '-' && arg[1] != '-' && has_short_r (arg, &value))
      return true;
  }
  return false;
}

/* The hints of this thread as parameters of the codec. */
static struct codec_params
get_codec_params (void)
{
  const struct codec_params params = {
    .level = hints.compress_level,
    .window = hints.compress_window ? hints.compress_window : 4096,
  };

  return params;
}

/* Filter compress sets its hints also while the server starts and while a
 * connection is opened: an image that cannot hold compressed clusters is
 * refused then, and not with the first write.
 */
static int
check_compress (struct io *io)
{
  const struct codec_params params = get_codec_params ();

  if (!hints.compress || !io->writable)
    return 0;
  return io_check_compress (io, &params);
}

static int
qcow2_get_ready (void)
{
  struct served *s;
  struct io *io;
  int r;

  r = served_start (started_readonly ());
  if (r == 0 && hints.compress && options.dir == NULL) {
    r = served_get ("", &s, &io);
    if (r == 0) {
      r = check_compress (io);
      served_put (s);
    }
  }
  return r < 0 ? -1 : 0;
}

static void
qcow2_cleanup (void)
{
  served_stop ();
}

static void
qcow2_dump_plugin (void)
{
  printf ("qcow2_versions=2,3\n");
  printf ("qcow2_compression=zlib,zstd\n");
  printf ("qcow2_deflate_library=%s\n", codec_deflate_library ());
  printf ("qcow2_inflate_library=%s\n", codec_inflate_library ());
  printf ("qcow2_encryption=%s\n", crypt_ciphers ());
  printf ("qcow2_hints_version=%d\n", QCOW2_HINTS_VERSION);
}

static int
add_export (void *exports, const char *name, const char *description)
{
  return nbdkit_add_export (exports, name, description);
}

static int
qcow2_list_exports (int readonly, int is_tls, struct nbdkit_exports *exports)
{
  (void) readonly;
  (void) is_tls;
  return served_list (add_export, exports) == 0 ? 0 : -1;
}

static void *
qcow2_open (int readonly)
{
  const char *name = nbdkit_export_name ();
  struct handle *h;
  int r;

  if (name == NULL)
    return NULL;
  h = calloc (1, sizeof *h);
  if (h == NULL) {
    nbdkit_error ("out of memory");
    return NULL;
  }
  r = served_get (name, &h->served, &h->io);
  if (r == 0 && !readonly) {
    r = check_compress (h->io);
    if (r < 0)
      served_put (h->served);
  }
  if (r < 0) {
    free (h);
    return NULL;
  }
  h->readonly = readonly || !h->io->writable;
  return h;
}

static void
qcow2_close (void *handle)
{
  struct handle *h = handle;

  served_put (h->served);
  free (h);
}

static int64_t
qcow2_get_size (void *handle)
{
  struct handle *h = handle;

  return h->io->size;
}

static int
qcow2_block_size (void *handle, uint32_t *minimum, uint32_t *preferred,
                  uint32_t *maximum)
{
  struct handle *h = handle;

  *minimum = 1;
  *preferred = h->io->geo->cluster_size;
  *maximum = UINT32_MAX;
  return 0;
}

static int
qcow2_can_write (void *handle)
{
  struct handle *h = handle;

  return !h->readonly;
}

/* What is true of every image. */
static int
qcow2_yes (void *handle)
{
  (void) handle;
  return 1;
}

static int
qcow2_can_fua (void *handle)
{
  (void) handle;
  return NBDKIT_FUA_NATIVE;
}

static int
qcow2_can_cache (void *handle)
{
  (void) handle;
  return NBDKIT_CACHE_NATIVE;
}

static int
qcow2_pread (void *handle, void *buf, uint32_t count, uint64_t offset,
             uint32_t flags)
{
  struct handle *h = handle;

  (void) flags;
  return finish (io_pread (h->io, buf, count, offset));
}

/* The hints of this thread in the engine's terms; NULL = none. */
static const struct io_hints *
get_hints (struct io_hints *h)
{
  if (!hints.compress && hints.grow_size == 0)
    return NULL;
  *h = (struct io_hints) {
    .compress = hints.compress,
    .codec = get_codec_params (),
    .growth = { .size = hints.grow_size, .align = hints.grow_align },
  };
  return h;
}

static int
qcow2_pwrite (void *handle, const void *buf, uint32_t count, uint64_t offset,
              uint32_t flags)
{
  struct handle *h = handle;
  struct io_hints io_hints;

  return finish (io_pwrite (h->io, buf, count, offset,
                            flags & NBDKIT_FLAG_FUA ? IO_FUA : 0,
                            get_hints (&io_hints)));
}

static int
qcow2_zero (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  struct handle *h = handle;
  struct io_hints io_hints;
  unsigned io_flags = 0;

  if (flags & NBDKIT_FLAG_FUA)
    io_flags |= IO_FUA;
  if (flags & NBDKIT_FLAG_MAY_TRIM)
    io_flags |= IO_MAY_TRIM;
  if (flags & NBDKIT_FLAG_FAST_ZERO)
    io_flags |= IO_FAST_ZERO;
  return finish (io_zero (h->io, count, offset, io_flags,
                          get_hints (&io_hints)));
}

static int
qcow2_trim (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  struct handle *h = handle;

  if (!options.discard)
    return flags & NBDKIT_FLAG_FUA ? finish (io_flush (h->io)) : 0;
  return finish (io_trim (h->io, count, offset,
                          flags & NBDKIT_FLAG_FUA ? IO_FUA : 0));
}

static int
qcow2_flush (void *handle, uint32_t flags)
{
  struct handle *h = handle;

  (void) flags;
  return finish (io_flush (h->io));
}

static int
qcow2_cache (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  struct handle *h = handle;

  (void) flags;
  return finish (io_cache (h->io, count, offset));
}

struct extents_call {
  struct nbdkit_extents *extents;
  bool one;
};

static int
add_extent (void *opaque, uint64_t off, uint64_t len, unsigned flags)
{
  struct extents_call *c = opaque;
  uint32_t type = 0;

  if (flags & IO_EXTENT_ZERO)
    type |= NBDKIT_EXTENT_ZERO;
  if (flags & IO_EXTENT_HOLE)
    type |= NBDKIT_EXTENT_HOLE;
  if (nbdkit_add_extent (c->extents, off, len, type) == -1)
    return -errno;
  return c->one;                /* 1 = stop here */
}

static int
qcow2_extents (void *handle, uint32_t count, uint64_t offset, uint32_t flags,
               struct nbdkit_extents *extents)
{
  struct handle *h = handle;
  struct extents_call call = {
    .extents = extents, .one = flags & NBDKIT_FLAG_REQ_ONE,
  };

  if (hints.layer_extents) {
    hints.layer_disk = (uintptr_t) h->io;
    hints.layer_grain = h->io->geo->subcluster_size;
  }
  return finish (io_extents (h->io, count, offset, hints.layer_extents,
                             add_extent, &call));
}

static struct nbdkit_plugin plugin = {
  .name              = "qcow2",
  .longname          = "nbdkit qcow2 plugin",
  .version           = PACKAGE_VERSION,
  .description       = "serve QEMU qcow2 images: read, write, create",
  .load              = qcow2_load,
  .unload            = qcow2_unload,
  .config            = options_set,
  .config_complete   = options_complete,
  .config_help       = OPTIONS_HELP,
  .magic_config_key  = "file",
  .dump_plugin       = qcow2_dump_plugin,
  .get_ready         = qcow2_get_ready,
  .cleanup           = qcow2_cleanup,
  .list_exports      = qcow2_list_exports,
  .open              = qcow2_open,
  .close             = qcow2_close,
  .get_size          = qcow2_get_size,
  .block_size        = qcow2_block_size,
  .can_write         = qcow2_can_write,
  .can_flush         = qcow2_yes,
  .can_trim          = qcow2_yes,
  .can_zero          = qcow2_yes,
  .can_fast_zero     = qcow2_yes,
  .can_extents       = qcow2_yes,
  .can_multi_conn    = qcow2_yes,
  .can_fua           = qcow2_can_fua,
  .can_cache         = qcow2_can_cache,
  .pread             = qcow2_pread,
  .pwrite            = qcow2_pwrite,
  .zero              = qcow2_zero,
  .trim              = qcow2_trim,
  .flush             = qcow2_flush,
  .cache             = qcow2_cache,
  .extents           = qcow2_extents,
  .errno_is_preserved = 1,
};

extern struct nbdkit_plugin *plugin_init (void);
NBDKIT_REGISTER_PLUGIN (plugin)
