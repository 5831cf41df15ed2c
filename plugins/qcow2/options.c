/* SPDX-License-Identifier: BSD-3-Clause */
/* Parsing the plugin's parameters, by one table. */

#include <config.h>

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "options.h"

struct options options = {
  .lock = true,
  .discard = true,
  .metadata_cache = INT64_C (64) << 20,
  .cluster_cache = INT64_C (8) << 20,
  .size = -1,
  .resize = -1,
  .cluster_size = -1,
  .refcount_bits = -1,
  .encrypt_iter_time = -1,
};

enum kind {
  STRING,
  PATH,                         /* made absolute */
  SIZE,
  BOOL,
  NUMBER,
  DENY,                         /* deny or allow */
  SECRET,                       /* nbdkit_read_password */
};

static const struct {
  const char *key;
  enum kind kind;
  void *value;                  /* char **, int64_t * or bool * */
  bool creates;                 /* makes sense with create=true only */
} table[] = {
  { "file",             PATH,   &options.file, false },
  { "dir",              PATH,   &options.dir, false },
  { "uri",              STRING, &options.uri, false },
  { "snapshot",         STRING, &options.snapshot, false },
  { "backing-format",   STRING, &options.backing_format, false },
  { "passphrase",       SECRET, &options.passphrase, false },
  { "external",         DENY,   &options.external_deny, false },
  { "lock",             BOOL,   &options.lock, false },
  { "discard",          BOOL,   &options.discard, false },
  { "detect-zeroes",    BOOL,   &options.detect_zeroes, false },
  { "metadata-cache",   SIZE,   &options.metadata_cache, false },
  { "cluster-cache",    SIZE,   &options.cluster_cache, false },
  { "check",            BOOL,   &options.check, false },
  { "repair",           STRING, &options.repair, false },
  { "resize",           SIZE,   &options.resize, false },
  { "shrink",           BOOL,   &options.shrink, false },
  { "snapshot-create",  STRING, &options.snapshot_create, false },
  { "snapshot-apply",   STRING, &options.snapshot_apply, false },
  { "snapshot-delete",  STRING, &options.snapshot_delete, false },
  { "create",           BOOL,   &options.create, false },
  { "size",             SIZE,   &options.size, true },
  { "cluster-size",     SIZE,   &options.cluster_size, true },
  { "refcount-bits",    NUMBER, &options.refcount_bits, true },
  { "compat",           STRING, &options.compat, true },
  { "compression-type", STRING, &options.compression_type, true },
  { "preallocation",    STRING, &options.preallocation, true },
  { "backing-file",     STRING, &options.backing_file, true },
  { "data-file",        STRING, &options.data_file, false },
  { "data-file-raw",    BOOL,   &options.data_file_raw, true },
  { "extended-l2",      BOOL,   &options.extended_l2, true },
  { "lazy-refcounts",   BOOL,   &options.lazy_refcounts, true },
  { "encrypt",          STRING, &options.encrypt, true },
  { "encrypt-cipher-alg", STRING, &options.encrypt_cipher_alg, true },
  { "encrypt-cipher-mode", STRING, &options.encrypt_cipher_mode, true },
  { "encrypt-ivgen-alg", STRING, &options.encrypt_ivgen_alg, true },
  { "encrypt-ivgen-hash-alg", STRING, &options.encrypt_ivgen_hash_alg, true },
  { "encrypt-hash-alg", STRING, &options.encrypt_hash_alg, true },
  { "encrypt-iter-time", NUMBER, &options.encrypt_iter_time, true },
};

#define NR_OPTIONS (sizeof table / sizeof table[0])

static int
set_string (const char *key, char **dest, const char *value, bool is_path)
{
  if (*dest) {
    nbdkit_error ("%s= is given twice", key);
    return -1;
  }
  if (value[0] == '\0') {
    nbdkit_error ("%s= must not be empty", key);
    return -1;
  }
  *dest = is_path ? nbdkit_absolute_path (value) : strdup (value);
  if (*dest == NULL) {
    nbdkit_error ("%s=%s: %s", key, value, strerror (errno));
    return -1;
  }
  return 0;
}

static int
set_size (const char *key, int64_t *dest, const char *value)
{
  int64_t n = nbdkit_parse_size (value);

  if (n == -1) {
    nbdkit_error ("%s: \"%s\" is not a size", key, value);
    return -1;
  }
  *dest = n;
  return 0;
}

static int
set_bool (bool *dest, const char *value)
{
  int b = nbdkit_parse_bool (value);

  if (b == -1)
    return -1;
  *dest = b;
  return 0;
}

static int
set_number (const char *key, int64_t *dest, const char *value)
{
  uint32_t n;

  if (nbdkit_parse_uint32_t (key, value, &n) == -1)
    return -1;
  *dest = n;
  return 0;
}

static int
set_deny (const char *key, bool *dest, const char *value)
{
  if (strcmp (value, "deny") != 0 && strcmp (value, "allow") != 0) {
    nbdkit_error ("%s=%s: must be deny or allow", key, value);
    return -1;
  }
  *dest = strcmp (value, "deny") == 0;
  return 0;
}

int
options_set (const char *key, const char *value)
{
  size_t i;

  for (i = 0; i < NR_OPTIONS; ++i) {
    if (strcmp (key, table[i].key) != 0)
      continue;
    switch (table[i].kind) {
    case STRING:
      return set_string (key, table[i].value, value, false);
    case PATH:
      return set_string (key, table[i].value, value, true);
    case SIZE:
      return set_size (key, table[i].value, value);
    case BOOL:
      return set_bool (table[i].value, value);
    case NUMBER:
      return set_number (key, table[i].value, value);
    case DENY:
      return set_deny (key, table[i].value, value);
    case SECRET:
      free (options.passphrase);
      return nbdkit_read_password (value, table[i].value);
    }
  }
  nbdkit_error ("unknown parameter \"%s\" (see nbdkit qcow2 --help)", key);
  return -1;
}

static bool
is_given (size_t i)
{
  switch (table[i].kind) {
  case STRING:
  case PATH:
  case SECRET:
    return *(char **) table[i].value != NULL;
  case SIZE:
  case NUMBER:
    return *(int64_t *) table[i].value != -1;
  case BOOL:
  case DENY:
    break;
  }
  return *(bool *) table[i].value;
}

static bool
has_job (void)
{
  return options.repair || options.resize != -1 ||
    options.snapshot_create || options.snapshot_apply ||
    options.snapshot_delete;
}

bool
options_change_image (void)
{
  return has_job () || (options.create && !options.dir);
}

static int
check_encrypt (void)
{
  if (options.encrypt == NULL) {
    if (options.encrypt_cipher_alg || options.encrypt_cipher_mode ||
        options.encrypt_ivgen_alg || options.encrypt_ivgen_hash_alg ||
        options.encrypt_hash_alg || options.encrypt_iter_time != -1) {
      nbdkit_error ("encrypt-*= say how to encrypt: use them with "
                    "encrypt=luks");
      return -1;
    }
    return 0;
  }
  if (strcmp (options.encrypt, "luks") != 0) {
    nbdkit_error ("encrypt=%s: must be luks", options.encrypt);
    return -1;
  }
  if (options.passphrase == NULL || options.passphrase[0] == '\0') {
    nbdkit_error ("encrypt=luks needs passphrase=, and not an empty one");
    return -1;
  }
  return 0;
}

int
options_complete (void)
{
  size_t i;

  if (!options.file + !options.dir + !options.uri != 2) {
    nbdkit_error ("use one of file=FILE, dir=DIR and uri=URI "
                  "(nbdkit qcow2 FILE)");
    return -1;
  }
  if (options.dir && options.snapshot) {
    nbdkit_error ("snapshot= does not go with dir=: use the export name "
                  "IMAGE@SNAPSHOT");
    return -1;
  }
  if (options.dir && options.data_file) {
    nbdkit_error ("data-file= does not go with dir=: images cannot share "
                  "a data file");
    return -1;
  }
  if (options.uri && options.create) {
    nbdkit_error ("create=true cannot make an image on an NBD server");
    return -1;
  }
  if (options.dir && (options.check || has_job ())) {
    nbdkit_error ("check=, repair=, resize= and snapshot-*= need one image: "
                  "use them with file=FILE");
    return -1;
  }
  if (options.check && (options.create || has_job ())) {
    nbdkit_error ("check=true changes nothing: it does not go with create=, "
                  "repair=, resize= and snapshot-*=");
    return -1;
  }
  if (options.repair && strcmp (options.repair, "leaks") != 0 &&
      strcmp (options.repair, "all") != 0) {
    nbdkit_error ("repair=%s: must be leaks or all", options.repair);
    return -1;
  }
  if (options.shrink && options.resize == -1) {
    nbdkit_error ("shrink= needs resize=");
    return -1;
  }
  if (options.backing_format &&
      strcmp (options.backing_format, "qcow2") != 0 &&
      strcmp (options.backing_format, "raw") != 0) {
    nbdkit_error ("backing-format=%s: must be qcow2 or raw",
                  options.backing_format);
    return -1;
  }
  if (check_encrypt () == -1)
    return -1;
  for (i = 0; i < NR_OPTIONS; ++i) {
    if (table[i].creates && !options.create && is_given (i)) {
      nbdkit_error ("%s= describes a new image: it needs create=true",
                    table[i].key);
      return -1;
    }
  }
  return 0;
}

void
options_free (void)
{
  size_t i;

  for (i = 0; i < NR_OPTIONS; ++i) {
    if (table[i].kind == STRING || table[i].kind == PATH ||
        table[i].kind == SECRET) {
      free (*(char **) table[i].value);
      *(char **) table[i].value = NULL;
    }
  }
}
