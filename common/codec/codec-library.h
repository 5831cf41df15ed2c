/* SPDX-License-Identifier: BSD-3-Clause */
/* The libraries of the codecs, loaded with the first cluster that is
 * compressed or decompressed (library.h says why).
 *
 * zlib.inflate (...) is inflate (...), zstd.compress2 (...) is
 * ZSTD_compress2 (...), isal.inflate_init (...) is isal_inflate_init (...).
 * All are valid and constant once codec_library_load has succeeded for their
 * type.
 */

#ifndef CODEC_LIBRARY_H
#define CODEC_LIBRARY_H

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>
#ifdef HAVE_LIBISAL
#include <isa-l.h>
#endif
#ifdef HAVE_LIBDEFLATE
#include <libdeflate.h>
#endif

#define CODEC_LIBRARY_ZLIB(X) \
  X (deflate) \
  X (deflateEnd) \
  X (deflateInit2_) \
  X (deflateReset) \
  X (inflate) \
  X (inflateEnd) \
  X (inflateInit2_) \
  X (inflateReset)

#define CODEC_LIBRARY_ZSTD(X) \
  X (CCtx_setParameter) \
  X (DCtx_reset) \
  X (DCtx_setParameter) \
  X (compress2) \
  X (createCCtx) \
  X (createDCtx) \
  X (decompressDCtx) \
  X (decompressStream) \
  X (findFrameCompressedSize) \
  X (freeCCtx) \
  X (freeDCtx) \
  X (getDictID_fromFrame) \
  X (getErrorCode) \
  X (isError)

#define CODEC_LIBRARY_ISAL(X) \
  X (deflate_stateless) \
  X (deflate_stateless_init) \
  X (inflate_init) \
  X (inflate_stateless)

#define CODEC_LIBRARY_LIBDEFLATE(X) \
  X (alloc_compressor) \
  X (alloc_decompressor) \
  X (deflate_compress) \
  X (deflate_decompress_ex) \
  X (free_compressor) \
  X (free_decompressor)

struct codec_library_zlib {
#define CODEC_LIBRARY_FIELD(name) __typeof__ (name) *name;
  CODEC_LIBRARY_ZLIB (CODEC_LIBRARY_FIELD)
#undef CODEC_LIBRARY_FIELD
};
extern struct codec_library_zlib zlib;

struct codec_library_zstd {
#define CODEC_LIBRARY_FIELD(name) __typeof__ (ZSTD_##name) *name;
  CODEC_LIBRARY_ZSTD (CODEC_LIBRARY_FIELD)
#undef CODEC_LIBRARY_FIELD
};
extern struct codec_library_zstd zstd;

#ifdef HAVE_LIBISAL
struct codec_library_isal {
#define CODEC_LIBRARY_FIELD(name) __typeof__ (isal_##name) *name;
  CODEC_LIBRARY_ISAL (CODEC_LIBRARY_FIELD)
#undef CODEC_LIBRARY_FIELD
};
extern struct codec_library_isal isal;
#endif

#ifdef HAVE_LIBDEFLATE
struct codec_library_libdeflate {
#define CODEC_LIBRARY_FIELD(name) __typeof__ (libdeflate_##name) *name;
  CODEC_LIBRARY_LIBDEFLATE (CODEC_LIBRARY_FIELD)
#undef CODEC_LIBRARY_FIELD
};
extern struct codec_library_libdeflate libdeflate;
#endif

#endif /* CODEC_LIBRARY_H */
