/* SPDX-License-Identifier: BSD-3-Clause */
/* Names of other files inside an image.
 *
 * Plain paths, file: names, NBD URIs, QEMU's older nbd: form, and json:
 * descriptions (read by jansson, loaded with the first one).  A JSON object
 * is flattened first, so that {"file": {"filename": x}} and
 * {"file.filename": x} are the same.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <nbdkit-plugin.h>

#include "library.h"
#include "reference.h"

/* The one whose header this was compiled with. */
#define JANSSON_SONAME "libjansson.so.4"

/* Nesting of a json: description, so that it cannot exhaust the stack. */
#define MAX_DEPTH 8

void
reference_free (struct reference *ref)
{
  free (ref->path);
  free (ref->uri);
  free (ref->format);
  memset (ref, 0, sizeof *ref);
}

static bool
has_prefix (const char *s, const char *prefix)
{
  return strncmp (s, prefix, strlen (prefix)) == 0;
}

static int
refuse (const char *from, const char *name, const char *why, int r)
{
  nbdkit_error ("%s%s\"%s\" cannot be used as the name of a file: %s",
                from ? from : "", from ? ": " : "", name, why);
  return r;
}

/* NAME relative to the directory of FROM. */
static char *
join (const char *from, const char *name)
{
  const char *slash = from ? strrchr (from, '/') : NULL;
  char *path;

  if (name[0] == '/' || slash == NULL)
    return strdup (name);
  if (asprintf (&path, "%.*s/%s", (int) (slash - from), from, name) == -1)
    return NULL;
  return path;
}

/* REF becomes the file PATH, found in FROM, which calls it NAME. */
static int
set_path (const char *from, const char *name, const char *path,
          struct reference *ref)
{
  if (path[0] == '\0')
    return refuse (from, name, "it is empty", -EINVAL);
  ref->path = join (from, path);
  return ref->path ? 0 : -ENOMEM;
}

/* S with everything but unreserved characters and those of KEEP
 * percent-encoded, for a URI.
 */
static char *
encode (const char *s, const char *keep)
{
  static const char hex[] = "0123456789ABCDEF";
  char *out, *p;

  out = p = malloc (strlen (s) * 3 + 1);
  if (out == NULL)
    return NULL;
  for (; *s; ++s) {
    unsigned char c = *s;

    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
        (c >= 'a' && c <= 'z') || strchr ("-._~", c) || strchr (keep, c))
      *p++ = c;
    else {
      *p++ = '%';
      *p++ = hex[c >> 4];
      *p++ = hex[c & 15];
    }
  }
  *p = '\0';
  return out;
}

/* The URI of an NBD export, from its parts. */
static char *
make_uri (const char *unix_path, const char *host, const char *port,
          const char *export)
{
  char *e = encode (export ? export : "", "/");
  char *s = unix_path ? encode (unix_path, "/") : NULL;
  bool v6 = host && strchr (host, ':') && host[0] != '[';
  char *uri = NULL;

  if (e && unix_path && s) {
    if (asprintf (&uri, "nbd+unix:///%s?socket=%s", e, s) == -1)
      uri = NULL;
  }
  else if (e && host) {
    if (asprintf (&uri, "nbd://%s%s%s:%s/%s", v6 ? "[" : "", host,
                  v6 ? "]" : "", port ? port : "10809", e) == -1)
      uri = NULL;
  }
  free (e);
  free (s);
  return uri;
}

/* QEMU's nbd:unix:PATH[:exportname=E] and nbd:HOST:PORT[:exportname=E]. */
static int
parse_old_nbd (const char *from, const char *name, struct reference *ref)
{
  char *copy = strdup (name + strlen ("nbd:"));
  char *export, *port;

  if (copy == NULL)
    return -ENOMEM;
  export = strstr (copy, ":exportname=");
  if (export) {
    *export = '\0';
    export += strlen (":exportname=");
  }
  if (has_prefix (copy, "unix:"))
    ref->uri = make_uri (copy + strlen ("unix:"), NULL, NULL, export);
  else {
    port = strrchr (copy, ':');
    if (port == NULL) {
      free (copy);
      return refuse (from, name, "it has no port number", -EINVAL);
    }
    *port++ = '\0';
    ref->uri = make_uri (NULL, copy, port, export);
  }
  free (copy);
  return ref->uri ? 0 : -ENOMEM;
}

/* jansson.loads (...) is json_loads (...). */
#define JANSSON_FUNCTIONS(X) \
  X (delete) \
  X (integer_value) \
  X (loads) \
  X (object) \
  X (object_get) \
  X (object_iter) \
  X (object_iter_key) \
  X (object_iter_next) \
  X (object_iter_value) \
  X (object_set_new) \
  X (string) \
  X (string_value)

static struct {
#define FIELD(name) __typeof__ (json_##name) *name;
  JANSSON_FUNCTIONS (FIELD)
#undef FIELD
} jansson;

static int jansson_result;
static char jansson_error[320];

static void
load_jansson (void)
{
#define ENTRY(name) { "json_" #name, &jansson.name },
  static const struct library_function functions[] = {
    JANSSON_FUNCTIONS (ENTRY)
  };
#undef ENTRY

  jansson_result = library_load (JANSSON_SONAME, functions,
                                 sizeof functions / sizeof functions[0],
                                 jansson_error, sizeof jansson_error);
}

/* Copy the members of OBJ to FLAT, with dotted keys. */
static int
flatten (json_t *obj, const char *prefix, json_t *flat, int depth)
{
  json_t *value;
  void *iter;
  char *full;
  int r = 0;

  if (depth > MAX_DEPTH)
    return -EINVAL;
  for (iter = jansson.object_iter (obj); iter;
       iter = jansson.object_iter_next (obj, iter)) {
    value = jansson.object_iter_value (iter);
    if (asprintf (&full, "%s%s%s", prefix, *prefix ? "." : "",
                  jansson.object_iter_key (iter)) == -1)
      return -ENOMEM;
    if (json_is_object (value))
      r = flatten (value, full, flat, depth + 1);
    else if (jansson.object_set_new (flat, full, json_incref (value)) == -1)
      r = -ENOMEM;
    free (full);
    if (r < 0)
      return r;
  }
  return 0;
}

/* The string (or integer, as text) PREFIX.KEY of FLAT, or NULL. */
static const char *
get (json_t *flat, const char *prefix, const char *key)
{
  char full[256];
  json_t *value;
  int n;

  n = snprintf (full, sizeof full, "%s%s%s", prefix, *prefix ? "." : "", key);
  if (n < 0 || (size_t) n >= sizeof full)
    return NULL;
  value = jansson.object_get (flat, full);
  if (json_is_integer (value)) {
    char text[32];

    snprintf (text, sizeof text, "%lld",
              (long long) jansson.integer_value (value));
    jansson.object_set_new (flat, full, jansson.string (text));
    value = jansson.object_get (flat, full);
  }
  return jansson.string_value (value);
}

/* The protocol below a format driver, at PREFIX of FLAT. */
static int
parse_protocol (const char *from, const char *name, json_t *flat,
                const char *prefix, struct reference *ref)
{
  const char *driver = get (flat, prefix, "driver");
  const char *filename = get (flat, prefix, "filename");
  const char *path, *host;

  if (driver == NULL && filename) {
    struct reference inner = { 0 };
    int r;

    if (has_prefix (filename, "json:"))
      return refuse (from, name, "json: inside json:", -EINVAL);
    r = reference_parse (from, filename, &inner);
    ref->path = inner.path;
    ref->uri = inner.uri;
    return r;
  }
  if (driver == NULL)
    return refuse (from, name, "it names no driver and no file", -EINVAL);
  if (strcmp (driver, "file") == 0 || strcmp (driver, "host_device") == 0) {
    if (filename == NULL)
      return refuse (from, name, "the member \"filename\" is missing",
                     -EINVAL);
    return set_path (from, name, filename, ref);
  }
  if (strcmp (driver, "nbd") != 0)
    return refuse (from, name, "only the drivers file, host_device, nbd, "
                   "raw and qcow2 can be used", -ENOTSUP);

  path = get (flat, prefix, "server.path");
  if (path == NULL)
    path = get (flat, prefix, "path");
  host = get (flat, prefix, "server.host");
  if (host == NULL)
    host = get (flat, prefix, "host");
  if (path == NULL && host == NULL)
    return refuse (from, name, "the NBD server has neither path nor host",
                   -EINVAL);
  ref->uri = make_uri (path, host,
                       get (flat, prefix, "server.port")
                       ? get (flat, prefix, "server.port")
                       : get (flat, prefix, "port"),
                       get (flat, prefix, "export"));
  return ref->uri ? 0 : -ENOMEM;
}

static int
parse_flat (const char *from, const char *name, json_t *flat,
            struct reference *ref)
{
  const char *driver = get (flat, "", "driver");
  const char *prefix = "";

  if ((driver && (strcmp (driver, "qcow2") == 0 ||
                  strcmp (driver, "raw") == 0)) ||
      get (flat, "file", "driver") || get (flat, "file", "filename")) {
    prefix = "file";
    if (driver) {
      ref->format = strdup (driver);
      if (ref->format == NULL)
        return -ENOMEM;
    }
    if (driver && strcmp (driver, "raw") == 0 &&
        (jansson.object_get (flat, "offset") ||
         jansson.object_get (flat, "size")))
      return refuse (from, name, "a raw file with offset or size", -ENOTSUP);
  }
  return parse_protocol (from, name, flat, prefix, ref);
}

/* OBJ or NULL, which nobody else refers to. */
static void
free_json (json_t *obj)
{
  if (obj)
    jansson.delete (obj);
}

static int
parse_json (const char *from, const char *name, struct reference *ref)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  json_error_t error;
  json_t *obj, *flat;
  int r;

  pthread_once (&once, load_jansson);
  if (jansson_result < 0)
    return refuse (from, name, jansson_error, jansson_result);
  obj = jansson.loads (name + strlen ("json:"), JSON_REJECT_DUPLICATES, &error);
  if (!json_is_object (obj)) {
    free_json (obj);
    return refuse (from, name, "it is not a JSON object", -EINVAL);
  }
  flat = jansson.object ();
  r = flat ? flatten (obj, "", flat, 0) : -ENOMEM;
  if (r == 0)
    r = parse_flat (from, name, flat, ref);
  else if (r == -EINVAL)
    r = refuse (from, name, "it is nested too deeply", -EINVAL);
  free_json (flat);
  free_json (obj);
  return r;
}

static int
parse (const char *from, const char *name, struct reference *ref)
{
  static const char *const uris[] = {
    "nbd://", "nbds://", "nbd+unix://", "nbds+unix://", NULL
  };
  const char *path = name, *colon, *slash;
  size_t i;

  if (has_prefix (name, "json:"))
    return parse_json (from, name, ref);
  for (i = 0; uris[i]; ++i) {
    if (has_prefix (name, uris[i])) {
      ref->uri = strdup (name);
      return ref->uri ? 0 : -ENOMEM;
    }
  }
  if (has_prefix (name, "nbd:"))
    return parse_old_nbd (from, name, ref);
  if (has_prefix (name, "file:"))
    path += strlen ("file:");
  else {
    colon = strchr (name, ':');
    slash = strchr (name, '/');
    if (colon && (slash == NULL || colon < slash))
      return refuse (from, name, "that protocol is not supported; write "
                     "./NAME if it is a file", -ENOTSUP);
  }
  return set_path (from, name, path, ref);
}

int
reference_parse (const char *from, const char *name, struct reference *ref)
{
  int r;

  memset (ref, 0, sizeof *ref);
  r = parse (from, name, ref);
  if (r < 0)
    reference_free (ref);
  return r;
}
