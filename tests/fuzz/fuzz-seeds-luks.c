/* SPDX-License-Identifier: BSD-3-Clause */
/* LUKS headers as seeds: one stripe, few iterations, key and salts of
 * zeroes.
 */

#include <config.h>

#include <string.h>

#include "crypt-cipher.h"
#include "fuzz-seeds.h"
#include "ondisk.h"

#ifdef HAVE_GNUTLS

#include <gnutls/crypto.h>

#define ITERATIONS      10
#define MATERIAL_SECTOR 4
#define MAX_KEY         64
#define SLOT            208

static void
pbkdf2 (gnutls_mac_algorithm_t mac, const void *secret, size_t len,
        uint8_t *out, size_t out_len)
{
  static uint8_t no_salt[32];
  gnutls_datum_t key = { .data = (void *) secret, .size = len };
  gnutls_datum_t salt = { .data = no_salt, .size = sizeof no_salt };

  FUZZ_CHECK (gnutls_pbkdf2 (mac, &key, &salt, ITERATIONS, out,
                             out_len) >= 0);
}

static void
make (uint8_t *h, const char *cipher, const char *mode, const char *hash,
      gnutls_mac_algorithm_t mac, uint32_t key_bytes)
{
  uint8_t master[MAX_KEY], key[MAX_KEY];
  uint8_t *material = h + MATERIAL_SECTOR * 512;
  struct crypt_cipher *c;

  memset (h, 0, SEED_LUKS_LEN);
  memset (master, 0x42, sizeof master);
  memcpy (h, "LUKS\xba\xbe\0\1", 8);
  strcpy ((char *) h + 8, cipher);
  strcpy ((char *) h + 40, mode);
  strcpy ((char *) h + 72, hash);
  put_be32 (h + 104, 8);
  put_be32 (h + 108, key_bytes);
  pbkdf2 (mac, master, key_bytes, h + 112, 20);
  put_be32 (h + 164, ITERATIONS);
  put_be32 (h + SLOT, 0x00ac71f3U);
  put_be32 (h + SLOT + 4, ITERATIONS);
  put_be32 (h + SLOT + 40, MATERIAL_SECTOR);
  put_be32 (h + SLOT + 44, 1);
  pbkdf2 (mac, "secret", 6, key, key_bytes);
  memcpy (material, master, key_bytes);
  FUZZ_CHECK (crypt_cipher_open (cipher, mode, key, key_bytes, &c) == 0);
  FUZZ_CHECK (crypt_cipher_run (c, true, material, 512, 0) == 0);
  crypt_cipher_close (c);
}

bool
seed_luks (uint8_t header[SEED_LUKS_LEN])
{
  make (header, "aes", "xts-plain64", "sha256", GNUTLS_MAC_SHA256, 64);
  return true;
}

void
seed_luks_headers (void)
{
  uint8_t buf[2 + SEED_LUKS_LEN] = { 0, 8 };

  seed_luks (buf + 2);
  seed_write ("fuzz-luks", "xts", buf, 2 + 5 * 512);
  put_be32 (buf + 2 + SLOT + 48, 0x00ac71f3U);
  put_be32 (buf + 2 + SLOT + 48 + 4, 5);
  put_be32 (buf + 2 + SLOT + 48 + 40, 3);
  put_be32 (buf + 2 + SLOT + 48 + 44, 16);
  put_be32 (buf + 2 + SLOT, 0x0000dead);
  seed_write ("fuzz-luks", "another-slot", buf, sizeof buf);
  make (buf + 2, "aes", "xts-plain64", "sha1", GNUTLS_MAC_SHA1, 32);
  seed_write ("fuzz-luks", "xts-128", buf, 2 + 5 * 512);
  make (buf + 2, "aes", "cbc-essiv:sha256", "sha512", GNUTLS_MAC_SHA512, 32);
  seed_write ("fuzz-luks", "cbc-essiv", buf, 2 + 5 * 512);
}

#else /* !HAVE_GNUTLS */

bool
seed_luks (uint8_t header[SEED_LUKS_LEN])
{
  memset (header, 0, SEED_LUKS_LEN);
  return false;
}

void
seed_luks_headers (void)
{
  seed_write ("fuzz-luks", "nothing", "", 0);
}

#endif /* !HAVE_GNUTLS */
