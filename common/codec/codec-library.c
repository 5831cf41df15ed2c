/* SPDX-License-Identifier: BSD-3-Clause */
/* The libraries of the codecs.  See codec-library.h.
 *
 * Invariant: for each type, all libraries are loaded or none is used; they
 * are loaded once, and an error stays.
 *
 * Locks: none but that of pthread_once.
 */

#include <config.h>

#include <pthread.h>

#include "codec.h"
#include "codec-library.h"
#include "library.h"

/* Those whose headers this was compiled with. */
#define ZLIB_SONAME "libz.so.1"
#define ZSTD_SONAME "libzstd.so.1"
#define ISAL_SONAME "libisal.so.2"
#define LIBDEFLATE_SONAME "libdeflate.so.0"

#define NR(array) (sizeof (array) / sizeof (array)[0])

struct codec_library_zlib zlib;
struct codec_library_zstd zstd;
#ifdef HAVE_LIBISAL
struct codec_library_isal isal;
#endif
#ifdef HAVE_LIBDEFLATE
struct codec_library_libdeflate libdeflate;
#endif

static struct loaded {
  int result;
  char why[320];
} loaded_zlib, loaded_zstd;

static void
load_zlib (void)
{
#define ENTRY(name) { #name, &zlib.name },
  static const struct library_function zlib_functions[] = {
    CODEC_LIBRARY_ZLIB (ENTRY)
  };
#undef ENTRY
#ifdef HAVE_LIBISAL
#define ENTRY(name) { "isal_" #name, &isal.name },
  static const struct library_function isal_functions[] = {
    CODEC_LIBRARY_ISAL (ENTRY)
  };
#undef ENTRY
#endif
#ifdef HAVE_LIBDEFLATE
#define ENTRY(name) { "libdeflate_" #name, &libdeflate.name },
  static const struct library_function libdeflate_functions[] = {
    CODEC_LIBRARY_LIBDEFLATE (ENTRY)
  };
#undef ENTRY
#endif
  struct loaded *l = &loaded_zlib;

  l->result = library_load (ZLIB_SONAME, zlib_functions, NR (zlib_functions),
                            l->why, sizeof l->why);
#ifdef HAVE_LIBISAL
  if (l->result == 0)
    l->result = library_load (ISAL_SONAME, isal_functions,
                              NR (isal_functions), l->why, sizeof l->why);
#endif
#ifdef HAVE_LIBDEFLATE
  if (l->result == 0)
    l->result = library_load (LIBDEFLATE_SONAME, libdeflate_functions,
                              NR (libdeflate_functions), l->why,
                              sizeof l->why);
#endif
}

static void
load_zstd (void)
{
#define ENTRY(name) { "ZSTD_" #name, &zstd.name },
  static const struct library_function functions[] = {
    CODEC_LIBRARY_ZSTD (ENTRY)
  };
#undef ENTRY
  struct loaded *l = &loaded_zstd;

  l->result = library_load (ZSTD_SONAME, functions, NR (functions), l->why,
                            sizeof l->why);
}

int
codec_library_load (enum codec_type type)
{
  static pthread_once_t zlib_once = PTHREAD_ONCE_INIT;
  static pthread_once_t zstd_once = PTHREAD_ONCE_INIT;

  if (type == CODEC_ZSTD) {
    pthread_once (&zstd_once, load_zstd);
    return loaded_zstd.result;
  }
  pthread_once (&zlib_once, load_zlib);
  return loaded_zlib.result;
}

const char *
codec_library_error (enum codec_type type)
{
  return type == CODEC_ZSTD ? loaded_zstd.why : loaded_zlib.why;
}
