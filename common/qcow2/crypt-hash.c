/* SPDX-License-Identifier: BSD-3-Clause */
/* Hashes, and keys derived with them.  RIPEMD-160 is not in gnutls. */

#include <config.h>

#include <errno.h>
#include <string.h>
#include <time.h>

#include "crypt-hash.h"

#ifdef HAVE_GNUTLS

#include <gnutls/gnutls.h>
#include <gnutls/crypto.h>

#ifdef HAVE_NETTLE
#include <nettle/hmac.h>
#include <nettle/pbkdf2.h>
#include <nettle/ripemd160.h>
#endif

struct crypt_hash {
  const char *name;
  size_t len;
  gnutls_digest_algorithm_t digest;     /* UNKNOWN: RIPEMD-160 by nettle */
  gnutls_mac_algorithm_t mac;
};

static const struct crypt_hash table[] = {
  { "md5",       16, GNUTLS_DIG_MD5,     GNUTLS_MAC_MD5 },
  { "sha1",      20, GNUTLS_DIG_SHA1,    GNUTLS_MAC_SHA1 },
  { "sha224",    28, GNUTLS_DIG_SHA224,  GNUTLS_MAC_SHA224 },
  { "sha256",    32, GNUTLS_DIG_SHA256,  GNUTLS_MAC_SHA256 },
  { "sha384",    48, GNUTLS_DIG_SHA384,  GNUTLS_MAC_SHA384 },
  { "sha512",    64, GNUTLS_DIG_SHA512,  GNUTLS_MAC_SHA512 },
#ifdef HAVE_NETTLE
  { "ripemd160", 20, GNUTLS_DIG_UNKNOWN, GNUTLS_MAC_UNKNOWN },
#endif
};

const struct crypt_hash *
crypt_hash_find (const char *name)
{
  size_t i;

  for (i = 0; i < sizeof table / sizeof table[0]; ++i)
    if (strcmp (name, table[i].name) == 0)
      return &table[i];
  return NULL;
}

size_t
crypt_hash_len (const struct crypt_hash *h)
{
  return h->len;
}

int
crypt_hash_digest (const struct crypt_hash *h, const void *data, size_t len,
                   uint8_t *out)
{
#ifdef HAVE_NETTLE
  if (h->digest == GNUTLS_DIG_UNKNOWN) {
    struct ripemd160_ctx ctx;

    ripemd160_init (&ctx);
    ripemd160_update (&ctx, len, data);
    ripemd160_digest (&ctx, RIPEMD160_DIGEST_SIZE, out);
    return 0;
  }
#endif
  return gnutls_hash_fast (h->digest, data, len, out) < 0 ? -EIO : 0;
}

int
crypt_hash_pbkdf2 (const struct crypt_hash *h,
                   const struct crypt_hash_secret *secret,
                   uint32_t iterations, uint8_t *out, size_t len)
{
  gnutls_datum_t key = { .data = (void *) secret->data, .size = secret->len };
  gnutls_datum_t salt = {
    .data = (void *) secret->salt, .size = secret->salt_len
  };

#ifdef HAVE_NETTLE
  if (h->mac == GNUTLS_MAC_UNKNOWN) {
    struct hmac_ripemd160_ctx ctx;

    hmac_ripemd160_set_key (&ctx, secret->len, secret->data);
    PBKDF2 (&ctx, hmac_ripemd160_update, hmac_ripemd160_digest,
            RIPEMD160_DIGEST_SIZE, iterations, secret->salt_len, secret->salt,
            len, out);
    gnutls_memset (&ctx, 0, sizeof ctx);
    return 0;
  }
#endif
  return gnutls_pbkdf2 (h->mac, &key, &salt, iterations, out, len) < 0
    ? -EIO : 0;
}

static double
cpu_time (void)
{
  struct timespec t;

  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

int
crypt_hash_rate (const struct crypt_hash *h, size_t len, double *rate)
{
  static const uint8_t salt[32];
  const struct crypt_hash_secret secret = {
    .data = "secret", .len = 6, .salt = salt, .salt_len = sizeof salt,
  };
  uint8_t out[CRYPT_HASH_MAX];
  uint32_t n = 512;
  double start, took;
  int r;

  do {
    n *= 2;
    start = cpu_time ();
    r = crypt_hash_pbkdf2 (h, &secret, n, out,
                           len < sizeof out ? len : sizeof out);
    if (r < 0)
      return r;
    took = cpu_time () - start;
  } while (took < 0.025 && n < UINT32_C (1) << 28);
  *rate = took > 0 ? n / took : n;
  if (*rate < 1)
    *rate = 1;
  return 0;
}

#endif /* HAVE_GNUTLS */
