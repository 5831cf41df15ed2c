/* SPDX-License-Identifier: BSD-3-Clause */
/* Compress and decompress one cluster.  No I/O, no locks.
 *
 * A struct codec holds the contexts of one thread (they are expensive to
 * create: reuse them); it must not be used by two threads at once.
 * codec_thread () gives each thread its own.
 *
 * The format: qcow2 spec, "Compressed Clusters Descriptor" and
 * "Additional fields", compression_type.
 */

#ifndef CODEC_H
#define CODEC_H

#include <stddef.h>
#include <stdint.h>

/* The values of the header's compression_type field. */
enum codec_type {
  CODEC_ZLIB = 0,               /* raw deflate, no zlib header */
  CODEC_ZSTD = 1,               /* one or more zstd frames */
};

struct codec;

struct codec_params {
  enum codec_type type;
  int level;                    /* 0 = default; see codec_level_range */
  unsigned window;              /* zlib only: 4096 or 32768 bytes, 0 = 4096 */
};

/* The codec of the calling thread; freed when the thread ends, or when
 * the program (or the shared object that contains this code) is
 * unloaded by that thread.  NULL and errno if there is no memory.
 */
extern struct codec *codec_thread (void);

/* Allowed levels of TYPE: *MIN to *MAX, and what 0 stands for.
 *
 * zlib: 1 to 9.  Levels 1 to 3, the default, are ISA-L's of the same
 * number: six times as fast as QEMU and 7 % larger.  4 to 9 are zlib's.
 * With a window of 32 KiB, 3 to 9 are libdeflate's: 3 is three times as
 * fast as QEMU and 3 % smaller.  Without these libraries all are zlib's.
 * zstd: 1 to 22, default 3.
 */
extern void codec_level_range (enum codec_type type,
                               int *min, int *max, int *def);

/* Compress LEN bytes of IN into OUT, of which at most OUT_LEN bytes may
 * be used.  Returns the length of the result, or 0 if it does not fit
 * (callers pass OUT_LEN smaller than LEN, so that 0 means "store it
 * plain").  -errno: -ENOMEM; -EINVAL (a type, level or window that does
 * not exist, or more than 1 GiB); -ENOTSUP (a library cannot be loaded:
 * codec_library_error).
 *
 * The result depends on the arguments and on the libraries of the build
 * only, not on what C did before.  One exception: streams of ISA-L's
 * levels 1 and 2 rarely differ by a match with the address of a context.
 */
extern int64_t codec_compress (struct codec *c,
                               const struct codec_params *params,
                               const void *in, size_t len,
                               void *out, size_t out_len)
  __attribute__ ((__warn_unused_result__));

/* Decompress IN (IN_LEN bytes; bytes after the end of the stream are
 * ignored, as the length on disk is rounded up to sectors) into OUT.
 * Stops as soon as WANT bytes were produced: OUT holds at least the
 * first WANT bytes of the cluster, up to OUT_LEN may be written.
 * WANT <= OUT_LEN.  A caller that will need the rest passes WANT ==
 * OUT_LEN.
 *
 * Returns 0; -EIO if the stream is malformed, truncated, or ends before
 * WANT bytes; -ENOMEM; -EINVAL (no such type, or more than 1 GiB);
 * -ENOTSUP (a library cannot be loaded: codec_library_error).  OUT is
 * undefined on error.  Reads IN_LEN bytes at the most, never
 * allocates more than the contexts need for OUT_LEN, whatever window
 * size a hostile frame claims.
 *
 * What QEMU accepts is accepted, whatever WANT is and the libraries of the
 * build are, and gives the same bytes: a deflate stream that goes on after
 * OUT_LEN bytes is, one that is shorter is not; the last zstd frame must
 * end exactly with the cluster.
 *
 * With WANT < OUT_LEN, errors after the wanted bytes may go unnoticed.  A
 * malformed deflate stream that zlib refuses may give data where another
 * library checks less, for one WANT and not for another; where it does,
 * it is the same data.
 */
extern int codec_decompress (struct codec *c, enum codec_type type,
                             const void *in, size_t in_len,
                             void *out, size_t out_len, size_t want)
  __attribute__ ((__warn_unused_result__));

/* What to pass as WANT when WANT bytes are needed and a caller can keep
 * more: WANT, or OUT_LEN where the whole costs no more than the part
 * (a zstd block is decoded as a whole; whole clusters have the faster
 * inflate).  WANT <= result <= OUT_LEN.
 */
extern size_t codec_want (enum codec_type type, size_t out_len, size_t want);

/* Load the libraries of TYPE, if that has not happened yet: the functions
 * above do it, so this is for those who want to know early.  Any thread, with
 * any lock held.
 *
 * 0; -ENOTSUP, and codec_library_error is one sentence that says which
 * library is missing.
 */
extern int codec_library_load (enum codec_type type)
  __attribute__ ((__warn_unused_result__));
extern const char *codec_library_error (enum codec_type type);

/* Names of the libraries used, for --dump-plugin, e.g. "isal+zlib". */
extern const char *codec_deflate_library (void);
extern const char *codec_inflate_library (void);

#endif /* CODEC_H */
