/* SPDX-License-Identifier: BSD-3-Clause */
/* zlib: a cluster is one raw deflate stream.
 *
 * Ways to make one, after a look at the data:
 *
 *   one byte repeated        a remembered stream
 *   noise                    nothing: the caller stores it plain
 *   window of 4 KiB          ISA-L (levels 1 to 3), zlib (4 to 9)
 *   window of 32 KiB         ISA-L (1, 2), libdeflate (3 to 9), which cannot
 *                            limit the window
 *
 * with zlib in place of a library that is not there, and three ways to
 * read one: libdeflate is the fastest for whole clusters but cannot stop
 * half way; ISA-L can; and zlib, which is always there and is what QEMU
 * reads with, is asked about every stream that another library refuses.
 *
 * So what zlib accepts is read in every build, and the same bytes.  The
 * other libraries check less (libdeflate lets the lengths of codes run
 * over their end), so of the streams that zlib refuses, which no compressor
 * makes, some are read, as a whole or in part, depending on the build.
 *
 * No match is farther than the window, so that with the default of
 * 4096 the streams decode in readers that have no larger one, as QEMU's
 * own streams do.
 */

#include <config.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "codec.h"
#include "codec-internal.h"
#include "codec-library.h"
#include "deflate-probe.h"

#define MAX_LEVEL 9
#define DEFAULT_LEVEL 3

#ifdef HAVE_LIBISAL
#define ISAL_MAX_LEVEL 3
/* Small: blocks of 16k symbols compress better than larger ones. */
#define ISAL_BUF_LEN(level) \
  ((level) == 3 ? ISAL_DEF_LVL3_SMALL : \
   (level) == 2 ? ISAL_DEF_LVL2_SMALL : ISAL_DEF_LVL1_SMALL)
#define ISAL_BUF_MAX ISAL_DEF_LVL3_SMALL
#endif

#ifdef HAVE_LIBDEFLATE
#define LIBDEFLATE_MIN_LEVEL 3  /* of ours: ISA-L is faster below */
#endif

/* Blocks of up to 16k symbols.  QEMU uses 9, which gives larger and slower
 * streams: with a small window zlib renews its hash table every 4 KiB.
 */
#define ZLIB_MEM_LEVEL 8

#define RUN_STREAM_MAX 4096

struct zlib_deflater {
  z_stream strm;
  int level;                    /* 0 = strm is not initialised */
  unsigned window;
};

struct codec_deflate {
  struct zlib_deflater main;
  struct zlib_deflater runs;    /* of compress_run */
  z_stream inflater;
  bool inflater_ready;

#ifdef HAVE_LIBISAL
  struct isal_zstream *isal;
  uint8_t *isal_buf;            /* ISAL_BUF_MAX bytes */
  struct inflate_state *isal_inflater;
#endif
#ifdef HAVE_LIBDEFLATE
  struct libdeflate_decompressor *libdeflate;
  struct libdeflate_compressor *compressor;
  int compressor_level;         /* of ours */
#endif

  /* The stream of RUN_LEN bytes of RUN_BYTE.  RUN_LEN == 0: none. */
  size_t run_len;
  uint8_t run_byte;
  size_t run_stream_len;
  uint8_t run_stream[RUN_STREAM_MAX];
};

void
codec_deflate_level_range (int *min, int *max, int *def)
{
  *min = 1;
  *max = MAX_LEVEL;
  *def = DEFAULT_LEVEL;
}

void
codec_deflate_free (struct codec_deflate *ctx)
{
  if (ctx == NULL)
    return;
  if (ctx->main.level)
    zlib.deflateEnd (&ctx->main.strm);
  if (ctx->runs.level)
    zlib.deflateEnd (&ctx->runs.strm);
  if (ctx->inflater_ready)
    zlib.inflateEnd (&ctx->inflater);
#ifdef HAVE_LIBISAL
  free (ctx->isal);
  free (ctx->isal_buf);
  free (ctx->isal_inflater);
#endif
#ifdef HAVE_LIBDEFLATE
  if (ctx->libdeflate)
    libdeflate.free_decompressor (ctx->libdeflate);
  if (ctx->compressor)
    libdeflate.free_compressor (ctx->compressor);
#endif
  free (ctx);
}

static struct codec_deflate *
get_ctx (struct codec_deflate **ctx)
{
  if (*ctx == NULL)
    *ctx = calloc (1, sizeof **ctx);
  return *ctx;
}

/*----------------------------------------------------------------------
 * Compression.  These functions return as codec_compress does.
 */

static int64_t
compress_zlib (struct zlib_deflater *d, int level, unsigned window,
               const void *in, size_t len, void *out, size_t out_len)
{
  int r;

  if (d->level != level || d->window != window) {
    if (d->level)
      zlib.deflateEnd (&d->strm);
    d->level = 0;
    memset (&d->strm, 0, sizeof d->strm);
    if (zlib.deflateInit2_ (&d->strm, level, Z_DEFLATED,
                            window == 4096 ? -12 : -15, ZLIB_MEM_LEVEL,
                            Z_DEFAULT_STRATEGY, ZLIB_VERSION,
                            sizeof d->strm) != Z_OK)
      return -ENOMEM;
    d->level = level;
    d->window = window;
  }
  else
    zlib.deflateReset (&d->strm);

  d->strm.next_in = (Bytef *) in;
  d->strm.avail_in = len;
  d->strm.next_out = out;
  d->strm.avail_out = out_len;
  r = zlib.deflate (&d->strm, Z_FINISH);
  return r == Z_STREAM_END ? (int64_t) d->strm.total_out : 0;
}

#ifdef HAVE_LIBISAL

static int64_t
compress_isal (struct codec_deflate *ctx, int level, unsigned window,
               const void *in, size_t len, void *out, size_t out_len)
{
  struct isal_zstream *strm;

  if (ctx->isal_buf == NULL)
    ctx->isal_buf = calloc (1, ISAL_BUF_MAX);
  if (ctx->isal == NULL)
    ctx->isal = calloc (1, sizeof *ctx->isal);
  if (ctx->isal_buf == NULL || ctx->isal == NULL)
    return -ENOMEM;

  strm = ctx->isal;
  isal.deflate_stateless_init (strm);
  strm->end_of_stream = 1;
  strm->hist_bits = window == 4096 ? 12 : 15;
  strm->level = level;
  strm->level_buf = ctx->isal_buf;
  strm->level_buf_size = ISAL_BUF_LEN (level);
  strm->next_in = (uint8_t *) in;
  strm->avail_in = len;
  strm->next_out = out;
  strm->avail_out = out_len;
  return isal.deflate_stateless (strm) == COMP_OK ? strm->total_out : 0;
}

#endif /* HAVE_LIBISAL */

#ifdef HAVE_LIBDEFLATE

static int64_t
compress_libdeflate (struct codec_deflate *ctx, int level,
                     const void *in, size_t len, void *out, size_t out_len)
{
  /* Level 2 is enough to beat zlib at level 6 with QEMU's window. */
  static const int levels[MAX_LEVEL + 1] = { 0, 1, 1, 2, 4, 5, 6, 8, 10, 12 };

  if (ctx->compressor == NULL || ctx->compressor_level != level) {
    if (ctx->compressor)
      libdeflate.free_compressor (ctx->compressor);
    ctx->compressor = libdeflate.alloc_compressor (levels[level]);
    ctx->compressor_level = level;
    if (ctx->compressor == NULL)
      return -ENOMEM;
  }
  return libdeflate.deflate_compress (ctx->compressor, in, len, out, out_len);
}

#endif /* HAVE_LIBDEFLATE */

static int64_t
compress_at (struct codec_deflate *ctx, int level, unsigned window,
             const void *in, size_t len, void *out, size_t out_len)
{
#ifdef HAVE_LIBDEFLATE
  if (window > 4096 && level >= LIBDEFLATE_MIN_LEVEL)
    return compress_libdeflate (ctx, level, in, len, out, out_len);
#endif
#ifdef HAVE_LIBISAL
  if (level <= ISAL_MAX_LEVEL)
    return compress_isal (ctx, level, window, in, len, out, out_len);
#endif
  return compress_zlib (&ctx->main, level, window, in, len, out, out_len);
}

/* LEN times the byte *IN. */
static int64_t
compress_run (struct codec_deflate *ctx, const uint8_t *in, size_t len,
              void *out, size_t out_len)
{
  if (ctx->run_len != len || ctx->run_byte != *in) {
    /* The distance is 1, so that one stream fits all windows, and the
     * level makes no difference.
     */
    const int64_t r = compress_zlib (&ctx->runs, 6, 4096, in, len,
                                     ctx->run_stream, sizeof ctx->run_stream);

    ctx->run_len = 0;
    if (r <= 0)
      return r;
    ctx->run_len = len;
    ctx->run_byte = *in;
    ctx->run_stream_len = r;
  }
  if (ctx->run_stream_len > out_len)
    return 0;
  memcpy (out, ctx->run_stream, ctx->run_stream_len);
  return ctx->run_stream_len;
}

int64_t
codec_deflate_compress (struct codec_deflate **ctxp,
                        int level, unsigned window,
                        const void *in, size_t len, void *out, size_t out_len)
{
  struct codec_deflate *ctx = get_ctx (ctxp);
  int64_t r;

  if (ctx == NULL)
    return -ENOMEM;
  if (memcmp (in, (const uint8_t *) in + 1, len - 1) == 0) {
    r = compress_run (ctx, in, len, out, out_len);
    if (r != 0)
      return r;
  }
  else if (deflate_probe_is_noise (in, len, window))
    return 0;
  return compress_at (ctx, level, window, in, len, out, out_len);
}

/*----------------------------------------------------------------------
 * Decompression.
 */

/* The reference.  The window is the output itself, so that a far match
 * is no problem.
 */
static int
inflate_zlib (struct codec_deflate *ctx, const void *in, size_t in_len,
              void *out, size_t out_len, size_t want)
{
  z_stream *strm = &ctx->inflater;
  int r;

  if (!ctx->inflater_ready) {
    if (zlib.inflateInit2_ (strm, -15, ZLIB_VERSION, sizeof *strm) != Z_OK)
      return -ENOMEM;
    ctx->inflater_ready = true;
  }
  else
    zlib.inflateReset (strm);

  strm->next_in = (Bytef *) in;
  strm->avail_in = in_len;
  strm->next_out = out;
  strm->avail_out = want;
  r = zlib.inflate (strm, Z_FINISH);
  if (r == Z_MEM_ERROR)
    return -ENOMEM;
  if (strm->avail_out > 0)
    return -EIO;
  /* Nobody asked for the rest, whatever it is. */
  if (want < out_len)
    return 0;
  return r == Z_STREAM_END || r == Z_BUF_ERROR ? 0 : -EIO;
}

#ifdef HAVE_LIBISAL

/* Returns 1 if zlib must decide. */
static int
inflate_isal (struct codec_deflate *ctx, const void *in, size_t in_len,
              void *out, size_t out_len, size_t want)
{
  struct inflate_state *state = ctx->isal_inflater;
  int r;

  if (state == NULL) {
    state = calloc (1, sizeof *state);
    if (state == NULL)
      return -ENOMEM;
    ctx->isal_inflater = state;
  }

  isal.inflate_init (state);
  state->next_in = (uint8_t *) in;
  state->avail_in = in_len;
  state->next_out = out;
  state->avail_out = want;
  r = isal.inflate_stateless (state);
  if (state->avail_out > 0)
    return 1;
  if (want < out_len || r == ISAL_DECOMP_OK || r == ISAL_OUT_OVERFLOW)
    return 0;
  return 1;
}

#endif /* HAVE_LIBISAL */

#ifdef HAVE_LIBDEFLATE

/* The whole cluster.  Returns 1 if zlib must decide: libdeflate refuses
 * streams that go on after the cluster.
 */
static int
inflate_libdeflate (struct codec_deflate *ctx, const void *in, size_t in_len,
                    void *out, size_t out_len)
{
  size_t used, n;

  if (ctx->libdeflate == NULL) {
    ctx->libdeflate = libdeflate.alloc_decompressor ();
    if (ctx->libdeflate == NULL)
      return -ENOMEM;
  }
  if (libdeflate.deflate_decompress_ex (ctx->libdeflate, in, in_len,
                                        out, out_len, &used, &n)
      == LIBDEFLATE_SUCCESS && n == out_len)
    return 0;
  return 1;
}

#endif /* HAVE_LIBDEFLATE */

int
codec_deflate_decompress (struct codec_deflate **ctxp,
                          const void *in, size_t in_len,
                          void *out, size_t out_len, size_t want)
{
  struct codec_deflate *ctx = get_ctx (ctxp);
  int r = 1;

  if (ctx == NULL)
    return -ENOMEM;
#ifdef HAVE_LIBDEFLATE
  if (want == out_len)
    r = inflate_libdeflate (ctx, in, in_len, out, out_len);
  else
#endif
    {
#ifdef HAVE_LIBISAL
      r = inflate_isal (ctx, in, in_len, out, out_len, want);
#endif
    }
  if (r == 1)
    r = inflate_zlib (ctx, in, in_len, out, out_len, want);
  return r;
}

/* For whole clusters libdeflate is as fast as ISA-L or up to 1.3 times
 * faster, depending on the data, and nearly twice as fast as zlib.
 */
size_t
codec_deflate_want (size_t out_len, size_t want)
{
#if defined HAVE_LIBDEFLATE && defined HAVE_LIBISAL
  return want > out_len / 8 * 7 ? out_len : want;
#elif defined HAVE_LIBDEFLATE
  return want > out_len / 2 ? out_len : want;
#else
  (void) out_len;
  return want;
#endif
}

/*----------------------------------------------------------------------
 * Names.
 */

const char *
codec_deflate_library (void)
{
#if defined HAVE_LIBISAL && defined HAVE_LIBDEFLATE
  return "isal+libdeflate+zlib";
#elif defined HAVE_LIBISAL
  return "isal+zlib";
#elif defined HAVE_LIBDEFLATE
  return "libdeflate+zlib";
#else
  return "zlib";
#endif
}

const char *
codec_inflate_library (void)
{
#if defined HAVE_LIBISAL && defined HAVE_LIBDEFLATE
  return "libdeflate+isal+zlib";
#elif defined HAVE_LIBISAL
  return "isal+zlib";
#elif defined HAVE_LIBDEFLATE
  return "libdeflate+zlib";
#else
  return "zlib";
#endif
}
