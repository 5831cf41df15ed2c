/* SPDX-License-Identifier: BSD-3-Clause */
/* A cipher with its way to make IVs, on sectors of 512 bytes.
 * For crypt.c (guest data) and crypt-luks*.c (key material).
 */

#ifndef CRYPT_CIPHER_H
#define CRYPT_CIPHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct crypt_cipher;

/* The end of a message about -ENOTSUP. */
#ifdef HAVE_NETTLE
#define CRYPT_CIPHER_HINT ""
#else
#define CRYPT_CIPHER_HINT " (this plugin was built without nettle)"
#endif

/* NAME, MODE as a LUKS header has them ("aes", "xts-plain64").  KEY is
 * copied.  0; -ENOTSUP without a message; -ENOMEM, -EIO.
 */
extern int crypt_cipher_open (const char *name, const char *mode,
                              const uint8_t *key, size_t key_len,
                              struct crypt_cipher **c)
  __attribute__ ((__warn_unused_result__));
/* Wipes the key.  NULL is allowed. */
extern void crypt_cipher_close (struct crypt_cipher *c);

/* LEN bytes in place, a multiple of 512; the first sector has the number
 * SECTOR.  Any number of threads at once.  0, -EIO, -ENOMEM.
 */
extern int crypt_cipher_run (struct crypt_cipher *c, bool encrypt,
                             uint8_t *buf, size_t len, uint64_t sector)
  __attribute__ ((__warn_unused_result__));

#endif /* CRYPT_CIPHER_H */
