/* SPDX-License-Identifier: BSD-3-Clause */
/* Ciphers by gnutls; what it lacks is passed on to crypt-nettle.c.
 *
 * A gnutls handle has the IV as state, so it serves one thread at a time:
 * handles are kept in a pool, made as threads need them.  LOCK_CRYPT
 * protects the pool, and is not held while a handle works.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crypt-block.h"
#include "crypt-nettle.h"
#include "locks.h"

#ifdef HAVE_GNUTLS

#include <gnutls/gnutls.h>
#include <gnutls/crypto.h>

#define AES_BLOCK 16

struct handle {
  gnutls_cipher_hd_t cipher;
  struct handle *next;
};

struct crypt_block {
  struct crypt_nettle *nettle;  /* if not NULL, all the rest is unused */
  gnutls_cipher_algorithm_t algorithm;
  bool ecb;                     /* made from CBC */
  uint8_t key[CRYPT_BLOCK_MAX_KEY];
  size_t key_len;
  struct ranked_mutex lock;     /* LOCK_CRYPT: pool */
  struct handle *pool;
};

/* What gnutls has. */
static gnutls_cipher_algorithm_t
find_algorithm (const char *name, const char *chain, size_t key_len)
{
  static const struct {
    const char *chain;
    size_t key_len;
    gnutls_cipher_algorithm_t algorithm;
  } table[] = {
    { "xts", 32, GNUTLS_CIPHER_AES_128_XTS },
    { "xts", 64, GNUTLS_CIPHER_AES_256_XTS },
    { "cbc", 16, GNUTLS_CIPHER_AES_128_CBC },
    { "cbc", 24, GNUTLS_CIPHER_AES_192_CBC },
    { "cbc", 32, GNUTLS_CIPHER_AES_256_CBC },
    { "ecb", 16, GNUTLS_CIPHER_AES_128_CBC },
    { "ecb", 24, GNUTLS_CIPHER_AES_192_CBC },
    { "ecb", 32, GNUTLS_CIPHER_AES_256_CBC },
  };
  size_t i;

  if (strcmp (name, "aes") != 0)
    return GNUTLS_CIPHER_UNKNOWN;
  for (i = 0; i < sizeof table / sizeof table[0]; ++i) {
    if (strcmp (table[i].chain, chain) == 0 && table[i].key_len == key_len)
      return table[i].algorithm;
  }
  return GNUTLS_CIPHER_UNKNOWN;
}

int
crypt_block_open (const char *name, const char *chain,
                  const uint8_t *key, size_t key_len,
                  struct crypt_block **ret)
{
  struct crypt_block *b;
  int r = 0;

  if (key_len > CRYPT_BLOCK_MAX_KEY)
    return -ENOTSUP;
  b = calloc (1, sizeof *b);
  if (b == NULL)
    return -ENOMEM;
  b->algorithm = find_algorithm (name, chain, key_len);
  if (b->algorithm == GNUTLS_CIPHER_UNKNOWN)
    r = crypt_nettle_open (name, chain, key, key_len, &b->nettle);
  if (r < 0) {
    free (b);
    return r;
  }
  b->ecb = strcmp (chain, "ecb") == 0;
  memcpy (b->key, key, key_len);
  b->key_len = key_len;
  ranked_mutex_init (&b->lock, LOCK_CRYPT);
  *ret = b;
  return 0;
}

static void
free_handle (struct handle *h)
{
  gnutls_cipher_deinit (h->cipher);
  free (h);
}

void
crypt_block_close (struct crypt_block *b)
{
  struct handle *h;

  if (b == NULL)
    return;
  while ((h = b->pool) != NULL) {
    b->pool = h->next;
    free_handle (h);
  }
  crypt_nettle_close (b->nettle);
  ranked_mutex_destroy (&b->lock);
  gnutls_memset (b->key, 0, sizeof b->key);
  free (b);
}

static struct handle *
get_handle (struct crypt_block *b)
{
  gnutls_datum_t key = { .data = b->key, .size = b->key_len };
  struct handle *h;

  {
    MUTEX_SCOPE (&b->lock);

    h = b->pool;
    if (h) {
      b->pool = h->next;
      return h;
    }
  }
  h = calloc (1, sizeof *h);
  if (h && gnutls_cipher_init (&h->cipher, b->algorithm, &key, NULL) < 0) {
    free (h);
    h = NULL;
  }
  return h;
}

static void
put_handle (struct crypt_block *b, struct handle *h)
{
  MUTEX_SCOPE (&b->lock);

  h->next = b->pool;
  b->pool = h;
}

/* All pieces.  Without IVS it is ECB: CBC of one block with a zero IV. */
static int
run_handle (struct handle *h, bool encrypt, const uint8_t *ivs, uint8_t *buf,
            size_t len, size_t nr)
{
  static const uint8_t zero[CRYPT_BLOCK_MAX_IV];
  size_t i, iv_step = CRYPT_BLOCK_MAX_IV;
  int r = 0;

  if (ivs == NULL) {
    nr *= len / AES_BLOCK;
    len = AES_BLOCK;
    ivs = zero;
    iv_step = 0;
  }
  for (i = 0; r >= 0 && i < nr; ++i, buf += len, ivs += iv_step) {
    gnutls_cipher_set_iv (h->cipher, (void *) ivs, CRYPT_BLOCK_MAX_IV);
    r = encrypt ? gnutls_cipher_encrypt (h->cipher, buf, len)
      : gnutls_cipher_decrypt (h->cipher, buf, len);
  }
  return r < 0 ? -EIO : 0;
}

int
crypt_block_run (struct crypt_block *b, bool encrypt, const uint8_t *ivs,
                 uint8_t *buf, size_t len, size_t nr)
{
  struct handle *h;
  int r;

  if (b->nettle) {
    crypt_nettle_run (b->nettle, encrypt, ivs, buf, len, nr);
    return 0;
  }
  h = get_handle (b);
  if (h == NULL)
    return -ENOMEM;
  r = run_handle (h, encrypt, b->ecb ? NULL : ivs, buf, len, nr);
  put_handle (b, h);
  return r;
}

#endif /* HAVE_GNUTLS */
