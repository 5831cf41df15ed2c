/* SPDX-License-Identifier: BSD-3-Clause */
/* zstd: one or more frames make a cluster.
 *
 * Frames are decoded in one shot, straight into the cluster: that is the
 * fastest way, and needs no memory for the frame's window, whatever size
 * the frame claims.  Only a small part of a large cluster is streamed.
 *
 * Written are single frames that record their content size, without
 * checksum or dictionary: what QEMU writes and decodes.
 *
 * Refused, though libraries may decode them: frames that need a
 * dictionary (none can be known), and the formats from before zstd 1.0,
 * which no writer of qcow2 produces, and whose decoders nobody tests.
 */

#include <config.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "codec.h"
#include "codec-internal.h"
#include "codec-library.h"

#define DEFAULT_LEVEL 3
/* Of every libzstd since 1.0. */
#define MAX_LEVEL 22

/* RFC 8878 section 3.1.2: the last hex digit is free. */
#define SKIPPABLE_MAGIC 0x184d2a50U
#define SKIPPABLE_MASK 0xfffffff0U
#define MAGIC_LEN 4

/* RFC 8878 section 3.1.1.2: no block decodes to more. */
#define BLOCK_MAX ((size_t) 128 * 1024)

/* A window this large is streamed (the largest cluster has 2 MiB);
 * frames with larger ones are decoded in one shot.
 */
#define STREAM_WINDOW_LOG 21

struct codec_zstd {
  ZSTD_CCtx *cctx;
  int level;                    /* the level set in cctx, 0 = none */
  ZSTD_DCtx *dctx;
};

void
codec_zstd_level_range (int *min, int *max, int *def)
{
  *min = 1;
  *max = MAX_LEVEL;
  *def = DEFAULT_LEVEL;
}

void
codec_zstd_free (struct codec_zstd *ctx)
{
  if (ctx) {
    zstd.freeCCtx (ctx->cctx);
    zstd.freeDCtx (ctx->dctx);
    free (ctx);
  }
}

static struct codec_zstd *
get_ctx (struct codec_zstd **ctx)
{
  if (*ctx == NULL)
    *ctx = calloc (1, sizeof **ctx);
  return *ctx;
}

static int
get_cctx (struct codec_zstd **ctxp, int level)
{
  struct codec_zstd *ctx = get_ctx (ctxp);

  if (ctx == NULL)
    return -ENOMEM;
  if (ctx->cctx == NULL) {
    ctx->cctx = zstd.createCCtx ();
    if (ctx->cctx == NULL)
      return -ENOMEM;
  }
  if (ctx->level != level) {
    if (zstd.isError (zstd.CCtx_setParameter (ctx->cctx,
                                              ZSTD_c_compressionLevel,
                                              level)))
      return -EINVAL;
    ctx->level = level;
  }
  return 0;
}

static int
get_dctx (struct codec_zstd **ctxp)
{
  struct codec_zstd *ctx = get_ctx (ctxp);

  if (ctx == NULL)
    return -ENOMEM;
  if (ctx->dctx == NULL) {
    ctx->dctx = zstd.createDCtx ();
    if (ctx->dctx == NULL)
      return -ENOMEM;
    if (zstd.isError (zstd.DCtx_setParameter (ctx->dctx,
                                              ZSTD_d_windowLogMax,
                                              STREAM_WINDOW_LOG))) {
      zstd.freeDCtx (ctx->dctx);
      ctx->dctx = NULL;
      return -EINVAL;
    }
  }
  return 0;
}

int64_t
codec_zstd_compress (struct codec_zstd **ctx, int level,
                     const void *in, size_t len, void *out, size_t out_len)
{
  size_t n;
  int r;

  r = get_cctx (ctx, level);
  if (r < 0)
    return r;
  n = zstd.compress2 ((*ctx)->cctx, out, out_len, in, len);
  if (!zstd.isError (n))
    return n;

  switch (zstd.getErrorCode (n)) {
  case ZSTD_error_dstSize_tooSmall: return 0;
  case ZSTD_error_memory_allocation: return -ENOMEM;
  default: return -EINVAL;
  }
}

/* May the frame at IN be decoded? */
static bool
frame_is_allowed (const uint8_t *in, size_t in_len)
{
  uint32_t magic;

  if (in_len < MAGIC_LEN)
    return false;
  magic = in[0] | in[1] << 8 | in[2] << 16 | (uint32_t) in[3] << 24;
  if ((magic & SKIPPABLE_MASK) == SKIPPABLE_MAGIC)
    return true;
  return magic == ZSTD_MAGICNUMBER &&
    zstd.getDictID_fromFrame (in, in_len) == 0;
}

static int
zstd_error (size_t code)
{
  return zstd.getErrorCode (code) == ZSTD_error_memory_allocation ?
    -ENOMEM : -EIO;
}

/* Each round takes at least a frame header from the input, so it ends. */
static int
decompress_whole (ZSTD_DCtx *dctx, const uint8_t *in, size_t in_len,
                  uint8_t *out, size_t out_len)
{
  while (out_len > 0) {
    size_t frame_len, n;

    if (!frame_is_allowed (in, in_len))
      return -EIO;
    frame_len = zstd.findFrameCompressedSize (in, in_len);
    if (zstd.isError (frame_len) || frame_len == 0 || frame_len > in_len)
      return -EIO;
    n = zstd.decompressDCtx (dctx, out, out_len, in, frame_len);
    if (zstd.isError (n))
      return zstd_error (n);
    in += frame_len;
    in_len -= frame_len;
    out += n;
    out_len -= n;
  }
  return 0;
}

/* The first WANT bytes.  -EFBIG: not possible within the memory allowed.
 * OUT_LEN is more than WANT, and the stream must not see all of it: given
 * room for the whole content it would decode it in one shot.
 */
static int
decompress_part (ZSTD_DCtx *dctx, const uint8_t *in, size_t in_len,
                 uint8_t *out, size_t want)
{
  ZSTD_inBuffer input = { .src = in, .size = in_len };
  ZSTD_outBuffer output = { .dst = out, .size = want };
  bool frame_start = true;

  if (zstd.isError (zstd.DCtx_reset (dctx, ZSTD_reset_session_only)))
    return -EIO;
  while (output.pos < want) {
    const size_t in_pos = input.pos, out_pos = output.pos;
    size_t r;

    if (frame_start && !frame_is_allowed (in + in_pos, in_len - in_pos))
      return -EIO;
    r = zstd.decompressStream (dctx, &output, &input);
    if (zstd.isError (r)) {
      if (zstd.getErrorCode (r) == ZSTD_error_frameParameter_windowTooLarge)
        return -EFBIG;
      return zstd_error (r);
    }
    frame_start = r == 0;
    if (input.pos == in_pos && output.pos == out_pos)
      return -EIO;              /* the input ends within a frame */
  }
  return 0;
}

int
codec_zstd_decompress (struct codec_zstd **ctx,
                       const void *in, size_t in_len,
                       void *out, size_t out_len, size_t want)
{
  int r;

  r = get_dctx (ctx);
  if (r < 0)
    return r;
  if (codec_zstd_want (out_len, want) < out_len) {
    r = decompress_part ((*ctx)->dctx, in, in_len, out, want);
    if (r != -EFBIG)
      return r;
  }
  return decompress_whole ((*ctx)->dctx, in, in_len, out, out_len);
}

/* Streaming copies everything once more, and decodes whole blocks. */
size_t
codec_zstd_want (size_t out_len, size_t want)
{
  size_t blocks = (want + BLOCK_MAX - 1) / BLOCK_MAX * BLOCK_MAX;

  return blocks > out_len - out_len / 4 ? out_len : blocks;
}
