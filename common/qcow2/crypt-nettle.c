/* SPDX-License-Identifier: BSD-3-Clause */
/* Ciphers by nettle.  A keyed context does not change while it is used, so
 * threads share it and there is no lock.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crypt-block.h"
#include "crypt-nettle.h"

#if defined HAVE_GNUTLS && defined HAVE_NETTLE

#include <gnutls/gnutls.h>
#include <nettle/cbc.h>
#include <nettle/ctr.h>
#include <nettle/nettle-meta.h>
#include <nettle/xts.h>

enum chain { ECB, CBC, CTR, XTS };

struct crypt_nettle {
  const struct nettle_cipher *cipher;
  enum chain chain;
  size_t ctx_len;               /* of each context */
  void *enc, *dec;              /* the key, for either direction */
  void *tweak;                  /* XTS: its second key, else NULL */
};

static const struct nettle_cipher *
find_cipher (const char *name, size_t key_len)
{
  static const struct {
    const char *name;
    const struct nettle_cipher *cipher;
  } table[] = {
    { "aes",     &nettle_aes128 },
    { "aes",     &nettle_aes192 },
    { "aes",     &nettle_aes256 },
    { "cast5",   &nettle_cast128 },
    { "serpent", &nettle_serpent128 },
    { "serpent", &nettle_serpent192 },
    { "serpent", &nettle_serpent256 },
    { "twofish", &nettle_twofish128 },
    { "twofish", &nettle_twofish192 },
    { "twofish", &nettle_twofish256 },
  };
  size_t i;

  for (i = 0; i < sizeof table / sizeof table[0]; ++i) {
    if (strcmp (name, table[i].name) == 0 &&
        key_len == table[i].cipher->key_size)
      return table[i].cipher;
  }
  return NULL;
}

static int
find_chain (const char *name, enum chain *chain)
{
  static const char *const names[] = { "ecb", "cbc", "ctr", "xts" };
  size_t i;

  for (i = 0; i < sizeof names / sizeof names[0]; ++i) {
    if (strcmp (name, names[i]) == 0) {
      *chain = (enum chain) i;
      return 0;
    }
  }
  return -ENOTSUP;
}

int
crypt_nettle_open (const char *name, const char *chain_name,
                   const uint8_t *key, size_t key_len,
                   struct crypt_nettle **ret)
{
  const struct nettle_cipher *cipher;
  struct crypt_nettle *n;
  enum chain chain;

  if (find_chain (chain_name, &chain) < 0)
    return -ENOTSUP;
  if (chain == XTS) {
    if (key_len % 2 != 0)
      return -ENOTSUP;
    key_len /= 2;
  }
  cipher = find_cipher (name, key_len);
  if (cipher == NULL || cipher->block_size > CRYPT_BLOCK_MAX_IV ||
      (chain == XTS && cipher->block_size != XTS_BLOCK_SIZE))
    return -ENOTSUP;

  n = calloc (1, sizeof *n);
  if (n == NULL)
    return -ENOMEM;
  n->cipher = cipher;
  n->chain = chain;
  n->ctx_len = cipher->context_size;
  n->enc = malloc (n->ctx_len);
  n->dec = malloc (n->ctx_len);
  n->tweak = chain == XTS ? malloc (n->ctx_len) : NULL;
  if (!n->enc || !n->dec || (chain == XTS && !n->tweak)) {
    crypt_nettle_close (n);
    return -ENOMEM;
  }
  cipher->set_encrypt_key (n->enc, key);
  cipher->set_decrypt_key (n->dec, key);
  if (n->tweak)
    cipher->set_encrypt_key (n->tweak, key + key_len);
  *ret = n;
  return 0;
}

static void
free_ctx (void *ctx, size_t len)
{
  if (ctx)
    gnutls_memset (ctx, 0, len);
  free (ctx);
}

void
crypt_nettle_close (struct crypt_nettle *n)
{
  if (n == NULL)
    return;
  free_ctx (n->enc, n->ctx_len);
  free_ctx (n->dec, n->ctx_len);
  free_ctx (n->tweak, n->ctx_len);
  free (n);
}

static void
run_piece (const struct crypt_nettle *n, bool encrypt, uint8_t *iv,
           uint8_t *buf, size_t len)
{
  const struct nettle_cipher *c = n->cipher;

  switch (n->chain) {
  case ECB:
    if (encrypt)
      c->encrypt (n->enc, len, buf, buf);
    else
      c->decrypt (n->dec, len, buf, buf);
    break;
  case CBC:
    if (encrypt)
      cbc_encrypt (n->enc, c->encrypt, c->block_size, iv, len, buf, buf);
    else
      cbc_decrypt (n->dec, c->decrypt, c->block_size, iv, len, buf, buf);
    break;
  case CTR:
    ctr_crypt (n->enc, c->encrypt, c->block_size, iv, len, buf, buf);
    break;
  case XTS:
    if (encrypt)
      xts_encrypt_message (n->enc, n->tweak, c->encrypt,
                           iv, len, buf, buf);
    else
      xts_decrypt_message (n->dec, n->tweak, c->decrypt, c->encrypt,
                           iv, len, buf, buf);
    break;
  }
}

void
crypt_nettle_run (const struct crypt_nettle *n, bool encrypt,
                  const uint8_t *ivs, uint8_t *buf, size_t len, size_t nr)
{
  uint8_t iv[CRYPT_BLOCK_MAX_IV];
  size_t i;

  for (i = 0; i < nr; ++i) {
    if (n->chain != ECB)
      memcpy (iv, ivs + i * CRYPT_BLOCK_MAX_IV, sizeof iv);
    run_piece (n, encrypt, iv, buf + i * len, len);
  }
}

#else /* !HAVE_GNUTLS || !HAVE_NETTLE */

int
crypt_nettle_open (const char *name, const char *chain,
                   const uint8_t *key, size_t key_len,
                   struct crypt_nettle **n)
{
  (void) name;
  (void) chain;
  (void) key;
  (void) key_len;
  (void) n;
  return -ENOTSUP;
}

void
crypt_nettle_close (struct crypt_nettle *n)
{
  (void) n;
}

void
crypt_nettle_run (const struct crypt_nettle *n, bool encrypt,
                  const uint8_t *ivs, uint8_t *buf, size_t len, size_t nr)
{
  (void) n;
  (void) encrypt;
  (void) ivs;
  (void) buf;
  (void) len;
  (void) nr;
}

#endif /* !HAVE_GNUTLS || !HAVE_NETTLE */
