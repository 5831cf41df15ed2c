/* SPDX-License-Identifier: BSD-3-Clause */
/* From the plugin's options to a new image.
 *
 * The backing file is opened before anything is made, so that a wrong name
 * is found, and its size is the default for that of the new image.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-file.h"
#include "backend-nbd.h"
#include "create.h"
#include "crypt.h"
#include "image.h"
#include "new-image.h"
#include "options.h"
#include "reference.h"

static int
bad_value (const char *key, const char *value, const char *allowed)
{
  nbdkit_error ("%s=%s: must be %s", key, value, allowed);
  return -EINVAL;
}

static int
parse_compat (unsigned *version)
{
  const char *s = options.compat;

  if (s == NULL || strcmp (s, "1.1") == 0 || strcmp (s, "v3") == 0)
    *version = 3;
  else if (strcmp (s, "0.10") == 0 || strcmp (s, "v2") == 0)
    *version = 2;
  else
    return bad_value ("compat", s, "0.10 or 1.1");
  return 0;
}

static int
parse_compression (enum codec_type *type)
{
  const char *s = options.compression_type;

  if (s == NULL || strcmp (s, "zlib") == 0)
    *type = CODEC_ZLIB;
  else if (strcmp (s, "zstd") == 0)
    *type = CODEC_ZSTD;
  else
    return bad_value ("compression-type", s, "zlib or zstd");
  return 0;
}

static int
parse_preallocation (enum create_preallocation *p)
{
  static const char *const names[] = { "off", "metadata", "falloc", "full" };
  const char *s = options.preallocation;
  size_t i;

  *p = CREATE_PREALLOC_OFF;
  if (s == NULL)
    return 0;
  for (i = 0; i < sizeof names / sizeof names[0]; ++i) {
    if (strcmp (s, names[i]) == 0) {
      *p = (enum create_preallocation) i;
      return 0;
    }
  }
  return bad_value ("preallocation", s, "off, metadata, falloc or full");
}

/* The size of the guest disk in the backing file. */
static int
backing_size (const char *path, int64_t *size)
{
  const char *format = options.backing_format;
  const struct image_options opts = {
    .lock = options.lock, .external_deny = options.external_deny,
    .metadata_cache = options.metadata_cache,
    .backing_format = options.backing_format,
    .passphrase = options.passphrase,
  };
  struct reference ref;
  struct backend *file = NULL;
  struct image *image;
  int r;

  r = reference_parse (path, options.backing_file, &ref);
  if (r < 0)
    return r;
  if (format == NULL)
    format = ref.format;
  r = -EINVAL;
  if (format == NULL)
    nbdkit_error ("backing-file=%s: say its format with backing-format=qcow2 "
                  "or backing-format=raw", options.backing_file);
  else if (ref.uri)
    r = backend_nbd_open (ref.uri, NULL, false, &file);
  else
    r = backend_file_open (ref.path, BACKEND_FILE_SHARE_RW |
                           (options.lock ? BACKEND_FILE_LOCK : 0), &file);
  if (r == 0 && strcmp (format, "qcow2") == 0) {
    r = image_open_on (file, &opts, &image);
    if (r == 0) {
      *size = image_io (image)->size;
      r = image_close (image);
      file = NULL;
    }
  }
  else if (r == 0) {
    *size = backend_size (file);
    r = *size < 0 ? (int) *size : 0;
  }
  backend_close (file);
  reference_free (&ref);
  return r;
}

static int
get_options (const char *path, struct create_options *o)
{
  const char *other = options.backing_file ? "backing-file" :
    options.data_file ? "data-file" : NULL;
  int64_t size = options.size;
  int r;

  if (options.external_deny && other) {
    nbdkit_error ("%s: an image with %s= could not be opened, since "
                  "external=deny forbids other files: it is not made",
                  path, other);
    return -EPERM;
  }
  create_defaults (o);
  r = parse_compat (&o->version);
  if (r == 0)
    r = parse_compression (&o->compression_type);
  if (r == 0)
    r = parse_preallocation (&o->preallocation);
  if (r < 0)
    return r;
  if (options.cluster_size != -1)
    o->cluster_size = options.cluster_size;
  if (options.refcount_bits != -1)
    o->refcount_bits = options.refcount_bits;
  o->extended_l2 = options.extended_l2;
  o->lazy_refcounts = options.lazy_refcounts;
  o->data_file = options.data_file;
  o->data_file_raw = options.data_file_raw;
  o->backing_file = options.backing_file;
  o->backing_format = options.backing_file ? options.backing_format : NULL;

  if (options.backing_file) {
    int64_t backing = 0;

    r = backing_size (path, &backing);
    if (r < 0)
      return r;
    if (size == -1)
      size = backing;
  }
  if (size == -1) {
    nbdkit_error ("create=true needs size= (or a backing-file=)");
    return -EINVAL;
  }
  o->size = size;
  return create_check (path, o);
}

/* The LUKS header, to be freed.  It takes seconds to make one, so this comes
 * last.
 */
static int
make_crypto_header (const char *path, struct create_options *o,
                    uint8_t **header)
{
  const struct crypt_luks_options luks = {
    .cipher_alg = options.encrypt_cipher_alg,
    .cipher_mode = options.encrypt_cipher_mode,
    .ivgen_alg = options.encrypt_ivgen_alg,
    .ivgen_hash_alg = options.encrypt_ivgen_hash_alg,
    .hash_alg = options.encrypt_hash_alg,
    .iter_time = options.encrypt_iter_time == -1 ? 0
                 : options.encrypt_iter_time,
  };
  int r;

  if (options.encrypt == NULL)
    return 0;
  r = crypt_create_luks (path, &luks, options.passphrase,
                         header, &o->crypto_len);
  if (r < 0)
    return r;
  o->crypto_header = *header;
  return create_check (path, o);
}

static bool
is_same_file (const char *a, const char *b)
{
  struct stat sa, sb;

  return stat (a, &sa) == 0 && stat (b, &sb) == 0 &&
    sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

/* Open the data file, or make it: *MADE is its name then, to be freed. */
static int
open_data_file (const char *path, const struct create_options *o,
                struct backend **data, char **made)
{
  const unsigned flags = options.lock ? BACKEND_FILE_LOCK : 0;
  struct reference ref;
  int r;

  if (o->data_file == NULL)
    return 0;
  r = reference_parse (path, o->data_file, &ref);
  if (r < 0)
    return r;
  if (ref.uri)
    r = backend_nbd_open (ref.uri, NULL, true, data);
  else if (is_same_file (path, ref.path)) {
    nbdkit_error ("data-file=%s: this is the image itself", o->data_file);
    r = -EINVAL;
  }
  else if (access (ref.path, F_OK) == 0)
    r = backend_file_open (ref.path, flags | BACKEND_FILE_WRITABLE, data);
  else {
    r = backend_file_open (ref.path, flags | BACKEND_FILE_CREATE, data);
    if (r == 0) {
      *made = ref.path;
      ref.path = NULL;
    }
  }
  reference_free (&ref);
  return r;
}

int
new_image_create (const char *path)
{
  struct create_options o;
  struct backend *file = NULL, *data = NULL;
  uint8_t *crypto_header = NULL;
  char *made = NULL;
  int r;

  r = get_options (path, &o);
  if (r == 0)
    r = make_crypto_header (path, &o, &crypto_header);
  if (r == 0)
    r = backend_file_open (path, BACKEND_FILE_CREATE |
                           (options.lock ? BACKEND_FILE_LOCK : 0), &file);
  if (r == 0) {
    r = open_data_file (path, &o, &data, &made);
    if (r == 0)
      r = create_image (file, data, &o);
    if (r < 0)
      unlink (path);
    if (r < 0 && made)
      unlink (made);
  }
  backend_close (data);
  backend_close (file);
  free (crypto_header);
  free (made);
  return r;
}
