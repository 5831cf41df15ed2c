/* SPDX-License-Identifier: BSD-3-Clause */
/* Chooses the codec, checks what callers pass, and keeps the contexts of
 * each thread.
 *
 * Contexts cost up to a few hundred kilobytes and as many microseconds,
 * so each thread keeps its own until it ends; a thread only pays for
 * the codecs and directions that it uses.  No lock: nothing is shared.
 *
 * Not here: anything of the formats (codec-deflate.c, codec-zstd.c).
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "codec.h"
#include "codec-internal.h"
#include "codec-library.h"

/* The libraries count in 32 bits, some of them signed.  Clusters have
 * 2 MiB at most.
 */
#define MAX_LEN ((size_t) 1 << 30)

struct codec {
  struct codec_deflate *deflate;
  struct codec_zstd *zstd;
};

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int key_error;

static void
free_codec (void *vp)
{
  struct codec *c = vp;

  if (c) {
    codec_deflate_free (c->deflate);
    codec_zstd_free (c->zstd);
    free (c);
  }
}

static void
create_key (void)
{
  key_error = pthread_key_create (&key, free_codec);
}

/* A thread that outlives this code (a plugin is unloaded while threads
 * of the server still run) must not call free_codec; and the destructors
 * of the thread that unloads it would come too late.
 */
static void __attribute__ ((__destructor__))
delete_key (void)
{
  pthread_once (&key_once, create_key);
  if (key_error == 0) {
    free_codec (pthread_getspecific (key));
    pthread_key_delete (key);
    key_error = EINVAL;
  }
}

struct codec *
codec_thread (void)
{
  struct codec *c;
  int r;

  pthread_once (&key_once, create_key);
  if (key_error) {
    errno = key_error;
    return NULL;
  }
  c = pthread_getspecific (key);
  if (c == NULL) {
    c = calloc (1, sizeof *c);
    if (c == NULL)
      return NULL;
    r = pthread_setspecific (key, c);
    if (r) {
      free (c);
      errno = r;
      return NULL;
    }
  }
  return c;
}

void
codec_level_range (enum codec_type type, int *min, int *max, int *def)
{
  if (type == CODEC_ZSTD)
    codec_zstd_level_range (min, max, def);
  else
    codec_deflate_level_range (min, max, def);
}

int64_t
codec_compress (struct codec *c, const struct codec_params *params,
                const void *in, size_t len, void *out, size_t out_len)
{
  const unsigned window = params->window ? params->window : 4096;
  int level = params->level, min, max, def, r;

  r = codec_library_load (params->type);
  if (r < 0)
    return r;
  codec_level_range (params->type, &min, &max, &def);
  if (level == 0)
    level = def;
  if (level < min || level > max || len > MAX_LEN)
    return -EINVAL;
  if (out_len > MAX_LEN)
    out_len = MAX_LEN;
  if (len == 0 || out_len == 0)
    return 0;

  switch (params->type) {
  case CODEC_ZLIB:
    if (window != 4096 && window != 32768)
      return -EINVAL;
    return codec_deflate_compress (&c->deflate, level, window,
                                   in, len, out, out_len);
  case CODEC_ZSTD:
    return codec_zstd_compress (&c->zstd, level, in, len, out, out_len);
  }
  return -EINVAL;
}

int
codec_decompress (struct codec *c, enum codec_type type,
                  const void *in, size_t in_len,
                  void *out, size_t out_len, size_t want)
{
  int r;

  r = codec_library_load (type);
  if (r < 0)
    return r;
  if (in_len > MAX_LEN || out_len > MAX_LEN || want > out_len)
    return -EINVAL;
  if (want == 0)
    return 0;

  switch (type) {
  case CODEC_ZLIB:
    return codec_deflate_decompress (&c->deflate, in, in_len,
                                     out, out_len, want);
  case CODEC_ZSTD:
    return codec_zstd_decompress (&c->zstd, in, in_len, out, out_len, want);
  }
  return -EINVAL;
}

size_t
codec_want (enum codec_type type, size_t out_len, size_t want)
{
  if (want == 0 || want >= out_len)
    return want;
  return type == CODEC_ZSTD ?
    codec_zstd_want (out_len, want) : codec_deflate_want (out_len, want);
}
