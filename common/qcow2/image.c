/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening an image and its backing chain.
 *
 * The chain is opened from the top down, iteratively, each layer read-only
 * except the first.  A layer that occurs twice is a loop.  A backing file
 * whose format nobody recorded is not guessed: a guest could have written a
 * qcow2 header into its raw disk, and so name any file of the host.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <nbdkit-plugin.h>

#include "backend-file.h"
#include "backend-nbd.h"
#include "check.h"
#include "crypt.h"
#include "image.h"
#include "ondisk.h"
#include "reference.h"
#include "repair.h"

/* More layers than anybody has; each costs a file descriptor. */
#define MAX_CHAIN 1000

/* Host clusters of an image that may be checked at close; a byte each. */
#define MAX_PROOF_CLUSTERS (UINT64_C (16) << 20)

/* Smallest metadata cache of a layer. */
#define MIN_LAYER_CACHE (UINT64_C (1) << 20)

struct snapshot_disk {          /* opened on demand */
  struct map map;
  struct io io;
  const struct snapshot_entry *entry;
  struct snapshot_disk *next;
};

/* One file of the chain. */
struct layer {
  struct backend *file;
  struct backend *data_file;
  struct core *core;            /* NULL: a raw file */
  struct crypt *crypt;
  struct backing backing;       /* as the layer above sees it */
};

struct image {
  struct layer *layers;         /* [0] is the image itself */
  size_t nr_layers;
  struct ranked_mutex lock;     /* LOCK_REGISTRY: the list below */
  struct snapshot_disk *snapshots;
};

static int
open_file (const char *name, bool uri, bool writable, bool share,
           const struct image_options *opts, struct backend **b)
{
  unsigned flags = 0;

  if (uri)
    return backend_nbd_open (name, NULL, writable, b);
  if (writable)
    flags |= BACKEND_FILE_WRITABLE;
  if (opts->lock)
    flags |= BACKEND_FILE_LOCK;
  if (share)
    flags |= BACKEND_FILE_SHARE_RW;
  return backend_file_open (name, flags, b);
}

/* The names of all layers so far, for a message. */
static char *
chain_names (const struct image *image)
{
  char *names = strdup (image->layers[0].file->name), *longer;
  size_t i;

  for (i = 1; names && i < image->nr_layers; ++i) {
    if (asprintf (&longer, "%s <- %s", names,
                  image->layers[i].file->name) == -1)
      longer = NULL;
    free (names);
    names = longer;
  }
  return names;
}

/* May the file PATH (NULL: it is on a server) be a part of the chain?
 * Looked at before it is opened, since the lock of the image itself would be
 * in the way of a loop, and the message would speak of another program.
 */
static int
check_loop (const struct image *image, const char *path)
{
  uint64_t dev, ino;
  struct stat st;
  char *names;
  size_t i;

  if (image->nr_layers >= MAX_CHAIN) {
    nbdkit_error ("%s: the backing chain has more than %d images",
                  image->layers[0].file->name, MAX_CHAIN);
    return -EINVAL;
  }
  if (path == NULL || stat (path, &st) == -1 || !S_ISREG (st.st_mode))
    return 0;                   /* opening it will tell */
  for (i = 0; i < image->nr_layers; ++i) {
    if (backend_file_identity (image->layers[i].file, &dev, &ino) &&
        dev == st.st_dev && ino == st.st_ino) {
      names = chain_names (image);
      nbdkit_error ("the backing chain is a loop: %s <- %s",
                    names ? names : "...", path);
      free (names);
      return -EINVAL;
    }
  }
  return 0;
}

/* A new layer below the others, or the first one.  Owns FILE if it
 * succeeds.
 */
static int
add_layer (struct image *image, struct backend *file, struct core *core)
{
  struct layer *layers;

  layers = realloc (image->layers, (image->nr_layers + 1) * sizeof *layers);
  if (layers == NULL)
    return -ENOMEM;
  image->layers = layers;
  layers[image->nr_layers++] = (struct layer) { .file = file, .core = core };
  return 0;
}

/* Repair FILE, and say what was found and done. */
static int
repair (struct backend *file, enum repair_mode mode,
        const struct check_options *check)
{
  struct check_result res;
  char text[1024];
  int r;

  r = repair_run (file, mode, check, &res);
  if (r < 0)
    return r;
  check_describe (&res, text, sizeof text);
  nbdkit_debug ("%s: %s", file->name, text);
  if (mode == REPAIR_ALL && (res.corruptions || res.check_errors)) {
    nbdkit_error ("%s: %" PRIu64 " errors cannot be repaired: copy what can "
                  "be read (nbdkit -r) into a new image", file->name,
                  res.corruptions + res.check_errors);
    return -EIO;
  }
  return 0;
}

/* Before the image itself is opened for writing: what the user asked for,
 * and what a dirty image needs.
 */
static int
repair_first (struct backend *file, const struct image_options *opts)
{
  struct header h;
  bool dirty;
  int r;

  if (!opts->writable)
    return 0;
  if (opts->repair != IMAGE_REPAIR_NONE)
    return repair (file, opts->repair == IMAGE_REPAIR_ALL ? REPAIR_ALL
                   : REPAIR_LEAKS, opts->check);
  r = core_read_header (file, &h);
  if (r < 0)
    return r;
  dirty = (h.incompatible & (INCOMPAT_DIRTY | INCOMPAT_CORRUPT)) ==
    INCOMPAT_DIRTY;
  header_free (&h);
  if (!dirty)
    return 0;
  nbdkit_debug ("%s: the image was not closed cleanly: its refcounts are "
                "repaired", file->name);
  return repair (file, REPAIR_ALL, NULL);
}

/* Too large for a check that nobody asked for? */
static bool
is_too_large (struct core *core)
{
  return (uint64_t) backend_size (core->file) >> core->geo.cluster_bits >
    MAX_PROOF_CLUSTERS;
}

/* The last cluster in use at open was a hole.  Unless an entry refers to it
 * (preallocation), an earlier server that crashed had reserved it
 * (alloc-reserved.c): then free all leaks.  True if there were some.
 */
static bool
give_back_leaks (struct core *core)
{
  const uint64_t off = core->alloc.lost_end - core->geo.cluster_size;
  struct check_result res;

  if (!core->alloc.leaky || !core->file->exclusive || is_too_large (core))
    return false;
  {
    WRITE_SCOPE (&core->meta);
    if (map_refers_near_end_locked (&core->map, off))
      return false;
  }
  if (repair_run (core->file, REPAIR_LEAKS, NULL, &res) < 0 ||
      res.leaks_fixed == 0)
    return false;
  nbdkit_debug ("%s: %" PRIu64 " leaked clusters of an earlier server were "
                "given back", core->name, res.leaks_fixed);
  return true;
}

static int
open_core (struct image *image, struct backend *file,
           const struct image_options *opts)
{
  const size_t depth = image->nr_layers;
  struct core_options core_opts = {
    .writable = opts->writable && depth == 0,
    .discard = opts->discard,
    .detect_zeroes = opts->detect_zeroes,
    .metadata_cache = opts->metadata_cache >> (depth < 3 ? depth + 1 : 4),
    .ccache = opts->ccache,
  };
  struct core *core;
  int r;

  if (core_opts.metadata_cache < MIN_LAYER_CACHE)
    core_opts.metadata_cache = MIN_LAYER_CACHE;
  r = core_open (file, &core_opts, &core);
  if (r == 0 && core_opts.writable && give_back_leaks (core)) {
    core_close (core);
    r = core_open (file, &core_opts, &core);
  }
  if (r < 0)
    return r;
  r = add_layer (image, file, core);
  if (r < 0)
    core_close (core);
  return r;
}

/* The external data file of the lowest layer. */
static int
open_data_file (struct image *image, const struct image_options *opts)
{
  struct layer *layer = &image->layers[image->nr_layers - 1];
  struct core *core = layer->core;
  const char *name = core->header.data_file;
  struct reference ref;
  int r;

  if ((core->header.incompatible & INCOMPAT_DATA_FILE) == 0)
    return 0;
  if (image->nr_layers == 1 && opts->data_file)
    name = opts->data_file;
  if (name == NULL) {
    nbdkit_error ("%s: the image has an external data file but does not "
                  "name it: use data-file=FILE", core->name);
    return -EINVAL;
  }
  if (opts->external_deny) {
    nbdkit_error ("%s: the image names the data file \"%s\", and "
                  "external=deny forbids other files", core->name, name);
    return -EPERM;
  }
  r = reference_parse (name == opts->data_file ? NULL : core->name, name,
                       &ref);
  if (r < 0)
    return r;
  r = check_loop (image, ref.path);
  if (r == 0)
    r = open_file (ref.uri ? ref.uri : ref.path, ref.uri != NULL,
                   core->writable, false, opts, &layer->data_file);
  reference_free (&ref);
  if (r < 0) {
    nbdkit_error ("%s: its external data file \"%s\" cannot be used",
                  core->name, name);
    return r;
  }
  core_set_data_file (core, layer->data_file);
  return 0;
}

/* Unlock the lowest layer, if it is encrypted. */
static int
open_crypt (struct image *image, const struct image_options *opts)
{
  struct layer *layer = &image->layers[image->nr_layers - 1];
  struct core *core = layer->core;
  const struct header *h = &core->header;
  int r;

  if (h->crypt_method == HDR_CRYPT_NONE)
    return 0;
  if (opts->passphrase == NULL) {
    nbdkit_error ("%s: the image is encrypted: use passphrase=",
                  core->name);
    return -EACCES;
  }
  if (h->crypt_method == HDR_CRYPT_AES) {
    if (core->writable) {
      nbdkit_error ("%s: images with the legacy AES encryption are served "
                    "read-only: use nbdkit -r", core->name);
      return -EROFS;
    }
    r = crypt_open_aes (core->name, opts->passphrase, &layer->crypt);
  }
  else
    r = crypt_open_luks (core->name, core->file, h->crypto_offset,
                         h->crypto_length, opts->passphrase, &layer->crypt);
  core->io.crypt = layer->crypt;
  return r;
}

/* The format of a backing file, or NULL after a message. */
static const char *
backing_format (const struct core *core, const struct reference *ref,
                const struct image_options *opts)
{
  const char *format = core->header.backing_format;

  if (format == NULL)
    format = ref->format;
  if (format == NULL)
    format = opts->backing_format;
  if (format == NULL) {
    nbdkit_error ("%s: the format of the backing file \"%s\" is not "
                  "recorded and is never guessed: use backing-format=qcow2 "
                  "or backing-format=raw (qemu-img rebase -u -F records it)",
                  core->name, core->header.backing_file);
    return NULL;
  }
  if (strcmp (format, "qcow2") != 0 && strcmp (format, "raw") != 0 &&
      strcmp (format, "host_device") != 0 && strcmp (format, "file") != 0) {
    nbdkit_error ("%s: backing file \"%s\": format \"%s\" is not supported "
                  "(only qcow2 and raw are)", core->name,
                  core->header.backing_file, format);
    return NULL;
  }
  return format;
}

static void
say_chain (const struct image *image, const char *name)
{
  char *names = chain_names (image);

  nbdkit_error ("the backing file \"%s\" is missing or cannot be used; it "
                "belongs to the chain %s <- %s", name,
                names ? names : "...", name);
  free (names);
}

/* The next layer below the lowest one.  *MORE: there is one, and it may have
 * a backing file itself.
 */
static int
open_backing (struct image *image, const struct image_options *opts,
              bool *more)
{
  struct core *core = image->layers[image->nr_layers - 1].core;
  const char *name = core->header.backing_file, *format;
  struct reference ref;
  struct backend *file = NULL;
  int r;

  *more = false;
  if (name == NULL)
    return 0;
  if (opts->external_deny) {
    nbdkit_error ("%s: the image names the backing file \"%s\", and "
                  "external=deny forbids other files", core->name, name);
    return -EPERM;
  }
  r = reference_parse (core->name, name, &ref);
  if (r < 0)
    return r;
  format = backing_format (core, &ref, opts);
  r = -EINVAL;
  if (format) {
    *more = strcmp (format, "qcow2") == 0;
    r = check_loop (image, ref.path);
  }
  if (r == 0) {
    /* As for QEMU: others may write to a raw file, not to an image. */
    r = open_file (ref.uri ? ref.uri : ref.path, ref.uri != NULL, false,
                   !*more, opts, &file);
    if (r < 0)
      say_chain (image, name);
  }
  reference_free (&ref);
  if (r < 0)
    return r;

  r = *more ? open_core (image, file, opts) : add_layer (image, file, NULL);
  if (r < 0)
    backend_close (file);
  return r;
}

/* Now that the layers no longer move in memory: each sees the next. */
static int
connect_layers (struct image *image)
{
  struct layer *above, *below;
  int64_t size;
  size_t i;

  for (i = 1; i < image->nr_layers; ++i) {
    above = &image->layers[i - 1];
    below = &image->layers[i];
    if (below->core)
      below->backing = (struct backing) {
        .io = &below->core->io, .size = below->core->io.size,
      };
    else {
      size = backend_size (below->file);
      if (size < 0) {
        nbdkit_error ("%s: cannot find out its size: %s",
                      below->file->name, strerror (-size));
        return size;
      }
      below->backing = (struct backing) { .raw = below->file, .size = size };
    }
    above->core->io.backing = &below->backing;
  }
  return 0;
}

static void
free_image (struct image *image)
{
  struct snapshot_disk *s;
  size_t i;

  while ((s = image->snapshots) != NULL) {
    image->snapshots = s->next;
    map_close (&s->map);
    free (s);
  }
  for (i = 0; i < image->nr_layers; ++i) {
    core_close (image->layers[i].core);
    crypt_close (image->layers[i].crypt);
    backend_close (image->layers[i].data_file);
    backend_close (image->layers[i].file);
  }
  free (image->layers);
  ranked_mutex_destroy (&image->lock);
  free (image);
}

int
image_open_on (struct backend *file, const struct image_options *opts,
               struct image **ret)
{
  struct image *image;
  bool more = true;
  int r;

  image = calloc (1, sizeof *image);
  if (image == NULL)
    return -ENOMEM;
  ranked_mutex_init (&image->lock, LOCK_REGISTRY);
  r = repair_first (file, opts);
  if (r == 0)
    r = open_core (image, file, opts);
  if (r < 0) {
    free_image (image);
    return r;
  }
  while (r == 0 && more) {
    r = open_data_file (image, opts);
    if (r == 0)
      r = open_crypt (image, opts);
    if (r == 0)
      r = open_backing (image, opts, &more);
  }
  if (r == 0)
    r = connect_layers (image);
  if (r < 0) {
    image->layers[0].file = NULL;       /* stays the caller's */
    free_image (image);
    return r;
  }
  *ret = image;
  return 0;
}

int
image_open (const char *name, bool uri, const struct image_options *opts,
            struct image **image)
{
  struct backend *file;
  int r;

  r = open_file (name, uri, opts->writable, false, opts, &file);
  if (r < 0)
    return r;
  r = image_open_on (file, opts, image);
  if (r < 0)
    backend_close (file);
  return r;
}

struct io *
image_io (struct image *image)
{
  return &image->layers[0].core->io;
}

struct core *
image_core (struct image *image)
{
  return image->layers[0].core;
}

int
image_snapshot (struct image *image, const char *id_or_name, struct io **io)
{
  struct core *core = image_core (image);
  const struct snapshot_entry *entry;
  struct snapshot_disk *s;
  int r;

  entry = snapshot_table_find (&core->snapshots, id_or_name);
  if (entry == NULL) {
    nbdkit_error ("%s: it has no internal snapshot with the ID or name "
                  "\"%s\"", core->name, id_or_name);
    return -ENOENT;
  }

  MUTEX_SCOPE (&image->lock);

  for (s = image->snapshots; s; s = s->next) {
    if (s->entry == entry) {
      *io = &s->io;
      return 0;
    }
  }
  s = calloc (1, sizeof *s);
  if (s == NULL)
    return -ENOMEM;
  s->entry = entry;
  r = core_open_snapshot (core, entry, &s->map, &s->io);
  if (r < 0) {
    free (s);
    return r;
  }
  s->next = image->snapshots;
  image->snapshots = s;
  *io = &s->io;
  return 0;
}

/* An earlier server that crashed left data behind the last used cluster:
 * probably what was not flushed.  If all references are counted, it is cut
 * off.
 */
static void
cut_leftovers (struct core *core)
{
  struct check_result res;

  if (!core->alloc.unproven)
    return;
  if (is_too_large (core))
    nbdkit_debug ("%s: data behind the last used cluster stays: the image is "
                  "too large for a check at every close", core->name);
  else if (check_run (core, NULL, &res) == 0 && res.corruptions == 0 &&
           res.check_errors == 0)
    alloc_trim_file (&core->alloc, true);
  else
    nbdkit_debug ("%s: data behind the last used cluster stays: the image is "
                  "not consistent", core->name);
}

int
image_close (struct image *image)
{
  struct core *core = image_core (image);
  int r;

  r = core_finish (core);
  if (r == 0)
    cut_leftovers (core);
  free_image (image);
  return r;
}
