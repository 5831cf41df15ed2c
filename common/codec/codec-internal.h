/* SPDX-License-Identifier: BSD-3-Clause */
/* Between codec.c and the two codecs.  The arguments were checked by
 * codec.c; results are those of codec_compress and codec_decompress.
 *
 * Each codec makes its contexts when it first needs them, into *CTX,
 * which starts as NULL, and leaves them there on error.
 */

#ifndef CODEC_INTERNAL_H
#define CODEC_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

struct codec_deflate;
struct codec_zstd;

extern void codec_deflate_level_range (int *min, int *max, int *def);
extern void codec_zstd_level_range (int *min, int *max, int *def);

/* LEVEL is in the range above (never 0), WINDOW is 4096 or 32768. */
extern int64_t codec_deflate_compress (struct codec_deflate **ctx,
                                       int level, unsigned window,
                                       const void *in, size_t len,
                                       void *out, size_t out_len)
  __attribute__ ((__warn_unused_result__));
extern int64_t codec_zstd_compress (struct codec_zstd **ctx, int level,
                                    const void *in, size_t len,
                                    void *out, size_t out_len)
  __attribute__ ((__warn_unused_result__));

/* 1 <= WANT <= OUT_LEN. */
extern int codec_deflate_decompress (struct codec_deflate **ctx,
                                     const void *in, size_t in_len,
                                     void *out, size_t out_len, size_t want)
  __attribute__ ((__warn_unused_result__));
extern int codec_zstd_decompress (struct codec_zstd **ctx,
                                  const void *in, size_t in_len,
                                  void *out, size_t out_len, size_t want)
  __attribute__ ((__warn_unused_result__));

/* See codec_want.  1 <= WANT <= OUT_LEN. */
extern size_t codec_deflate_want (size_t out_len, size_t want);
extern size_t codec_zstd_want (size_t out_len, size_t want);

/* NULL is allowed. */
extern void codec_deflate_free (struct codec_deflate *ctx);
extern void codec_zstd_free (struct codec_zstd *ctx);

#endif /* CODEC_INTERNAL_H */
