/* SPDX-License-Identifier: BSD-3-Clause */
/* Images as inputs of fuzzers: containers of sectors. */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "ondisk.h"

/* A check of a sparse file takes longer the longer it is. */
#define MAX_SECTORS     (1U << 29)

bool
fuzz_image_load (const uint8_t *data, size_t size, struct fuzz_image *image)
{
  uint64_t len;
  size_t nr, i;

  if (size < FUZZ_HEAD_LEN)
    return false;
  len = get_be32 (data) % MAX_SECTORS * UINT64_C (512);
  nr = get_be16 (data + 4);
  image->options = get_be16 (data + 6);
  if (nr > (size - FUZZ_HEAD_LEN) / FUZZ_RECORD_LEN)
    nr = (size - FUZZ_HEAD_LEN) / FUZZ_RECORD_LEN;
  image->script = data + FUZZ_HEAD_LEN + nr * FUZZ_RECORD_LEN;
  image->script_len = data + size - image->script;
  image->file = fuzz_mem_create ("fuzz");
  for (i = 0; i < nr; ++i) {
    const uint8_t *p = data + FUZZ_HEAD_LEN + i * FUZZ_RECORD_LEN;
    uint64_t off = get_be32 (p) * UINT64_C (512);

    if (off < len && backend_pwrite (image->file, p + 4, FUZZ_SECTOR,
                                     off, 0) < 0)
      break;
  }
  if (backend_truncate (image->file, len, false) < 0)
    abort ();
  return true;
}

uint8_t *
fuzz_image_save (struct backend *file, unsigned options,
                 const uint8_t *script, size_t script_len, size_t *len)
{
  static const uint8_t zero[FUZZ_SECTOR];
  uint64_t sectors = ((uint64_t) backend_size (file) + 511) / 512, i;
  enum backend_extent_type type;
  uint64_t n;
  uint8_t *buf, *p;
  unsigned nr = 0;

  buf = malloc (FUZZ_HEAD_LEN + script_len + FUZZ_RECORD_LEN * UINT16_MAX);
  if (buf == NULL || backend_truncate (file, sectors * 512, false) < 0)
    abort ();
  p = buf + FUZZ_HEAD_LEN;
  for (i = 0; i < sectors && nr < UINT16_MAX; i += n) {
    if (file->ops->extent (file, i * 512, (sectors - i) * 512, &type,
                           &n) < 0)
      abort ();
    n /= 512;
    if (type == BACKEND_HOLE)
      continue;
    n = 1;
    put_be32 (p, i);
    if (backend_pread (file, p + 4, FUZZ_SECTOR, i * 512) < 0)
      abort ();
    if (memcmp (p + 4, zero, FUZZ_SECTOR) != 0) {
      p += FUZZ_RECORD_LEN;
      ++nr;
    }
  }
  put_be32 (buf, sectors);
  put_be16 (buf + 4, nr);
  put_be16 (buf + 6, options);
  if (script_len > 0)
    memcpy (p, script, script_len);
  *len = p + script_len - buf;
  return buf;
}
