/* SPDX-License-Identifier: BSD-3-Clause */
/* Decompressing what a stranger wrote, and compressing anything:
 * u8 type and size, u8 level and how much is wanted, then the stream, or
 * what is to be compressed.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include <zlib.h>

#include "codec.h"
#include "fuzz.h"

#define HEAD_LEN 2

/* A buffer of exactly LEN bytes, so that one byte more is seen. */
static uint8_t *
exactly (size_t len)
{
  uint8_t *p = malloc (len ? len : 1);

  if (p == NULL)
    exit (2);
  return p;
}

/* Does zlib, asked as QEMU asks it, fill OUT_LEN bytes?  *VALID: and
 * finds nothing wrong up to there.
 */
static bool
reference (const uint8_t *in, size_t len, uint8_t *out, size_t out_len,
           bool *valid)
{
  z_stream strm = {
    .next_in = (Bytef *) in, .avail_in = len,
    .next_out = out, .avail_out = out_len,
  };
  int r;

  if (inflateInit2 (&strm, -12) != Z_OK)
    exit (2);
  r = inflate (&strm, Z_FINISH);
  inflateEnd (&strm);
  *valid = strm.avail_out == 0 && (r == Z_STREAM_END || r == Z_BUF_ERROR);
  return strm.avail_out == 0;
}

/* What zlib takes is taken, whole or the part of it, and the bytes are
 * zlib's.
 */
static void
check_zlib (const uint8_t *in, size_t len, size_t cluster,
            const uint8_t *whole, const uint8_t *part, size_t want)
{
  uint8_t *out = exactly (cluster);
  bool valid;

  reference (in, len, out, cluster, &valid);
  if (valid)
    FUZZ_CHECK (whole && memcmp (out, whole, cluster) == 0);
  if (reference (in, len, out, want, &valid))
    FUZZ_CHECK (part && memcmp (out, part, want) == 0);
  free (out);
}

static void
decompress (struct codec *c, enum codec_type type, const uint8_t *in,
            size_t len, size_t cluster, size_t want)
{
  uint8_t *whole = exactly (cluster), *part = exactly (cluster);
  int r, r2;

  r = codec_decompress (c, type, in, len, whole, cluster, cluster);
  FUZZ_CHECK (r == 0 || r == -EIO);
  r2 = codec_decompress (c, type, in, len, part, cluster, want);
  FUZZ_CHECK (r2 == 0 || r2 == -EIO);
  if (r == 0 && r2 == 0)
    FUZZ_CHECK (memcmp (whole, part, want) == 0);
  if (type == CODEC_ZLIB)
    check_zlib (in, len, cluster, r == 0 ? whole : NULL,
                r2 == 0 ? part : NULL, want);
  else
    FUZZ_CHECK (r < 0 || r2 == 0);
  free (whole);
  free (part);
}

static void
round_trip (struct codec *c, enum codec_type type, const uint8_t *in,
            size_t len, size_t cluster, unsigned how)
{
  struct codec_params params = {
    .type = type, .window = how & 128 ? 32768 : 4096,
  };
  uint8_t *plain = exactly (cluster), *packed = exactly (cluster);
  uint8_t *again = exactly (cluster);
  int min, max, def;
  size_t i;
  int64_t n;

  codec_level_range (type, &min, &max, &def);
  if (max > 6)
    max = 6;                    /* higher ones only take longer */
  params.level = how % (max + 1);
  for (i = 0; i < cluster; ++i)
    plain[i] = len ? in[i % len] + (i / len) * (how & 64 ? 1 : 0) : 0;
  n = codec_compress (c, &params, plain, cluster, packed, cluster - 1);
  FUZZ_CHECK (n >= 0 && n < (int64_t) cluster);
  if (n > 0) {
    FUZZ_CHECK (codec_decompress (c, type, packed, n, again, cluster,
                                  cluster) == 0);
    FUZZ_CHECK (memcmp (plain, again, cluster) == 0);
  }
  free (plain);
  free (packed);
  free (again);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  enum codec_type type;
  struct codec *c = codec_thread ();
  size_t cluster, want;
  uint8_t *in;

  if (size < HEAD_LEN || c == NULL)
    return 0;
  type = data[0] & 1 ? CODEC_ZSTD : CODEC_ZLIB;
  cluster = (size_t) 512 << (data[0] >> 1) % 8;
  want = 1 + (data[1] * cluster / 256) % cluster;
  in = exactly (size - HEAD_LEN);
  memcpy (in, data + HEAD_LEN, size - HEAD_LEN);
  decompress (c, type, in, size - HEAD_LEN, cluster, want);
  round_trip (c, type, in, size - HEAD_LEN, cluster, data[1]);
  free (in);
  return 0;
}
