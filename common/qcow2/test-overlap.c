/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit test of overlap.c: random changes against an array. */

#include <config.h>

#include "overlap.h"
#include "test-mem.h"

#define CLUSTERS 4096
#define BITS 12

static enum overlap_kind model[CLUSTERS];

static enum overlap_kind
model_find (uint64_t off, uint64_t len)
{
  uint64_t c;

  for (c = off >> BITS; len > 0 && c <= (off + len - 1) >> BITS; ++c) {
    if (c < CLUSTERS && model[c] != 0)
      return model[c];
  }
  return 0;
}

static uint64_t
model_end (void)
{
  uint64_t c = CLUSTERS;

  while (c > 0 && model[c-1] == 0)
    --c;
  return c << BITS;
}

static void
random_changes (struct overlap *o, uint64_t seed, uint64_t dense)
{
  uint64_t i, off, len, c;
  enum overlap_kind kind;

  for (i = 0; i < 30000; ++i) {
    off = test_below (&seed, CLUSTERS << BITS);
    len = test_below (&seed, 20 << BITS);
    if (off + len > CLUSTERS << BITS)
      len = (CLUSTERS << BITS) - off;
    kind = 0;
    if (test_below (&seed, 100) < dense) {
      kind = 1 + test_below (&seed, OVERLAP_CRYPTO);
      CHECK_OK (overlap_add_locked (o, off, len, kind));
    }
    else
      overlap_remove_locked (o, off, len);
    for (c = off >> BITS; len > 0 && c <= (off + len - 1) >> BITS; ++c)
      model[c] = kind;
    off = test_below (&seed, CLUSTERS << BITS);
    len = test_below (&seed, 3 << BITS);
    CHECK (overlap_find (o, off, len) == model_find (off, len));
  }
  for (c = 0; c < CLUSTERS; ++c)
    CHECK (overlap_find (o, c << BITS, 1) == model[c]);
  CHECK (overlap_end (o) == model_end ());
}

int
main (void)
{
  struct overlap *o;
  int kind;

  CHECK_OK (overlap_create (BITS, &o));
  CHECK (overlap_end (o) == 0);
  random_changes (o, 1, 70);
  random_changes (o, 2, 20);
  random_changes (o, 3, 50);
  overlap_free (o);

  /* The edges of the address space. */
  CHECK_OK (overlap_create (9, &o));
  CHECK_OK (overlap_add_locked (o, UINT64_MAX - 100, 1000, OVERLAP_L1));
  CHECK (overlap_find (o, UINT64_MAX, 1) == OVERLAP_L1);
  CHECK (overlap_find (o, UINT64_MAX - 5, UINT64_MAX) == OVERLAP_L1);
  CHECK (overlap_find (o, 0, 0) == 0);
  overlap_free (o);
  overlap_free (NULL);

  for (kind = OVERLAP_HEADER; kind <= OVERLAP_CRYPTO; ++kind)
    CHECK (strcmp (overlap_kind_name (kind), "unknown metadata") != 0);
  return 0;
}
