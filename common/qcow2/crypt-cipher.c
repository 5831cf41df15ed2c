/* SPDX-License-Identifier: BSD-3-Clause */
/* Ciphers on sectors, by gnutls.
 *
 * A gnutls handle has the IV as state, so it serves one thread at a time:
 * handles are kept in a pool, made as threads need them.  LOCK_CRYPT
 * protects the pool, and is not held while a handle works.
 */

#include <config.h>

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crypt-cipher.h"
#include "locks.h"

#ifdef HAVE_GNUTLS

#include <gnutls/gnutls.h>
#include <gnutls/crypto.h>

#define SECTOR 512
#define IV_LEN 16
#define MAX_KEY 64

enum iv_kind { IV_NONE, IV_PLAIN, IV_PLAIN64, IV_ESSIV };

struct handle {
  gnutls_cipher_hd_t data;
  gnutls_cipher_hd_t iv;        /* ESSIV only */
  struct handle *next;
};

struct crypt_cipher {
  gnutls_cipher_algorithm_t algorithm;
  enum iv_kind iv_kind;
  uint8_t key[MAX_KEY];
  size_t key_len;
  uint8_t essiv_key[32];
  struct ranked_mutex lock;     /* LOCK_CRYPT: pool */
  struct handle *pool;
};

/* What gnutls has of a chaining mode and key length. */
static gnutls_cipher_algorithm_t
find_algorithm (const char *chain, size_t chain_len, size_t key_len)
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
  };
  size_t i;

  for (i = 0; i < sizeof table / sizeof table[0]; ++i) {
    if (strlen (table[i].chain) == chain_len &&
        memcmp (table[i].chain, chain, chain_len) == 0 &&
        table[i].key_len == key_len)
      return table[i].algorithm;
  }
  return GNUTLS_CIPHER_UNKNOWN;
}

static int
parse_mode (const char *mode, size_t key_len,
            gnutls_cipher_algorithm_t *algorithm, enum iv_kind *iv)
{
  const char *dash = strchr (mode, '-');

  if (dash == NULL)
    return -ENOTSUP;
  *algorithm = find_algorithm (mode, dash - mode, key_len);
  if (*algorithm == GNUTLS_CIPHER_UNKNOWN)
    return -ENOTSUP;
  if (strcmp (dash + 1, "plain") == 0)
    *iv = IV_PLAIN;
  else if (strcmp (dash + 1, "plain64") == 0)
    *iv = IV_PLAIN64;
  else if (strcmp (dash + 1, "essiv:sha256") == 0)
    *iv = IV_ESSIV;
  else
    return -ENOTSUP;
  return 0;
}

int
crypt_cipher_open (const char *name, const char *mode,
                   const uint8_t *key, size_t key_len,
                   struct crypt_cipher **ret)
{
  gnutls_cipher_algorithm_t algorithm;
  enum iv_kind iv_kind;
  struct crypt_cipher *c;
  int r;

  if (strcmp (name, "aes") != 0 || key_len > MAX_KEY)
    return -ENOTSUP;
  r = parse_mode (mode, key_len, &algorithm, &iv_kind);
  if (r < 0)
    return r;
  c = calloc (1, sizeof *c);
  if (c == NULL)
    return -ENOMEM;
  c->algorithm = algorithm;
  c->iv_kind = iv_kind;
  memcpy (c->key, key, key_len);
  c->key_len = key_len;
  ranked_mutex_init (&c->lock, LOCK_CRYPT);
  if (iv_kind == IV_ESSIV &&
      gnutls_hash_fast (GNUTLS_DIG_SHA256, key, key_len, c->essiv_key) < 0) {
    crypt_cipher_close (c);
    return -EIO;
  }
  *ret = c;
  return 0;
}

static void
free_handle (struct handle *h)
{
  if (h->data)
    gnutls_cipher_deinit (h->data);
  if (h->iv)
    gnutls_cipher_deinit (h->iv);
  free (h);
}

void
crypt_cipher_close (struct crypt_cipher *c)
{
  struct handle *h;

  if (c == NULL)
    return;
  while ((h = c->pool) != NULL) {
    c->pool = h->next;
    free_handle (h);
  }
  ranked_mutex_destroy (&c->lock);
  gnutls_memset (c->key, 0, sizeof c->key);
  gnutls_memset (c->essiv_key, 0, sizeof c->essiv_key);
  free (c);
}

static struct handle *
new_handle (struct crypt_cipher *c)
{
  gnutls_datum_t key = { .data = c->key, .size = c->key_len };
  gnutls_datum_t essiv = { .data = c->essiv_key, .size = 32 };
  struct handle *h;

  h = calloc (1, sizeof *h);
  if (h == NULL)
    return NULL;
  if (gnutls_cipher_init (&h->data, c->algorithm, &key, NULL) < 0 ||
      (c->iv_kind == IV_ESSIV &&
       gnutls_cipher_init (&h->iv, GNUTLS_CIPHER_AES_256_CBC, &essiv,
                           NULL) < 0)) {
    free_handle (h);
    return NULL;
  }
  return h;
}

static struct handle *
get_handle (struct crypt_cipher *c)
{
  struct handle *h;

  {
    MUTEX_SCOPE (&c->lock);

    h = c->pool;
    if (h) {
      c->pool = h->next;
      return h;
    }
  }
  return new_handle (c);
}

static void
put_handle (struct crypt_cipher *c, struct handle *h)
{
  MUTEX_SCOPE (&c->lock);

  h->next = c->pool;
  c->pool = h;
}

static int
set_iv (const struct crypt_cipher *c, struct handle *h, uint64_t sector)
{
  uint8_t iv[IV_LEN] = { 0 }, zero[IV_LEN] = { 0 };
  uint64_t le = htole64 (c->iv_kind == IV_PLAIN ? sector & UINT32_MAX
                         : sector);

  memcpy (iv, &le, sizeof le);
  if (c->iv_kind == IV_ESSIV) {
    /* One block of CBC with a zero IV is ECB. */
    gnutls_cipher_set_iv (h->iv, zero, sizeof zero);
    if (gnutls_cipher_encrypt (h->iv, iv, sizeof iv) < 0)
      return -EIO;
  }
  gnutls_cipher_set_iv (h->data, iv, sizeof iv);
  return 0;
}

int
crypt_cipher_run (struct crypt_cipher *c, bool encrypt, uint8_t *buf,
                  size_t len, uint64_t sector)
{
  struct handle *h;
  int r = 0;

  h = get_handle (c);
  if (h == NULL)
    return -ENOMEM;
  for (; r == 0 && len > 0; len -= SECTOR, buf += SECTOR, ++sector) {
    r = set_iv (c, h, sector);
    if (r == 0 && (encrypt ? gnutls_cipher_encrypt (h->data, buf, SECTOR)
                   : gnutls_cipher_decrypt (h->data, buf, SECTOR)) < 0)
      r = -EIO;
  }
  put_handle (c, h);
  return r;
}

#else /* !HAVE_GNUTLS */

int
crypt_cipher_open (const char *name, const char *mode,
                   const uint8_t *key, size_t key_len,
                   struct crypt_cipher **c)
{
  (void) name;
  (void) mode;
  (void) key;
  (void) key_len;
  (void) c;
  return -ENOTSUP;
}

void
crypt_cipher_close (struct crypt_cipher *c)
{
  (void) c;
}

int
crypt_cipher_run (struct crypt_cipher *c, bool encrypt, uint8_t *buf,
                  size_t len, uint64_t sector)
{
  (void) c;
  (void) encrypt;
  (void) buf;
  (void) len;
  (void) sector;
  return -ENOTSUP;
}

#endif /* !HAVE_GNUTLS */
