/* SPDX-License-Identifier: BSD-3-Clause */
/* The codec on streams that are wrong.  Whatever they say, nothing
 * outside of the buffers is touched (they end at unreadable pages),
 * nothing loops or takes memory without bound, and what QEMU refuses is
 * refused.
 */

#include <config.h>

#undef NDEBUG

#include <errno.h>
#include <stdbool.h>
#include <sys/resource.h>

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "codec.h"
#include "test-codec-util.h"

#define MAX ((size_t) 2 << 20)

static struct guarded g_in, g_packed, g_out;

/* Is the stream one that QEMU takes for a cluster of LEN bytes?  Its
 * rule, applied by zlib and by streaming zstd with the default limits.
 */
static bool
reference (enum codec_type type, const uint8_t *packed, size_t packed_len,
           uint8_t *out, size_t len)
{
  bool ok;

  if (type == CODEC_ZLIB) {
    z_stream strm = { .next_in = (Bytef *) packed, .avail_in = packed_len,
                      .next_out = out, .avail_out = len };
    int r;

    CHECK (inflateInit2 (&strm, -12) == Z_OK);
    r = inflate (&strm, Z_FINISH);
    ok = (r == Z_STREAM_END || r == Z_BUF_ERROR) && strm.avail_out == 0;
    inflateEnd (&strm);
  }
  else {
    static ZSTD_DCtx *dctx;
    ZSTD_inBuffer in = { packed, packed_len, 0 };
    ZSTD_outBuffer o = { out, len, 0 };
    size_t r = 1;

    if (dctx == NULL)
      dctx = ZSTD_createDCtx ();
    CHECK (dctx != NULL);
    ZSTD_DCtx_reset (dctx, ZSTD_reset_session_only);
    ok = true;
    while (ok && o.pos < o.size) {
      const size_t before = in.pos + o.pos;

      r = ZSTD_decompressStream (dctx, &o, &in);
      ok = !ZSTD_isError (r) && in.pos + o.pos > before;
    }
    ok = ok && r == 0;
  }
  return ok;
}

/* Decode a stream that may be anything, and say if it was accepted: when
 * the reference accepts it, and with the same bytes.  Of a part, what
 * follows it need not be judged; deflate libraries may accept more.
 */
static bool
try (enum codec_type type, const uint8_t *packed, size_t packed_len,
     size_t len, size_t want)
{
  static uint8_t expected[MAX];
  uint8_t *out = guarded_tail (&g_out, len);
  const uint8_t *in = guarded_tail (&g_packed, packed_len);
  bool ref;
  int r;

  if (in != packed)
    memmove (guarded_tail (&g_packed, packed_len), packed, packed_len);
  r = codec_decompress (codec_thread (), type, in, packed_len,
                        out, len, want);
  CHECK (r == 0 || r == -EIO);
  ref = reference (type, in, packed_len, expected, len);
  if (ref) {
    CHECK (r == 0);
    CHECK (memcmp (out, expected, want) == 0);
  }
  else
    CHECK (r == -EIO || want < len || type == CODEC_ZLIB);
  return r == 0;
}

static size_t
make_packed (enum codec_type type, unsigned window, int level,
             const uint8_t *data, size_t len, uint8_t *packed)
{
  const struct codec_params params = { type, level, window };
  int64_t r;

  r = codec_compress (codec_thread (), &params, data, len, packed, len - 1);
  CHECK (r > 0);
  return r;
}

/* Cut off at each byte: refused, never short or garbage. */
static void
test_truncated (enum codec_type type, enum kind kind, size_t len)
{
  uint8_t *data = guarded_tail (&g_in, len);
  uint8_t *packed = malloc (len);
  size_t packed_len, n;

  CHECK (packed != NULL);
  fill_data (data, len, kind, 3);
  packed_len = make_packed (type, 4096, 0, data, len, packed);
  for (n = 0; n < packed_len; ++n) {
    const bool whole = try (type, packed, n, len, len);
    const bool part = try (type, packed, n, len, len / 2);
    uint8_t *out = guarded_tail (&g_out, len);

    /* Deflate may end before its last byte, as far as output goes. */
    CHECK (!whole || (type == CODEC_ZLIB && n + 4 >= packed_len));
    if (part)
      CHECK (memcmp (out, data, len / 2) == 0);
  }
  CHECK (try (type, packed, packed_len, len, len));
  free (packed);
}

/* Each bit flipped, and many random changes at once. */
static void
test_damaged (enum codec_type type, enum kind kind, size_t len,
              unsigned rounds)
{
  uint8_t *data = guarded_tail (&g_in, len);
  uint8_t *packed = malloc (len), *bad = malloc (len);
  uint64_t seed = 11 + kind;
  size_t packed_len, bit;
  unsigned i, j;

  CHECK (packed != NULL && bad != NULL);
  fill_data (data, len, kind, 3);
  packed_len = make_packed (type, 32768, 0, data, len, packed);
  for (bit = 0; bit < 8 * packed_len && bit < 2000; ++bit) {
    packed[bit / 8] ^= 1 << bit % 8;
    try (type, packed, packed_len, len, len);
    try (type, packed, packed_len, len, 1 + bit % len);
    packed[bit / 8] ^= 1 << bit % 8;
  }
  for (i = 0; i < rounds; ++i) {
    size_t n = packed_len;

    memcpy (bad, packed, packed_len);
    for (j = 0; j <= i % 8; ++j) {
      const uint64_t r = test_random (&seed);
      /* Headers first of all. */
      const size_t at = r & 1 ? (r >> 1) % packed_len : (r >> 1) % 100;

      if (at < packed_len)
        bad[at] = r >> 56;
      if (r >> 60 == 1)
        n = (r >> 8) % (packed_len + 1);
    }
    try (type, bad, n, len, len);
    try (type, bad, n, len, 1 + test_random (&seed) % len);
  }
  free (packed);
  free (bad);
}

/* No stream at all. */
static void
test_garbage (enum codec_type type)
{
  uint8_t buf[600];
  uint64_t seed = 23;
  unsigned i, j;

  for (i = 0; i < 10000; ++i) {
    const size_t n = test_random (&seed) % sizeof buf;

    for (j = 0; j < n; ++j)
      buf[j] = test_random (&seed) >> 56;
    if (type == CODEC_ZSTD && n >= 4)
      memcpy (buf, "\x28\xb5\x2f\xfd", 4);
    else if (n > 0)             /* mostly dynamic blocks */
      buf[0] = (buf[0] & ~7) | (i % 4 ? 4 : i / 4 % 8);
    try (type, buf, n, 65536, 65536);
    try (type, buf, n, 65536, 1 + test_random (&seed) % 65536);
  }
}

/* Streams that go on after the cluster, or end before it. */
static void
test_wrong_length (enum codec_type type)
{
  const size_t len = 65536;
  uint8_t *data = guarded_tail (&g_in, 2 * len);
  uint8_t *packed = malloc (2 * len);
  size_t packed_len;

  CHECK (packed != NULL);
  fill_data (data, 2 * len, KIND_TEXT, 3);

  /* Twice as much: a deflate stream is cut at the cluster's end (QEMU
   * does so), a zstd frame must end with it.
   */
  packed_len = make_packed (type, 4096, 0, data, 2 * len, packed);
  CHECK (try (type, packed, packed_len, len, len) == (type == CODEC_ZLIB));
  CHECK (try (type, packed, packed_len, len, len / 4) ==
         (type == CODEC_ZLIB));
  CHECK (try (type, packed, packed_len, len, len - 1) ==
         (type == CODEC_ZLIB));

  /* A byte or half of it short. */
  packed_len = make_packed (type, 4096, 0, data, len - 1, packed);
  CHECK (!try (type, packed, packed_len, len, len));
  packed_len = make_packed (type, 4096, 0, data, len / 2, packed);
  CHECK (!try (type, packed, packed_len, len, len));
  CHECK (!try (type, packed, packed_len, len, len / 2 + 1));
  /* With bytes of the next cluster in the same sector behind it. */
  memset (packed + packed_len, 0xff, 512);
  CHECK (!try (type, packed, packed_len + 512, len, len));
  memset (packed + packed_len, 0, 512);
  CHECK (!try (type, packed, packed_len + 512, len, len));
  free (packed);
}

/* A little input that claims to be gigabytes. */
static void
test_bombs (void)
{
  const size_t big = (size_t) 64 << 20;
  uint8_t *data = calloc (1, big), *packed = malloc (big);
  z_stream strm = { 0 };
  size_t n;

  CHECK (data != NULL && packed != NULL);
  CHECK (deflateInit2 (&strm, 9, Z_DEFLATED, -15, 9, 0) == Z_OK);
  strm.next_in = data;
  strm.avail_in = big;
  strm.next_out = packed;
  strm.avail_out = big;
  CHECK (deflate (&strm, Z_FINISH) == Z_STREAM_END);
  n = strm.total_out;
  deflateEnd (&strm);
  CHECK (n < MAX);
  CHECK (try (CODEC_ZLIB, packed, n, 65536, 65536));
  CHECK (try (CODEC_ZLIB, packed, n, 512, 100));

  n = ZSTD_compress (packed, big, data, big, 3);
  CHECK (!ZSTD_isError (n) && n < MAX);
  CHECK (!try (CODEC_ZSTD, packed, n, 65536, 65536));
  CHECK (!try (CODEC_ZSTD, packed, n, 512, 100));
  free (data);
  free (packed);
}

/* Empty blocks and frames, as many as fit: no output, no endless loop. */
static void
test_empty (void)
{
  static const uint8_t stored[] = { 0, 0, 0, 0xff, 0xff };
  static const uint8_t skippable[] = { 0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0 };
  uint8_t *packed = malloc (MAX), frame[32];
  size_t i, n;

  CHECK (packed != NULL);
  for (i = 0; i + sizeof stored <= MAX; i += sizeof stored)
    memcpy (packed + i, stored, sizeof stored);
  CHECK (!try (CODEC_ZLIB, packed, i, 65536, 65536));
  CHECK (!try (CODEC_ZLIB, packed, i, 65536, 10));

  for (i = 0; i + sizeof skippable <= MAX; i += sizeof skippable)
    memcpy (packed + i, skippable, sizeof skippable);
  CHECK (!try (CODEC_ZSTD, packed, i, 65536, 65536));
  CHECK (!try (CODEC_ZSTD, packed, i, MAX, 10));

  n = ZSTD_compress (frame, sizeof frame, "", 0, 3);
  CHECK (!ZSTD_isError (n));
  for (i = 0; i + n <= MAX; i += n)
    memcpy (packed + i, frame, n);
  CHECK (!try (CODEC_ZSTD, packed, i, 65536, 65536));
  CHECK (!try (CODEC_ZSTD, packed, i, MAX, 10));

  /* A skippable frame that is longer than the input. */
  memcpy (packed, skippable, sizeof skippable);
  memset (packed + 4, 0xff, 4);
  CHECK (!try (CODEC_ZSTD, packed, 1000, 65536, 65536));
  CHECK (!try (CODEC_ZSTD, packed, 1000, MAX, 10));
  free (packed);
}

/* Append bits, at bit *AT of the zeroed P, as deflate orders them. */
static void
put_bits (uint8_t *p, size_t *at, unsigned value, unsigned count)
{
  unsigned i;

  for (i = 0; i < count; ++i, ++*at)
    p[*at / 8] |= (value >> i & 1) << *at % 8;
}

static void
put_code (uint8_t *p, size_t *at, unsigned code, unsigned count)
{
  while (count > 0)
    put_bits (p, at, code >> --count & 1, 1);
}

/* Matches that reach before the start: other memory would leak out. */
static void
test_far_matches (void)
{
  z_stream strm = { 0 };
  uint8_t dict[1000], data[1000], packed[1000] = { 0 };
  size_t n;

  /* Last block, fixed codes; 'a'; length 10, distance 2; end. */
  n = 0;
  put_bits (packed, &n, 1, 1);
  put_bits (packed, &n, 1, 2);
  put_code (packed, &n, 0x30 + 'a', 8);
  put_code (packed, &n, 264 - 256, 7);
  put_code (packed, &n, 1, 5);
  put_code (packed, &n, 0, 7);
  n = (n + 7) / 8;
  CHECK (!try (CODEC_ZLIB, packed, n, 11, 11));
  CHECK (!try (CODEC_ZLIB, packed, n, 11, 8));

  /* A stream that was made with a dictionary, and is read without. */
  fill_data (dict, sizeof dict, KIND_RANDOM, 1);
  memcpy (data, dict, sizeof data);
  CHECK (deflateInit2 (&strm, 9, Z_DEFLATED, -15, 9, 0) == Z_OK);
  CHECK (deflateSetDictionary (&strm, dict, sizeof dict) == Z_OK);
  strm.next_in = data;
  strm.avail_in = sizeof data;
  strm.next_out = packed;
  strm.avail_out = sizeof packed;
  CHECK (deflate (&strm, Z_FINISH) == Z_STREAM_END);
  n = strm.total_out;
  deflateEnd (&strm);
  CHECK (!try (CODEC_ZLIB, packed, n, sizeof data, sizeof data));
  CHECK (!try (CODEC_ZLIB, packed, n, sizeof data, 10));
}

/* Code lengths of which the last repetition goes beyond the last code:
 * zlib refuses that, others may not, but then the data is what follows.
 */
static void
test_repeat_too_far (void)
{
  uint8_t packed[100] = { 0 }, *out = guarded_tail (&g_out, 512);
  size_t at = 0, i, want;

  put_bits (packed, &at, 1 | 2 << 1, 3);        /* last block, dynamic */
  put_bits (packed, &at, 14 << 10, 14);         /* 257 + 1 codes */
  for (i = 0; i < 18; ++i)      /* 18 is zeroes, 1 a code of one bit */
    put_bits (packed, &at, i == 2 || i == 17, 3);
  put_bits (packed, &at, 1 | (97 - 11) << 1, 8);
  put_bits (packed, &at, 0, 1);                 /* 'a' */
  put_bits (packed, &at, 1 | (138 - 11) << 1, 8);
  put_bits (packed, &at, 1 | (20 - 11) << 1, 8);
  put_bits (packed, &at, 0, 1);                 /* end of block */
  put_bits (packed, &at, 1 | (138 - 11) << 1, 8);
  put_bits (packed, &at, 0, 32);
  at += 512 - 32;
  put_bits (packed, &at, 1, 1);

  for (want = 1; want <= 512; want += 73)
    if (try (CODEC_ZLIB, packed, (at + 7) / 8, 512, want))
      for (i = 0; i < want; ++i)
        CHECK (out[i] == 'a');
}

static void
test_dictionary_id (void)
{
  const size_t len = 65536;
  uint8_t *data = guarded_tail (&g_in, len);
  uint8_t *packed = malloc (len), *with_id = malloc (len);
  size_t n;

  CHECK (packed != NULL && with_id != NULL);
  fill_data (data, len, KIND_TEXT, 3);
  n = make_packed (CODEC_ZSTD, 0, 0, data, len, packed);
  /* Frame header: magic, descriptor, [window], dictionary id, size.  One
   * byte of id: flag 1.
   */
  CHECK ((packed[4] & 3) == 0);
  {
    const size_t at = packed[4] & 0x20 ? 5 : 6;

    memcpy (with_id, packed, at);
    with_id[4] |= 1;
    with_id[at] = 77;
    memcpy (with_id + at + 1, packed + at, n - at);
    CHECK (!try (CODEC_ZSTD, with_id, n + 1, len, len));
    CHECK (!try (CODEC_ZSTD, with_id, n + 1, len, 10));
    CHECK (!try (CODEC_ZSTD, with_id, n + 1, MAX, 10));
    /* An id of 0 is none. */
    with_id[at] = 0;
    CHECK (try (CODEC_ZSTD, with_id, n + 1, len, len));
  }
  free (packed);
  free (with_id);
}

/* Formats from before zstd 1.0, which a library may still know. */
static void
test_legacy_zstd (void)
{
  uint8_t packed[64] = { 0x25, 0xb5, 0x2f, 0xfd };
  unsigned i;

  for (i = 0x1e; i <= 0x27; ++i) {
    packed[0] = i;
    CHECK (!try (CODEC_ZSTD, packed, sizeof packed, 65536, 65536));
    CHECK (!try (CODEC_ZSTD, packed, sizeof packed, MAX, 10));
  }
}

static long
peak_kib (void)
{
  struct rusage ru;

  CHECK (getrusage (RUSAGE_SELF, &ru) == 0);
  return ru.ru_maxrss;
}

/* A frame that claims a window of gigabytes costs no memory, and decodes
 * nevertheless: the window never exceeds the cluster.
 */
static void
test_huge_window (void)
{
  /* Magic; descriptor: no content size, window byte follows; window;
   * one raw block, last, of 512 bytes.
   */
  uint8_t packed[4 + 1 + 1 + 3 + 512] = { 0x28, 0xb5, 0x2f, 0xfd, 0, 0 };
  uint8_t out[512];
  const uint32_t block = 512 << 3 | 1;
  const long before = peak_kib ();
  unsigned log;

  fill_data (packed + 9, 512, KIND_RANDOM, 1);
  packed[6] = block & 0xff;
  packed[7] = block >> 8 & 0xff;
  packed[8] = block >> 16;
  for (log = 10; log <= 41; ++log) {
    int r;

    packed[5] = (log - 10) << 3 | 7;
    r = codec_decompress (codec_thread (), CODEC_ZSTD, packed, sizeof packed,
                          out, 512, 512);
    CHECK (r == -EIO || (r == 0 && memcmp (out, packed + 9, 512) == 0));
    CHECK (r == 0 || log > 27);
    /* Streamed. */
    r = codec_decompress (codec_thread (), CODEC_ZSTD, packed, sizeof packed,
                          guarded_tail (&g_out, MAX), MAX, 512);
    CHECK (r == -EIO || r == 0);
  }
  CHECK (peak_kib () - before < 32 * 1024);
}

int
main (void)
{
  static const enum codec_type types[] = { CODEC_ZLIB, CODEC_ZSTD };
  unsigned i;

  g_in = guarded_alloc (MAX);
  g_packed = guarded_alloc (MAX);
  g_out = guarded_alloc (MAX);

  test_huge_window ();
  for (i = 0; i < 2; ++i) {
    test_wrong_length (types[i]);
    test_truncated (types[i], KIND_TEXT, 4096);
    test_truncated (types[i], KIND_EXE, 16384);
    test_truncated (types[i], KIND_RUN, 65536);
    test_truncated (types[i], KIND_ISLANDS, 65536);
    test_damaged (types[i], KIND_TEXT, 4096, 10000);
    test_damaged (types[i], KIND_EXE, 65536, 1000);
    test_damaged (types[i], KIND_SKEWED, 512, 20000);
    test_damaged (types[i], KIND_ISLANDS, 262144, 200);
    test_garbage (types[i]);
  }
  test_bombs ();
  test_empty ();
  test_far_matches ();
  test_repeat_too_far ();
  test_dictionary_id ();
  test_legacy_zstd ();

  guarded_free (&g_in);
  guarded_free (&g_packed);
  guarded_free (&g_out);
  return 0;
}
