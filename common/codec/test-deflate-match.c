/* SPDX-License-Identifier: BSD-3-Clause */
/* The package's own compressor: every stream decodes to the data in zlib,
 * with no window larger than it may have; nothing is written beyond the
 * room; the memory of earlier clusters does not matter.  And what is taken
 * for noise.
 */

#include <config.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "deflate-match.h"
#include "deflate-probe.h"
#include "test-codec-util.h"

#define MAX ((size_t) 2 << 20)

static struct guarded g_in, g_out, g_plain;
static struct deflate_match *match;

/* One byte at a time, so that zlib keeps a window of its own, and refuses
 * what reaches farther back.
 */
static void
check_stream (const uint8_t *packed, size_t packed_len,
              const uint8_t *data, size_t len, unsigned window)
{
  const unsigned step = len > 300000 ? len : 1;
  uint8_t *plain = guarded_tail (&g_plain, len);
  z_stream strm = { .next_in = (Bytef *) packed, .avail_in = packed_len };
  size_t n;
  int r = Z_OK;

  CHECK (inflateInit2 (&strm, window == 4096 ? -12 : -15) == Z_OK);
  strm.next_out = plain;
  for (n = 0; n < len; n += step) {
    strm.avail_out = step;
    r = inflate (&strm, Z_SYNC_FLUSH);
    CHECK ((r == Z_OK || r == Z_STREAM_END) && strm.avail_out == 0);
  }
  if (r != Z_STREAM_END) {
    uint8_t byte;

    strm.next_out = &byte;
    strm.avail_out = 1;
    CHECK (inflate (&strm, Z_FINISH) == Z_STREAM_END);
  }
  CHECK (strm.total_out == len && strm.avail_in == 0);
  CHECK (memcmp (plain, data, len) == 0);
  inflateEnd (&strm);
}

static size_t
squeeze (const uint8_t *data, size_t len, unsigned effort, unsigned window,
          size_t room)
{
  uint8_t *out = guarded_tail (&g_out, room);

  return deflate_match_compress (match, effort, window, data, len, out, room);
}

static void
round_trip (const uint8_t *data, size_t len, unsigned effort, unsigned window)
{
  /* What cannot be compressed takes 5 bytes for each stored block. */
  const size_t room = len + 100 + len / 1000;
  const size_t n = squeeze (data, len, effort, window, room);

  CHECK (n > 0 && n <= room);
  check_stream (guarded_tail (&g_out, room), n, data, len, window);
  CHECK (squeeze (data, len, effort, window, n) == n);
  check_stream (guarded_tail (&g_out, n), n, data, len, window);
  CHECK (squeeze (data, len, effort, window, n - 1) == 0);
  if (n > 10)
    CHECK (squeeze (data, len, effort, window, n / 2) == 0);
}

static void
test_round_trips (void)
{
  static const size_t lens[] = {
    1, 2, 3, 4, 11, 12, 13, 14, 20, 511, 512, 4096, 4099, 20000, 20012,
    20013, 20014, 40012, 65536, 131072
  };
  unsigned kind, effort, i;

  for (i = 0; i < sizeof lens / sizeof lens[0]; ++i) {
    uint8_t *data = guarded_tail (&g_in, lens[i]);

    for (kind = 0; kind < KIND_COUNT; ++kind) {
      fill_data (data, lens[i], kind, i);
      for (effort = 1; effort <= 8; effort *= 2) {
        round_trip (data, lens[i], effort, 4096);
        round_trip (data, lens[i], effort, 32768);
      }
    }
  }
}

static void
test_odd_lengths (void)
{
  uint64_t seed = 3;
  unsigned i;

  for (i = 0; i < 1500; ++i) {
    const size_t len = i < 700 ? i + 1 : 1 + test_random (&seed) % 100000;
    uint8_t *data = guarded_tail (&g_in, len);

    fill_data (data, len, test_random (&seed) % KIND_COUNT, i);
    round_trip (data, len, 1 + i % 5, i & 1 ? 4096 : 32768);
  }
}

/* Positions, distances and block lengths that do not fit in 16 bits. */
static void
test_large (void)
{
  uint8_t *data = guarded_tail (&g_in, MAX);
  unsigned kind;

  for (kind = 0; kind < KIND_COUNT; ++kind) {
    fill_data (data, MAX, kind, 5);
    round_trip (data, MAX, 4, kind & 1 ? 4096 : 32768);
    /* Twice the same, too far away; and again after 64 KiB. */
    memcpy (data + MAX / 2, data, MAX / 2);
    memcpy (data + 65536, data, 65536);
    round_trip (data, MAX, 4, kind & 1 ? 32768 : 4096);
  }
}

/* Few symbols with frequencies like Fibonacci numbers make the longest
 * codes there are.
 */
static void
test_long_codes (void)
{
  const size_t len = 65536;
  uint8_t *data = guarded_tail (&g_in, len);
  uint64_t seed = 11;
  size_t i, n, a = 1, b = 1;
  unsigned sym = 0;

  for (i = 0; i < len; ++sym) {
    for (n = 0; n < a && i < len; ++n)
      data[i++] = sym;
    n = a + b;
    a = b;
    b = n;
  }
  for (i = len - 1; i > 0; --i) {
    const size_t j = test_random (&seed) % (i + 1);
    const uint8_t t = data[i];

    data[i] = data[j];
    data[j] = t;
  }
  round_trip (data, len, 4, 4096);
  round_trip (data, 20000, 1, 32768);
}

/* A used context gives what a new one gives. */
static void
test_reproducible (void)
{
  const size_t len = 65536;
  uint8_t *data = guarded_tail (&g_in, len);
  uint8_t *copy = malloc (len);
  unsigned kind;

  CHECK (copy != NULL);
  for (kind = 0; kind < 2 * KIND_COUNT; ++kind) {
    const unsigned window = kind & 1 ? 4096 : 32768;
    size_t n, again;

    fill_data (data, len, kind / 2, kind);
    n = squeeze (data, len, 3, window, len);
    memcpy (copy, guarded_tail (&g_out, len), n);
    deflate_match_free (match);
    match = deflate_match_create ();
    CHECK (match != NULL);
    again = squeeze (data, len, 3, window, len);
    CHECK (again == n && memcmp (copy, guarded_tail (&g_out, len), n) == 0);
  }
  free (copy);
}

static bool
is_noise (size_t len, unsigned window)
{
  return deflate_probe_is_noise (guarded_tail (&g_in, len), len, window);
}

static void
test_probe (void)
{
  size_t len;

  for (len = 16384; len <= MAX; len *= 2) {
    uint8_t *data = guarded_tail (&g_in, len);
    uint64_t seed = len;
    size_t i;
    unsigned kind;

    for (kind = 0; kind < KIND_COUNT; ++kind) {
      fill_data (data, len, kind, 3);
      CHECK (is_noise (len, 4096) ==
             (kind == KIND_RANDOM || kind == KIND_PERIOD_4097 ||
              (kind == KIND_PERIOD_32768)));
      CHECK (is_noise (len, 32768) ==
             (kind == KIND_RANDOM ||
              (kind == KIND_PERIOD_32768 && len <= 32768)));
    }
    /* A page of text anywhere, or repeated noise. */
    for (i = 0; i + 5000 <= len; i += len / 16) {
      fill_data (data, len, KIND_RANDOM, 4);
      fill_text (data + i, 5000, &seed);
      CHECK (!is_noise (len, 4096));
      fill_data (data, len, KIND_RANDOM, 4);
      memcpy (data + i + 2500, data + i, 2500);
      CHECK (!is_noise (len, 4096));
    }
    /* One byte twice as frequent as others hardly helps, four bits do. */
    for (i = 0; i < len; ++i)
      data[i] = test_random (&seed) >> 58;
    CHECK (!is_noise (len, 4096));
  }
  for (len = 0; len < 16384; len += 500)
    CHECK (!is_noise (len, 4096));
}

int
main (void)
{
  g_in = guarded_alloc (MAX);
  g_out = guarded_alloc (MAX + 10000);
  g_plain = guarded_alloc (MAX);
  match = deflate_match_create ();
  CHECK (match != NULL);

  test_round_trips ();
  test_odd_lengths ();
  test_large ();
  test_long_codes ();
  test_reproducible ();
  test_probe ();

  deflate_match_free (match);
  guarded_free (&g_in);
  guarded_free (&g_out);
  guarded_free (&g_plain);
  return 0;
}
