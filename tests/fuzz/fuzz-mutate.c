/* SPDX-License-Identifier: BSD-3-Clause */
/* Mutations of images in containers.
 *
 * Random bytes in an offset are refused by the first check.  What gets far
 * is a table entry that points to another table, one cluster further, or
 * to the end of the file, with another flag: so most mutations re-aim one
 * 64 bit field.
 */

#include <config.h>

#include <string.h>

#include "fuzz.h"
#include "ondisk.h"

struct mutation {
  uint8_t *data;
  size_t size, max_size;
  size_t nr;                    /* records */
  uint64_t random;
};

static uint64_t
below (struct mutation *m, uint64_t n)
{
  return fuzz_below (&m->random, n);
}

static uint8_t *
record (const struct mutation *m, size_t i)
{
  return m->data + FUZZ_HEAD_LEN + i * FUZZ_RECORD_LEN;
}

/* The first record is the header, unless somebody moved it. */
static uint64_t
cluster_size (const struct mutation *m)
{
  uint32_t bits = get_be32 (record (m, 0) + 4 + HDR_CLUSTER_BITS);

  return bits >= MIN_CLUSTER_BITS && bits <= MAX_CLUSTER_BITS
    ? UINT64_C (1) << bits : 65536;
}

/* A 64 bit field, mostly one that is not zero. */
static uint8_t *
any_field (struct mutation *m)
{
  uint8_t *p = NULL;
  unsigned tries;

  for (tries = 0; tries < 20; ++tries) {
    p = record (m, below (m, m->nr)) + 4 + below (m, 64) * 8;
    if (get_be64 (p) != 0 || below (m, 16) == 0)
      break;
  }
  return p;
}

static uint64_t
any_offset (struct mutation *m)
{
  const uint64_t cluster = cluster_size (m);
  uint64_t off = get_be32 (record (m, below (m, m->nr))) * UINT64_C (512);

  switch (below (m, 6)) {
  case 0: return off;
  case 1: return (off + cluster) & ~(cluster - 1);
  case 2: return (get_be32 (m->data) * UINT64_C (512)) & ~(cluster - 1);
  case 3: return below (m, 64) * cluster;
  default: return off & ~(cluster - 1);
  }
}

static uint64_t
new_value (struct mutation *m, uint64_t v)
{
  static const uint64_t flags[] = {
    1, 2, UINT64_C (1) << 9, UINT64_C (1) << 55, UINT64_C (1) << 61,
    UINT64_C (1) << 62, UINT64_C (1) << 63, UINT64_C (3) << 62,
  };
  const uint64_t keep = v & (UINT64_C (3) << 62);

  switch (below (m, 12)) {
  case 0: return v + cluster_size (m);
  case 1: return v - cluster_size (m);
  case 2: return get_be64 (any_field (m));
  case 3: case 4: return any_offset (m) | keep;
  case 5: case 6: return v ^ flags[below (m, sizeof flags / sizeof *flags)];
  case 7: return v ^ (UINT64_C (1) << below (m, 64));
  case 8: return 0;
  case 9: return any_offset (m) | UINT64_C (1) << 63;
  case 10: return v + (below (m, 2) ? 512 : -512);
  default: return v << 1 | v >> 63;
  }
}

static void
change_small_field (struct mutation *m)
{
  static const uint32_t values[] = { 0, 1, 2, 0x7f, 0xff, 0xffff, 0x10000,
                                     0x7fffffff, 0x80000000, UINT32_MAX };
  uint8_t *p = record (m, below (m, 3) ? 0 : below (m, m->nr)) + 4 +
    below (m, below (m, 2) ? 30 : 128) * 4;
  uint32_t v = get_be32 (p);

  switch (below (m, 5)) {
  case 0: v++; break;
  case 1: v--; break;
  case 2: v ^= 1U << below (m, 32); break;
  case 3: v <<= 1; break;
  default: v = values[below (m, sizeof values / sizeof *values)];
  }
  put_be32 (p, v);
}

/* A record more, with the content of another one; or one goes. */
static void
change_records (struct mutation *m)
{
  const size_t i = below (m, m->nr);
  uint8_t *p = record (m, i);
  uint32_t sector = any_offset (m) / 512;

  switch (below (m, 4)) {
  case 0:
    if (m->size + FUZZ_RECORD_LEN > m->max_size || m->nr >= UINT16_MAX)
      break;
    memmove (p + FUZZ_RECORD_LEN, p, m->data + m->size - p);
    put_be32 (p + FUZZ_RECORD_LEN, sector);
    m->size += FUZZ_RECORD_LEN;
    put_be16 (m->data + 4, m->nr + 1);
    break;
  case 1:
    if (m->nr < 2 || i == 0)
      break;
    memmove (p, p + FUZZ_RECORD_LEN,
             m->data + m->size - p - FUZZ_RECORD_LEN);
    m->size -= FUZZ_RECORD_LEN;
    put_be16 (m->data + 4, m->nr - 1);
    break;
  case 2:
    put_be32 (p, sector);
    break;
  default:
    p += 4;
    memset (p + below (m, FUZZ_SECTOR / 2), below (m, 2) ? 0 : below (m, 256),
            below (m, FUZZ_SECTOR / 2));
  }
}

static void
change_head (struct mutation *m)
{
  uint32_t len = get_be32 (m->data);

  switch (below (m, 6)) {
  case 0: len++; break;
  case 1: len--; break;
  case 2: len <<= 1; break;
  case 3: len = any_offset (m) / 512; break;
  case 4: len = below (m, UINT32_MAX); break;
  default: put_be16 (m->data + 6, below (m, 65536));
  }
  put_be32 (m->data, len);
}

static void
change_script (struct mutation *m)
{
  uint8_t *p = record (m, m->nr);
  size_t len = m->data + m->size - p;

  m->size += LLVMFuzzerMutate (p, len, m->max_size - m->size + len) - len;
}

static void
mutate_once (struct mutation *m)
{
  uint8_t *p;

  switch (below (m, 16)) {
  case 0: change_head (m); break;
  case 1: case 2: change_records (m); break;
  case 3: case 4: change_small_field (m); break;
  case 5: case 6: case 7: change_script (m); break;
  case 8:
    LLVMFuzzerMutate (record (m, below (m, m->nr)) + 4, FUZZ_SECTOR,
                      FUZZ_SECTOR);
    break;
  default:
    p = any_field (m);
    put_be64 (p, new_value (m, get_be64 (p)));
  }
}

size_t
fuzz_mutate_image (uint8_t *data, size_t size, size_t max_size,
                   unsigned seed)
{
  struct mutation m = {
    .data = data, .size = size, .max_size = max_size,
    .random = fuzz_random_start (seed),
  };
  unsigned n;

  n = 1 + below (&m, 3);
  if (below (&m, 4) == 0)
    n += below (&m, 6);
  for (; n > 0; --n) {
    if (m.size < FUZZ_HEAD_LEN + FUZZ_RECORD_LEN)
      return LLVMFuzzerMutate (data, m.size, max_size);
    m.nr = get_be16 (data + 4);
    if (m.nr > (m.size - FUZZ_HEAD_LEN) / FUZZ_RECORD_LEN || m.nr == 0) {
      m.nr = (m.size - FUZZ_HEAD_LEN) / FUZZ_RECORD_LEN;
      put_be16 (data + 4, m.nr);
    }
    mutate_once (&m);
  }
  return m.size;
}
