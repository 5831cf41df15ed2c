/* SPDX-License-Identifier: BSD-3-Clause */
/* What is taken for noise, and what is not. */

#include <config.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "deflate-probe.h"
#include "test-codec-util.h"

#define MAX ((size_t) 2 << 20)

static struct guarded g_in;

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
  test_probe ();
  guarded_free (&g_in);
  return 0;
}
