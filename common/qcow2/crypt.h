/* SPDX-License-Identifier: BSD-3-Clause */
/* Encryption of guest data: LUKS, and the legacy AES method.
 * Spec: "Header" (crypt_method), "Full disk encryption header pointer",
 * "Data encryption".
 *
 * Data is encrypted in sectors of 512 bytes, each with an IV made from its
 * number: the host offset for LUKS, the guest offset for legacy AES.
 */

#ifndef CRYPT_H
#define CRYPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"

#define CRYPT_SECTOR 512

struct crypt;

/* The ciphers of this build, with commas between them. */
extern const char *crypt_ciphers (void);

/* Unlock the LUKS1 header of LEN bytes at OFF of FILE with PASSPHRASE (any
 * bytes, no newline at the end).  Takes the CPU time that the header
 * demands, usually seconds; if that is more than a minute, it is refused.
 * 0; after one message: -EINVAL (malformed header, or it demands too much),
 * -ENOTSUP (a cipher, mode, IV or hash that is not supported; built without
 * gnutls), -EACCES (no key slot matches), -EIO, -ENOMEM.
 */
extern int crypt_open_luks (const char *name, struct backend *file,
                            uint64_t off, uint64_t len,
                            const char *passphrase, struct crypt **c)
  __attribute__ ((__warn_unused_result__));

/* How to make a LUKS1 header.  NULL, 0 = QEMU's default. */
struct crypt_luks_options {
  const char *cipher_alg;       /* "aes-256", "serpent-128", "cast5-128"... */
  const char *cipher_mode;      /* "xts", "cbc", "ctr", "ecb" */
  const char *ivgen_alg;        /* "plain64", "plain", "essiv" */
  const char *ivgen_hash_alg;   /* of essiv */
  const char *hash_alg;         /* "sha256"... */
  uint32_t iter_time;           /* milliseconds to unlock it */
};

/* Make a header with a random key, which PASSPHRASE opens, and its key
 * material: *LEN bytes, for the caller to free, the same layout as that of
 * QEMU.  0; after one message: -EINVAL (names that do not exist or do not go
 * together), -ENOTSUP (built without a library that has them), -EIO,
 * -ENOMEM.
 */
extern int crypt_create_luks (const char *name,
                              const struct crypt_luks_options *o,
                              const char *passphrase,
                              uint8_t **header, size_t *len)
  __attribute__ ((__warn_unused_result__));

/* Legacy AES-128-CBC: the passphrase is the key, so a wrong one is not
 * noticed.  -ENOTSUP, -ENOMEM.
 */
extern int crypt_open_aes (const char *name, const char *passphrase,
                           struct crypt **c)
  __attribute__ ((__warn_unused_result__));

/* Wipes the keys.  NULL is allowed. */
extern void crypt_close (struct crypt *c);

/* Encrypt or decrypt LEN bytes, a multiple of CRYPT_SECTOR, in place.  The
 * data belongs at GUEST_OFF and HOST_OFF, multiples of CRYPT_SECTOR.  Any
 * number of threads at once.  0, -EIO, -ENOMEM.
 */
extern int crypt_encrypt (struct crypt *c, void *buf, size_t len,
                          uint64_t guest_off, uint64_t host_off)
  __attribute__ ((__warn_unused_result__));
extern int crypt_decrypt (struct crypt *c, void *buf, size_t len,
                          uint64_t guest_off, uint64_t host_off)
  __attribute__ ((__warn_unused_result__));

#endif /* CRYPT_H */
