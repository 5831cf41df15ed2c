/* SPDX-License-Identifier: BSD-3-Clause */
/* The codec on data and streams that are right: round trips, windows,
 * partial decoding, other writers' streams, threads.
 * test-codec-hostile.c has the rest.
 */

#include <config.h>

#undef NDEBUG

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include <zlib.h>
#include <zstd.h>

#include "codec.h"
#include "test-codec-util.h"

#define CLUSTER_MIN 512
#define CLUSTER_MAX ((size_t) 2 << 20)

static struct guarded g_in, g_packed, g_out;

/* Decode as a reader that has WINDOW_BITS only: one byte at a time, so
 * that nothing but the window helps with far matches.
 */
static void
check_window (const uint8_t *packed, size_t packed_len,
              const uint8_t *data, size_t len, int window_bits)
{
  z_stream strm = { .next_in = (Bytef *) packed, .avail_in = packed_len };
  size_t i;
  int r = Z_OK;

  CHECK (inflateInit2 (&strm, -window_bits) == Z_OK);
  for (i = 0; i < len; ++i) {
    uint8_t byte;

    strm.next_out = &byte;
    strm.avail_out = 1;
    r = inflate (&strm, Z_SYNC_FLUSH);
    CHECK (r == Z_OK || r == Z_STREAM_END);
    CHECK (strm.avail_out == 0 && byte == data[i]);
  }
  if (r != Z_STREAM_END) {
    uint8_t byte;

    strm.next_out = &byte;
    strm.avail_out = 1;
    CHECK (inflate (&strm, Z_FINISH) == Z_STREAM_END);
  }
  CHECK (strm.total_out == len && strm.avail_in == 0);
  inflateEnd (&strm);
}

/* Decode as QEMU does. */
static void
check_as_qemu (enum codec_type type, const uint8_t *packed, size_t packed_len,
               const uint8_t *data, size_t len)
{
  uint8_t *out = guarded_tail (&g_out, len);

  memset (out, 0x55, len);
  if (type == CODEC_ZLIB) {
    z_stream strm = { .next_in = (Bytef *) packed, .avail_in = packed_len,
                      .next_out = out, .avail_out = len };
    int r;

    CHECK (inflateInit2 (&strm, -12) == Z_OK);
    r = inflate (&strm, Z_FINISH);
    CHECK ((r == Z_STREAM_END || r == Z_BUF_ERROR) && strm.avail_out == 0);
    inflateEnd (&strm);
  }
  else {
    ZSTD_DCtx *dctx = ZSTD_createDCtx ();
    ZSTD_inBuffer in = { packed, packed_len, 0 };
    ZSTD_outBuffer o = { out, len, 0 };
    size_t r = 1;

    CHECK (dctx != NULL);
    while (o.pos < o.size) {
      const size_t before = in.pos + o.pos;

      r = ZSTD_decompressStream (dctx, &o, &in);
      CHECK (!ZSTD_isError (r) && in.pos + o.pos > before);
    }
    CHECK (r == 0);
    ZSTD_freeDCtx (dctx);
  }
  CHECK (memcmp (out, data, len) == 0);
}

/* Decode PACKED and compare the first WANT bytes. */
static void
check_decode (enum codec_type type, const uint8_t *packed, size_t packed_len,
              const uint8_t *data, size_t len, size_t want)
{
  uint8_t *out = guarded_tail (&g_out, len);

  memset (out, 0x55, want);
  CHECK (codec_decompress (codec_thread (), type, packed, packed_len,
                           out, len, want) == 0);
  CHECK (memcmp (out, data, want) == 0);
}

static void
check_parts (enum codec_type type, const uint8_t *packed, size_t packed_len,
             const uint8_t *data, size_t len)
{
  static const size_t wants[] = { 1, 2, 511, 512, 4095, 4096, 4097, 32768,
                                  61440, 65535, 131072, 131073, 200000 };
  size_t i;

  for (i = 0; i < sizeof wants / sizeof wants[0]; ++i)
    if (wants[i] < len)
      check_decode (type, packed, packed_len, data, len, wants[i]);
  check_decode (type, packed, packed_len, data, len, len - 1);
  check_decode (type, packed, packed_len, data, len, len);
}

static void
round_trip (const struct codec_params *params, const uint8_t *data, size_t len,
            bool check_win)
{
  uint8_t *packed = guarded_tail (&g_packed, len - 1), *tail;
  int64_t r, again, room;

  r = codec_compress (codec_thread (), params, data, len, packed, len - 1);
  CHECK (r >= 0 && r < (int64_t) len);
  if (r == 0)
    return;

  /* The end of the stream is the end of what may be read; below, also
   * what the sectors around it hold.
   */
  tail = guarded_tail (&g_packed, r);
  memmove (tail, packed, r);
  check_as_qemu (params->type, tail, r, data, len);
  check_parts (params->type, tail, r, data, len);
  if (check_win && params->type == CODEC_ZLIB)
    check_window (tail, r, data, len, params->window == 32768 ? 15 : 12);

  if (r + 1000 <= (int64_t) len) {
    packed = guarded_tail (&g_packed, r + 1000);
    memmove (packed, tail, r);
    memset (packed + r, 0xa5, 1000);
    check_parts (params->type, packed, r + 1000, data, len);
  }

  /* The same again must give the same; with less room it must not
   * overwrite, and may find another way.
   */
  packed = guarded_tail (&g_packed, len - 1);
  again = codec_compress (codec_thread (), params, data, len, packed, len - 1);
  CHECK (again == r);
  for (room = r; room > r - 2 && room > 0; --room) {
    packed = guarded_tail (&g_packed, room);
    again = codec_compress (codec_thread (), params, data, len, packed, room);
    CHECK (again >= 0 && again <= room);
    if (again > 0)
      check_decode (params->type, packed, again, data, len, len);
  }
}

static void
test_round_trips (enum codec_type type, unsigned window)
{
  int min, max, def, level;
  size_t len;
  enum kind kind;

  codec_level_range (type, &min, &max, &def);
  CHECK (min <= def && def <= max);
  for (len = CLUSTER_MIN; len <= CLUSTER_MAX; len *= 2) {
    uint8_t *data = guarded_tail (&g_in, len);

    for (kind = 0; kind < KIND_COUNT; ++kind) {
      fill_data (data, len, kind, len + kind);
      for (level = 0; level <= max; ++level) {
        const struct codec_params params = { type, level, window };

        /* All levels of few sizes, few levels of all. */
        if (level > 4 && len != 4096 && len != 65536)
          continue;
        if (level > 12 && len != 4096)
          continue;
        if (len > 65536 && level != 0 && (level != 1 || kind != KIND_EXE))
          continue;
        round_trip (&params, data, len,
                    len <= 65536 ? level <= 4 || level == 9 : level == 0);
      }
    }
  }
}

/* Every length, not only powers of two: ends of blocks and of loops. */
static void
test_odd_lengths (void)
{
  uint64_t seed = 7;
  unsigned i;

  for (i = 0; i < 800; ++i) {
    const size_t len = 2 + (i < 400 ? i : test_random (&seed) % 70000);
    const struct codec_params params = {
      .type = i % 3 == 0 ? CODEC_ZSTD : CODEC_ZLIB,
      .level = test_random (&seed) % 5,
      .window = i % 2 ? 4096 : 32768,
    };
    uint8_t *data = guarded_tail (&g_in, len);

    fill_data (data, len, test_random (&seed) % KIND_COUNT, i);
    round_trip (&params, data, len, true);
  }
}

/* What the levels and kinds promise. */
static void
test_sizes (void)
{
  const size_t len = 65536;
  uint8_t *data = guarded_tail (&g_in, len);
  uint8_t *packed = guarded_tail (&g_packed, len);
  struct codec_params params = { .type = CODEC_ZLIB };
  int64_t r;

  fill_data (data, len, KIND_RUN, 0);
  r = codec_compress (codec_thread (), &params, data, len, packed, len - 1);
  CHECK (r > 0 && r < 100);
  data[len - 1] = 0;
  r = codec_compress (codec_thread (), &params, data, len, packed, len - 1);
  CHECK (r > 0 && r < 512);

  /* Noise is plain, unless a small part of it is not noise. */
  fill_data (data, len, KIND_RANDOM, 1);
  r = codec_compress (codec_thread (), &params, data, len, packed, len - 1);
  CHECK (r == 0);
  fill_data (data + 10000, 5000, KIND_TEXT, 1);
  r = codec_compress (codec_thread (), &params, data, len, packed, len - 1);
  CHECK (r > 0 && r < (int64_t) len - 2000);

  /* Matches 4097 bytes away are of use to the large window only. */
  fill_data (data, len, KIND_PERIOD_4097, 1);
  r = codec_compress (codec_thread (), &params, data, len, packed, len - 1);
  CHECK (r == 0);
  params.window = 32768;
  r = codec_compress (codec_thread (), &params, data, len, packed, len - 1);
  CHECK (r > 0 && r < 6000);
}

static void
test_arguments (void)
{
  struct codec *c = codec_thread ();
  uint8_t buf[512] = { 0 }, out[512];
  struct codec_params params = { .type = CODEC_ZLIB };
  int min, max, def;

  CHECK (c != NULL && c == codec_thread ());
  params.level = 10;
  CHECK (codec_compress (c, &params, buf, 512, out, 511) == -EINVAL);
  params.level = -1;
  CHECK (codec_compress (c, &params, buf, 512, out, 511) == -EINVAL);
  params.level = 0;
  params.window = 8192;
  CHECK (codec_compress (c, &params, buf, 512, out, 511) == -EINVAL);
  params.window = 4096;
  CHECK (codec_compress (c, &params, buf, 0, out, 511) == 0);
  CHECK (codec_compress (c, &params, buf, 512, out, 0) == 0);
  CHECK (codec_compress (c, &params, buf, SIZE_MAX, out, 511) == -EINVAL);
  params.type = CODEC_ZSTD;
  codec_level_range (CODEC_ZSTD, &min, &max, &def);
  params.level = max + 1;
  CHECK (codec_compress (c, &params, buf, 512, out, 511) == -EINVAL);
  params.type = 2;
  params.level = 1;
  CHECK (codec_compress (c, &params, buf, 512, out, 511) == -EINVAL);
  CHECK (codec_decompress (c, 2, buf, 512, out, 512, 512) == -EINVAL);
  CHECK (codec_decompress (c, CODEC_ZLIB, buf, 512, out, 10, 11) == -EINVAL);
  CHECK (codec_decompress (c, CODEC_ZLIB, buf, 0, out, 512, 0) == 0);
  CHECK (codec_decompress (c, CODEC_ZLIB, buf, 0, out, 512, 512) == -EIO);
  CHECK (codec_decompress (c, CODEC_ZSTD, buf, 0, out, 512, 512) == -EIO);
  CHECK (codec_want (CODEC_ZLIB, 65536, 4096) == 4096);
  CHECK (codec_want (CODEC_ZLIB, 65536, 65536) == 65536);
  CHECK (codec_want (CODEC_ZSTD, 65536, 4096) == 65536);
  CHECK (codec_want (CODEC_ZSTD, CLUSTER_MAX, 4096) == 131072);
  CHECK (codec_deflate_library ()[0] && codec_inflate_library ()[0]);
}

/* zlib's own streams of every kind decode: levels, windows, strategies,
 * many blocks, flushes.
 */
static void
test_foreign_deflate (void)
{
  const size_t len = 65536;
  uint8_t *data = guarded_tail (&g_in, len), *packed;
  uint64_t seed = 99;
  unsigned i;

  for (i = 0; i < 210; ++i) {
    z_stream strm = { 0 };
    size_t packed_len;
    int r;

    fill_data (data, len, i % KIND_COUNT, i);
    packed = guarded_tail (&g_packed, 2 * len);
    CHECK (deflateInit2 (&strm, i % 10, Z_DEFLATED, -9 - (int) (i % 7),
                         1 + i % 9, i % 5) == Z_OK);
    strm.next_in = data;
    strm.next_out = packed;
    strm.avail_out = 2 * len;
    do {
      strm.avail_in = 1 + test_random (&seed) % 20000;
      if (strm.avail_in > len - strm.total_in)
        strm.avail_in = len - strm.total_in;
      r = deflate (&strm, strm.total_in + strm.avail_in == len ? Z_FINISH :
                   i % 3 == 0 ? Z_FULL_FLUSH : i % 3 == 1 ? Z_NO_FLUSH :
                   Z_SYNC_FLUSH);
    } while (r == Z_OK);
    CHECK (r == Z_STREAM_END);
    packed_len = strm.total_out;
    deflateEnd (&strm);
    memmove (guarded_tail (&g_packed, packed_len), packed, packed_len);
    check_parts (CODEC_ZLIB, guarded_tail (&g_packed, packed_len), packed_len,
                 data, len);
  }
}

/* Clusters of several frames, of frames without content size, with
 * checksums, with skippable and empty frames between.
 */
static size_t
make_frames (uint8_t *packed, size_t max, const uint8_t *data, size_t len,
             uint64_t *seed)
{
  static const uint8_t skippable[] = { 0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0,
                                       'x', 'y', 'z' };
  ZSTD_CCtx *cctx = ZSTD_createCCtx ();
  ZSTD_outBuffer out = { packed, max, 0 };
  size_t done = 0;

  CHECK (cctx != NULL);
  while (done < len) {
    const uint64_t r = test_random (seed);
    size_t n = r % 5 == 0 ? 0 : 1 + (r >> 8) % len, left;
    ZSTD_inBuffer in;

    if (n > len - done)
      n = len - done;
    if (r >> 60 == 0) {
      CHECK (out.size - out.pos > sizeof skippable);
      memcpy (packed + out.pos, skippable, sizeof skippable);
      out.pos += sizeof skippable;
    }
    ZSTD_CCtx_setParameter (cctx, ZSTD_c_checksumFlag, r >> 59 & 1);
    ZSTD_CCtx_setParameter (cctx, ZSTD_c_contentSizeFlag, r >> 58 & 1);
    ZSTD_CCtx_setParameter (cctx, ZSTD_c_compressionLevel, (r >> 40) % 9);
    in = (ZSTD_inBuffer) { data + done, n / 2, 0 };
    if (r >> 57 & 1)            /* streamed: size unknown at the start */
      CHECK (ZSTD_compressStream2 (cctx, &out, &in, ZSTD_e_continue)
             < SIZE_MAX / 2);
    in.size = n;
    left = ZSTD_compressStream2 (cctx, &out, &in, ZSTD_e_end);
    CHECK (left == 0);
    done += n;
  }
  ZSTD_freeCCtx (cctx);
  return out.pos;
}

static void
test_foreign_zstd (void)
{
  uint64_t seed = 5;
  unsigned i;

  for (i = 0; i < 300; ++i) {
    const size_t len = (size_t) 512 << i % 13;
    uint8_t *data = guarded_tail (&g_in, len);
    uint8_t *packed = guarded_tail (&g_packed, 2 * CLUSTER_MAX);
    size_t packed_len;

    fill_data (data, len, (i / 13) % KIND_COUNT, i);
    packed_len = make_frames (packed, 2 * CLUSTER_MAX, data, len, &seed);
    memmove (guarded_tail (&g_packed, packed_len), packed, packed_len);
    packed = guarded_tail (&g_packed, packed_len);
    check_as_qemu (CODEC_ZSTD, packed, packed_len, data, len);
    check_parts (CODEC_ZSTD, packed, packed_len, data, len);
  }
}

/* The result must not depend on what a thread did before: output is to be
 * reproducible.  Each round has contexts of its own, used in another
 * order; all rounds run at once.
 */
#define ROUNDS 4
#define JOBS 120

struct round {
  unsigned order;
  uint64_t hash[JOBS];
};

static struct codec_params
job_params (unsigned job)
{
  return (struct codec_params) {
    .type = job % 3 == 2 ? CODEC_ZSTD : CODEC_ZLIB,
    .level = job % 5,
    .window = job % 2 ? 32768 : 4096,
  };
}

/* ISA-L 2.30 starts levels 1 and 2 with bits of its context's address in a
 * hash value: in one of some hundred processes another match is found.
 */
static bool
is_exception (unsigned job)
{
  const struct codec_params p = job_params (job);

  return p.type == CODEC_ZLIB && (p.level == 1 || p.level == 2) &&
    strstr (codec_deflate_library (), "isal") != NULL;
}

static void *
run_round (void *vp)
{
  struct round *round = vp;
  const size_t len = 65536;
  uint8_t *data = malloc (len), *packed = malloc (len), *out = malloc (len);
  unsigned i, j;

  CHECK (data && packed && out);
  for (i = 0; i < JOBS; ++i) {
    const unsigned job = (i * (2 * round->order + 7)) % JOBS;
    const struct codec_params params = job_params (job);
    int64_t r;

    fill_data (data, len, job % KIND_COUNT, job);
    r = codec_compress (codec_thread (), &params, data, len, packed, len - 1);
    CHECK (r >= 0);
    round->hash[job] = r;
    for (j = 0; j < r; ++j)
      round->hash[job] = (round->hash[job] ^ packed[j]) * 1099511628211ULL;
    if (r > 0) {
      CHECK (codec_decompress (codec_thread (), params.type, packed, r,
                               out, len, len) == 0);
      CHECK (memcmp (out, data, len) == 0);
      CHECK (codec_decompress (codec_thread (), params.type, packed, r,
                               out, len, 5000) == 0);
      CHECK (memcmp (out, data, 5000) == 0);
    }
  }
  free (data);
  free (packed);
  free (out);
  return NULL;
}

static void
test_threads (void)
{
  static struct round rounds[ROUNDS];
  pthread_t threads[ROUNDS];
  /* Each odd multiplier of i modulo JOBS must be a permutation. */
  static const unsigned orders[ROUNDS] = { 0, 2, 3, 5 };
  unsigned i, j;

  for (i = 0; i < ROUNDS; ++i) {
    rounds[i].order = orders[i];
    CHECK (pthread_create (&threads[i], NULL, run_round, &rounds[i]) == 0);
  }
  for (i = 0; i < ROUNDS; ++i)
    CHECK (pthread_join (threads[i], NULL) == 0);
  for (i = 1; i < ROUNDS; ++i)
    for (j = 0; j < JOBS; ++j)
      CHECK (is_exception (j) || rounds[i].hash[j] == rounds[0].hash[j]);
}

int
main (void)
{
  g_in = guarded_alloc (CLUSTER_MAX);
  g_packed = guarded_alloc (2 * CLUSTER_MAX);
  g_out = guarded_alloc (CLUSTER_MAX);

  test_arguments ();
  test_sizes ();
  test_odd_lengths ();
  test_foreign_deflate ();
  test_foreign_zstd ();
  test_threads ();
  test_round_trips (CODEC_ZLIB, 4096);
  test_round_trips (CODEC_ZLIB, 32768);
  test_round_trips (CODEC_ZSTD, 0);

  guarded_free (&g_in);
  guarded_free (&g_packed);
  guarded_free (&g_out);
  return 0;
}
