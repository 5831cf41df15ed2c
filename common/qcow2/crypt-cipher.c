/* SPDX-License-Identifier: BSD-3-Clause */
/* Ciphers on sectors: which IV each sector gets.  Immutable once opened; the
 * locks are those of crypt-block.c.
 */

#include <config.h>

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crypt-block.h"
#include "crypt-cipher.h"
#include "crypt-hash.h"

#ifdef HAVE_GNUTLS

#include <gnutls/gnutls.h>

#define SECTOR 512
#define CHAIN_LEN 3
#define MAX_SECTORS 128         /* at once */

enum iv_kind { IV_NONE, IV_PLAIN, IV_PLAIN64, IV_ESSIV };

struct crypt_cipher {
  enum iv_kind iv_kind;
  struct crypt_block *data;
  struct crypt_block *essiv;    /* IV_ESSIV only, else NULL */
};

/* "xts-plain64", "cbc-essiv:sha256", "ecb": *CHAIN has room for CHAIN_LEN
 * and a 0; *HASH is that of ESSIV.
 */
static int
parse_mode (const char *mode, char *chain, enum iv_kind *iv,
            const struct crypt_hash **hash)
{
  const char *dash = strchr (mode, '-');
  size_t len = dash ? (size_t) (dash - mode) : strlen (mode);

  if (len != CHAIN_LEN)
    return -ENOTSUP;
  memcpy (chain, mode, CHAIN_LEN);
  chain[CHAIN_LEN] = '\0';
  if (strcmp (chain, "ecb") == 0) {     /* whatever its header says */
    *iv = IV_NONE;
    return 0;
  }
  if (dash == NULL)
    return -ENOTSUP;
  if (strcmp (dash + 1, "plain") == 0)
    *iv = IV_PLAIN;
  else if (strcmp (dash + 1, "plain64") == 0)
    *iv = IV_PLAIN64;
  else if (strncmp (dash + 1, "essiv:", 6) == 0) {
    *iv = IV_ESSIV;
    *hash = crypt_hash_find (dash + 7);
    if (*hash == NULL)
      return -ENOTSUP;
  }
  else
    return -ENOTSUP;
  return 0;
}

/* ESSIV: the sector number is encrypted with the same cipher, and the hash
 * of the key.
 */
static int
open_essiv (struct crypt_cipher *c, const char *name,
            const struct crypt_hash *hash, const uint8_t *key, size_t key_len)
{
  uint8_t digest[CRYPT_HASH_MAX];
  int r;

  r = crypt_hash_digest (hash, key, key_len, digest);
  if (r == 0)
    r = crypt_block_open (name, "ecb", digest, crypt_hash_len (hash),
                          &c->essiv);
  gnutls_memset (digest, 0, sizeof digest);
  return r;
}

int
crypt_cipher_open (const char *name, const char *mode,
                   const uint8_t *key, size_t key_len,
                   struct crypt_cipher **ret)
{
  const struct crypt_hash *hash = NULL;
  char chain[CHAIN_LEN + 1];
  struct crypt_cipher *c;
  enum iv_kind iv_kind;
  int r;

  r = parse_mode (mode, chain, &iv_kind, &hash);
  if (r < 0)
    return r;
  c = calloc (1, sizeof *c);
  if (c == NULL)
    return -ENOMEM;
  c->iv_kind = iv_kind;
  r = crypt_block_open (name, chain, key, key_len, &c->data);
  if (r == 0 && iv_kind == IV_ESSIV)
    r = open_essiv (c, name, hash, key, key_len);
  if (r < 0) {
    crypt_cipher_close (c);
    return r;
  }
  *ret = c;
  return 0;
}

void
crypt_cipher_close (struct crypt_cipher *c)
{
  if (c == NULL)
    return;
  crypt_block_close (c->data);
  crypt_block_close (c->essiv);
  free (c);
}

/* The IVs of NR sectors. */
static int
make_ivs (struct crypt_cipher *c, uint64_t sector, uint8_t *ivs, size_t nr)
{
  uint64_t le;
  size_t i;

  memset (ivs, 0, nr * CRYPT_BLOCK_MAX_IV);
  for (i = 0; i < nr; ++i) {
    le = sector + i;
    le = htole64 (c->iv_kind == IV_PLAIN ? le & UINT32_MAX : le);
    memcpy (ivs + i * CRYPT_BLOCK_MAX_IV, &le, sizeof le);
  }
  if (c->iv_kind != IV_ESSIV)
    return 0;
  return crypt_block_run (c->essiv, true, NULL, ivs,
                          nr * CRYPT_BLOCK_MAX_IV, 1);
}

int
crypt_cipher_run (struct crypt_cipher *c, bool encrypt, uint8_t *buf,
                  size_t len, uint64_t sector)
{
  uint8_t ivs[MAX_SECTORS * CRYPT_BLOCK_MAX_IV];
  size_t n, left = len / SECTOR;
  int r = 0;

  for (; r == 0 && left > 0; left -= n, buf += n * SECTOR, sector += n) {
    n = left < MAX_SECTORS ? left : MAX_SECTORS;
    r = make_ivs (c, sector, ivs, n);
    if (r == 0)
      r = crypt_block_run (c->data, encrypt, ivs, buf, SECTOR, n);
  }
  return r;
}

#endif /* HAVE_GNUTLS */
