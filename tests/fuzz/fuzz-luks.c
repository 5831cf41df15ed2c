/* SPDX-License-Identifier: BSD-3-Clause */
/* The LUKS header: an offset of 2 bytes (in sectors), then the header with
 * its key material; the passphrase is "secret".
 *
 * The numbers of iterations are capped before the engine sees them, since
 * they are nothing but time.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "crypt.h"
#include "fuzz.h"
#include "ondisk.h"

#define HEAD_LEN        2
#define MAX_ITERATIONS  1000
#define MK_ITERATIONS   164     /* in the LUKS header */
#define KEY_SLOTS       208
#define NR_SLOTS        8
#define SLOT_LEN        48
#define SLOT_ITERATIONS 4

static void
cap (uint8_t *buf, size_t len, size_t off)
{
  if (off + 4 <= len && get_be32 (buf + off) > MAX_ITERATIONS)
    put_be32 (buf + off, get_be32 (buf + off) % MAX_ITERATIONS);
}

/* What is encrypted must be decrypted to the same. */
static void
use (struct crypt *c)
{
  uint8_t buf[2 * CRYPT_SECTOR];
  size_t i;

  memset (buf, 42, sizeof buf);
  FUZZ_CHECK (crypt_encrypt (c, buf, sizeof buf, 0, 65536) == 0);
  FUZZ_CHECK (crypt_decrypt (c, buf, sizeof buf, 0, 65536) == 0);
  for (i = 0; i < sizeof buf; ++i)
    FUZZ_CHECK (buf[i] == 42);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  struct backend *file;
  struct crypt *c;
  uint64_t off;
  uint8_t *buf;
  size_t i;
  int r;

  if (size < HEAD_LEN)
    return 0;
  off = get_be16 (data) * UINT64_C (512);
  size -= HEAD_LEN;
  buf = malloc (size + 1);
  if (buf == NULL)
    return 0;
  memcpy (buf, data + HEAD_LEN, size);
  cap (buf, size, MK_ITERATIONS);
  for (i = 0; i < NR_SLOTS; ++i)
    cap (buf, size, KEY_SLOTS + i * SLOT_LEN + SLOT_ITERATIONS);
  file = fuzz_mem_create ("fuzz");
  if (backend_pwrite (file, buf, size, off, 0) < 0)
    abort ();
  r = crypt_open_luks ("fuzz", file, off, size, "secret", &c);
  if (r == 0) {
    use (c);
    crypt_close (c);
  }
  backend_close (file);
  free (buf);
  return 0;
}
