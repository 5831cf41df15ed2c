/* SPDX-License-Identifier: BSD-3-Clause */
/* What the tests of the codec share: buffers that end at an unreadable
 * page, reproducible data, and CHECK.
 */

#ifndef TEST_CODEC_UTIL_H
#define TEST_CODEC_UTIL_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test-random.h"

#define CHECK(cond)                                                     \
  do {                                                                  \
    if (!(cond)) {                                                      \
      fprintf (stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond); \
      abort ();                                                         \
    }                                                                   \
  } while (0)

/* MAX bytes between two unreadable pages. */
struct guarded {
  uint8_t *map, *end;
  size_t map_len;
};

static inline struct guarded
guarded_alloc (size_t max)
{
  const size_t page = sysconf (_SC_PAGESIZE);
  const size_t len = (max + page - 1) / page * page;
  struct guarded g = { .map_len = len + 2 * page };

  g.map = mmap (NULL, g.map_len, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK (g.map != MAP_FAILED);
  CHECK (mprotect (g.map, page, PROT_NONE) == 0);
  g.end = g.map + page + len;
  CHECK (mprotect (g.end, page, PROT_NONE) == 0);
  return g;
}

/* The last LEN bytes: the next one traps. */
static inline uint8_t *
guarded_tail (const struct guarded *g, size_t len)
{
  return g->end - len;
}

static inline void
guarded_free (struct guarded *g)
{
  munmap (g->map, g->map_len);
}

/* Kinds of data: what compresses well, badly, far, near. */
enum kind {
  KIND_ZERO,
  KIND_RUN,                     /* one byte, not zero */
  KIND_RANDOM,
  KIND_TEXT,
  KIND_SKEWED,                  /* no matches, few bits a byte */
  KIND_PERIOD_5,
  KIND_PERIOD_4096,             /* the farthest match in a 4k window */
  KIND_PERIOD_4097,             /* just too far */
  KIND_PERIOD_32768,
  KIND_ISLANDS,                 /* random bytes in zeroes */
  KIND_HALF,                    /* random, then text */
  KIND_EXE,                     /* this program */
  KIND_COUNT
};

static inline void
fill_text (uint8_t *buf, size_t len, uint64_t *seed)
{
  static const char *words[] = {
    "cluster ", "refcount ", "the ", "of ", "table ", "offset ", "\n",
    "snapshot ", "0x", "and ", "header ", "a ", "backing ", "length, ",
  };
  size_t i = 0;

  while (i < len) {
    const uint64_t r = test_random (seed);
    const char *w = words[r % (sizeof words / sizeof words[0])];
    size_t n = strlen (w);

    if (n > len - i)
      n = len - i;
    memcpy (buf + i, w, n);
    i += n;
    if ((r >> 32) % 4 == 0 && i < len)
      buf[i++] = '0' + (r >> 40) % 10;
  }
}

static inline void
fill_exe (uint8_t *buf, size_t len)
{
  size_t i = 0;

  while (i < len) {
    FILE *fp = fopen ("/proc/self/exe", "rb");
    size_t n;

    CHECK (fp != NULL);
    n = fread (buf + i, 1, len - i, fp);
    CHECK (n > 0);
    i += n;
    fclose (fp);
  }
}

static inline void
fill_period (uint8_t *buf, size_t len, size_t period, uint64_t *seed)
{
  size_t i;

  for (i = 0; i < len; ++i)
    buf[i] = i < period ? test_random (seed) >> 56 : buf[i - period];
}

static inline void
fill_data (uint8_t *buf, size_t len, enum kind kind, uint64_t seed)
{
  size_t i;

  seed = seed * 2 + 1;
  switch (kind) {
  case KIND_ZERO: memset (buf, 0, len); break;
  case KIND_RUN: memset (buf, 0xab, len); break;
  case KIND_RANDOM: fill_period (buf, len, len, &seed); break;
  case KIND_TEXT: fill_text (buf, len, &seed); break;
  case KIND_SKEWED:
    for (i = 0; i < len; ++i)
      buf[i] = __builtin_ctzll (test_random (&seed) | 1ULL << 40) * 7;
    break;
  case KIND_PERIOD_5: fill_period (buf, len, 5, &seed); break;
  case KIND_PERIOD_4096: fill_period (buf, len, 4096, &seed); break;
  case KIND_PERIOD_4097: fill_period (buf, len, 4097, &seed); break;
  case KIND_PERIOD_32768: fill_period (buf, len, 32768, &seed); break;
  case KIND_ISLANDS:
    memset (buf, 0, len);
    for (i = 100; i + 20 < len; i += 300 + test_random (&seed) % 3000)
      fill_period (buf + i, 20, 20, &seed);
    break;
  case KIND_HALF:
    fill_period (buf, len / 2, len / 2, &seed);
    fill_text (buf + len / 2, len - len / 2, &seed);
    break;
  case KIND_EXE: fill_exe (buf, len); break;
  case KIND_COUNT: break;
  }
}

#endif /* TEST_CODEC_UTIL_H */
