/* SPDX-License-Identifier: BSD-3-Clause */
/* Hashes by their names in LUKS headers, and keys derived with them; by
 * gnutls, and where it lacks one, by nettle.  No locks, no state.
 */

#ifndef CRYPT_HASH_H
#define CRYPT_HASH_H

#include <stddef.h>
#include <stdint.h>

#define CRYPT_HASH_MAX 64       /* bytes of the longest digest */

struct crypt_hash;

/* "sha256" and the like; NULL if there is none of this name. */
extern const struct crypt_hash *crypt_hash_find (const char *name);

/* Bytes of a digest. */
extern size_t crypt_hash_len (const struct crypt_hash *h);

/* OUT has room for crypt_hash_len bytes.  0, -EIO. */
extern int crypt_hash_digest (const struct crypt_hash *h, const void *data,
                              size_t len, uint8_t *out)
  __attribute__ ((__warn_unused_result__));

/* PBKDF2 with HMAC (RFC 8018): LEN bytes from a secret.  0, -EIO. */
struct crypt_hash_secret {
  const void *data;
  size_t len;
  const uint8_t *salt;
  size_t salt_len;
};
extern int crypt_hash_pbkdf2 (const struct crypt_hash *h,
                              const struct crypt_hash_secret *secret,
                              uint32_t iterations, uint8_t *out, size_t len)
  __attribute__ ((__warn_unused_result__));

/* Measure: how many iterations for LEN bytes of key take a second of this
 * thread's CPU time?  Takes some 50 ms.  *RATE >= 1.  0, -EIO.
 */
extern int crypt_hash_rate (const struct crypt_hash *h, size_t len,
                            double *rate)
  __attribute__ ((__warn_unused_result__));

#endif /* CRYPT_HASH_H */
