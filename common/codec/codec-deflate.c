/* SPDX-License-Identifier: BSD-3-Clause */
/* zlib: a cluster is one raw deflate stream.
 *
 * Four ways to make one, after a look at the data:
 *
 *   one byte repeated        a remembered stream
 *   long runs                ISA-L level 1, as level 3 is slow and
 *                            large on them
 *   incompressible           nothing: the caller stores it plain
 *   all else                 ISA-L or zlib, by level
 *
 * and three ways to read one: libdeflate is the fastest for whole
 * clusters but cannot stop half way; ISA-L can; and zlib, which is always
 * there, has the last word on every stream that another library does
 * not like.  So what is accepted does not depend on the build, and is
 * what QEMU accepts.
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

#include <zlib.h>
#ifdef HAVE_LIBISAL
#include <isa-l.h>
#endif
#ifdef HAVE_LIBDEFLATE
#include <libdeflate.h>
#endif

#include "codec.h"
#include "codec-internal.h"

#ifdef HAVE_LIBISAL
#define ISAL_MAX_LEVEL 3
#define DEFAULT_LEVEL 3
/* Small: blocks of 16k symbols compress better than larger ones. */
#define ISAL_BUF_LEN(level) \
  ((level) == 3 ? ISAL_DEF_LVL3_SMALL : \
   (level) == 2 ? ISAL_DEF_LVL2_SMALL : ISAL_DEF_LVL1_SMALL)
#define ISAL_BUF_MAX ISAL_DEF_LVL3_SMALL
#else
#define ISAL_MAX_LEVEL 0
#define DEFAULT_LEVEL 6
#endif

/* Blocks of up to 16k symbols.  QEMU uses 9, which gives larger and slower
 * streams: with a small window zlib renews its hash table every 4 KiB.
 */
#define ZLIB_MEM_LEVEL 8

/* Clusters below SAMPLED_MIN are not worth a look.  Of others, the bytes
 * of the first LOOK_LEN are counted in part, and if they look unusual,
 * PROBE_LEN bytes are compressed.
 */
#define SAMPLED_MIN 16384
#define LOOK_LEN 8192
#define PROBE_LEN 2048

/* Runs are what ISA-L level 1 makes so many times smaller; what level 3
 * would save then is below one percent of the cluster.
 */
#define RUNS_RATIO 128

#define RUN_STREAM_MAX 4096

struct zlib_deflater {
  z_stream strm;
  int level;                    /* 0 = strm is not initialised */
  unsigned window;
};

struct codec_deflate {
  struct zlib_deflater main;
  struct zlib_deflater fast;    /* of compress_run; of probes too, where
                                   there is no ISA-L */
  z_stream inflater;
  bool inflater_ready;

#ifdef HAVE_LIBISAL
  struct isal_zstream *isal;
  uint8_t *isal_buf;            /* ISAL_BUF_MAX bytes */
  struct inflate_state *isal_inflater;
#endif
#ifdef HAVE_LIBDEFLATE
  struct libdeflate_decompressor *libdeflate;
#endif

  /* The stream of RUN_LEN bytes of RUN_BYTE.  RUN_LEN == 0: none. */
  size_t run_len;
  uint8_t run_byte;
  size_t run_stream_len;
  uint8_t run_stream[RUN_STREAM_MAX];

  uint8_t scratch[LOOK_LEN];    /* output of probes */
};

void
codec_deflate_level_range (int *min, int *max, int *def)
{
  *min = 1;
  *max = 9;
  *def = DEFAULT_LEVEL;
}

void
codec_deflate_free (struct codec_deflate *ctx)
{
  if (ctx == NULL)
    return;
  if (ctx->main.level)
    deflateEnd (&ctx->main.strm);
  if (ctx->fast.level)
    deflateEnd (&ctx->fast.strm);
  if (ctx->inflater_ready)
    inflateEnd (&ctx->inflater);
#ifdef HAVE_LIBISAL
  free (ctx->isal);
  free (ctx->isal_buf);
  free (ctx->isal_inflater);
#endif
#ifdef HAVE_LIBDEFLATE
  if (ctx->libdeflate)
    libdeflate_free_decompressor (ctx->libdeflate);
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
      deflateEnd (&d->strm);
    d->level = 0;
    memset (&d->strm, 0, sizeof d->strm);
    if (deflateInit2 (&d->strm, level, Z_DEFLATED, window == 4096 ? -12 : -15,
                      ZLIB_MEM_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK)
      return -ENOMEM;
    d->level = level;
    d->window = window;
  }
  else
    deflateReset (&d->strm);

  d->strm.next_in = (Bytef *) in;
  d->strm.avail_in = len;
  d->strm.next_out = out;
  d->strm.avail_out = out_len;
  r = deflate (&d->strm, Z_FINISH);
  return r == Z_STREAM_END ? (int64_t) d->strm.total_out : 0;
}

#ifdef HAVE_LIBISAL

static int64_t
compress_isal (struct codec_deflate *ctx, int level, unsigned window,
               const void *in, size_t len, void *out, size_t out_len)
{
  struct isal_zstream *strm;

  if (ctx->isal_buf == NULL)
    ctx->isal_buf = malloc (ISAL_BUF_MAX);
  if (ctx->isal == NULL)
    ctx->isal = calloc (1, sizeof *ctx->isal);
  if (ctx->isal_buf == NULL || ctx->isal == NULL)
    return -ENOMEM;

  strm = ctx->isal;
  isal_deflate_stateless_init (strm);
  strm->end_of_stream = 1;
  strm->hist_bits = window == 4096 ? 12 : 15;
  strm->level = level;
  strm->level_buf = ctx->isal_buf;
  strm->level_buf_size = ISAL_BUF_LEN (level);
  strm->next_in = (uint8_t *) in;
  strm->avail_in = len;
  strm->next_out = out;
  strm->avail_out = out_len;
  return isal_deflate_stateless (strm) == COMP_OK ? strm->total_out : 0;
}

#endif /* HAVE_LIBISAL */

static int64_t
compress_at (struct codec_deflate *ctx, int level, unsigned window,
             const void *in, size_t len, void *out, size_t out_len)
{
#ifdef HAVE_LIBISAL
  if (level <= ISAL_MAX_LEVEL)
    return compress_isal (ctx, level, window, in, len, out, out_len);
#endif
  return compress_zlib (&ctx->main, level, window, in, len, out, out_len);
}

/* The fastest there is. */
static int64_t
compress_fast (struct codec_deflate *ctx, unsigned window,
               const void *in, size_t len, void *out, size_t out_len)
{
#ifdef HAVE_LIBISAL
  return compress_isal (ctx, 1, window, in, len, out, out_len);
#else
  return compress_zlib (&ctx->fast, 1, window, in, len, out, out_len);
#endif
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
    const int64_t r = compress_zlib (&ctx->fast, 6, 4096, in, len,
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

enum look { TYPICAL, MAYBE_RUNS, MAYBE_NOISE };

/* Count 1024 bytes.  The sum of the squared counts is about 5100 if all
 * bytes are equally likely, 10000 or more for text and machine code, and
 * 1048576 / N for N bytes that share everything among them.
 */
static enum look
look_at (const uint8_t *in)
{
  uint16_t count[256] = { 0 };
  size_t i, j;
  unsigned long sum = 0;

  for (i = 0; i < LOOK_LEN; i += LOOK_LEN / 64)
    for (j = 0; j < 16; ++j)
      count[in[i + j]]++;
  for (i = 0; i < 256; ++i)
    sum += (unsigned long) count[i] * count[i];

  return sum < 6500 ? MAYBE_NOISE : sum > 100000 ? MAYBE_RUNS : TYPICAL;
}

#ifdef HAVE_LIBISAL

/* Does nothing get smaller?  Returns 1, 0 or -errno.  ISA-L is fast enough
 * to be asked about the whole cluster, so nothing is missed.
 */
static int
is_noise (struct codec_deflate *ctx, unsigned window,
          const uint8_t *in, size_t len, void *out, size_t out_len)
{
  int64_t r;

  r = compress_fast (ctx, window, in, PROBE_LEN, ctx->scratch, PROBE_LEN - 1);
  if (r == 0)
    r = compress_fast (ctx, window, in, len, out, out_len);
  return r < 0 ? r : r == 0;
}

#else /* !HAVE_LIBISAL */

/* zlib is not: it is asked about the first part and about samples. */
static int
is_noise (struct codec_deflate *ctx, unsigned window,
          const uint8_t *in, size_t len, void *out, size_t out_len)
{
  size_t off;
  int64_t r;

  (void) out;
  (void) out_len;
  r = compress_fast (ctx, window, in, LOOK_LEN, ctx->scratch, LOOK_LEN - 1);
  for (off = LOOK_LEN; r == 0 && off + PROBE_LEN <= len; off += LOOK_LEN)
    r = compress_fast (ctx, window, in + off, PROBE_LEN,
                       ctx->scratch, PROBE_LEN - 1);
  return r < 0 ? r : r == 0;
}

#endif /* !HAVE_LIBISAL */

/* Returns 0 if IN is not runs, or does not fit. */
static int64_t
compress_runs (struct codec_deflate *ctx, unsigned window,
               const uint8_t *in, size_t len, void *out, size_t out_len)
{
  const size_t max = len / RUNS_RATIO;
  int64_t r;

  r = compress_fast (ctx, window, in, PROBE_LEN, ctx->scratch, PROBE_LEN / 16);
  if (r <= 0)
    return r;
  return compress_fast (ctx, window, in, len,
                        out, out_len < max ? out_len : max);
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
  else if (len >= SAMPLED_MIN) {
    switch (look_at (in)) {
    case TYPICAL:
      break;
    case MAYBE_NOISE:
      r = is_noise (ctx, window, in, len, out, out_len);
      if (r != 0)
        return r < 0 ? r : 0;
      break;
    case MAYBE_RUNS:
      if (level > ISAL_MAX_LEVEL)
        break;
      r = compress_runs (ctx, window, in, len, out, out_len);
      if (r != 0)
        return r;
      break;
    }
  }
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
    if (inflateInit2 (strm, -15) != Z_OK)
      return -ENOMEM;
    ctx->inflater_ready = true;
  }
  else
    inflateReset (strm);

  strm->next_in = (Bytef *) in;
  strm->avail_in = in_len;
  strm->next_out = out;
  strm->avail_out = want;
  r = inflate (strm, Z_FINISH);
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

  isal_inflate_init (state);
  state->next_in = (uint8_t *) in;
  state->avail_in = in_len;
  state->next_out = out;
  state->avail_out = want;
  r = isal_inflate_stateless (state);
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
    ctx->libdeflate = libdeflate_alloc_decompressor ();
    if (ctx->libdeflate == NULL)
      return -ENOMEM;
  }
  if (libdeflate_deflate_decompress_ex (ctx->libdeflate, in, in_len,
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
#ifdef HAVE_LIBISAL
  return "isal+zlib";
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
