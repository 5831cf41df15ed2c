/* SPDX-License-Identifier: BSD-3-Clause */
/* A block cipher in a chaining mode, with its key; by gnutls, which knows
 * the CPU's AES instructions, and by nettle what gnutls lacks.
 */

#ifndef CRYPT_BLOCK_H
#define CRYPT_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CRYPT_BLOCK_MAX_IV 16
#define CRYPT_BLOCK_MAX_KEY 64

struct crypt_block;

/* NAME as a LUKS header has it ("aes", "serpent"...).  CHAIN is "ecb", "cbc",
 * "ctr" or "xts" (whose KEY is two keys).  KEY is copied.  0; -ENOTSUP
 * without a message; -ENOMEM, -EIO.
 */
extern int crypt_block_open (const char *name, const char *chain,
                             const uint8_t *key, size_t key_len,
                             struct crypt_block **b)
  __attribute__ ((__warn_unused_result__));
/* Wipes the key.  NULL is allowed. */
extern void crypt_block_close (struct crypt_block *b);

/* NR pieces in place, of LEN bytes each, a multiple of 16, at BUF.  IVS has
 * CRYPT_BLOCK_MAX_IV bytes for each, of which the first are used: 8 with
 * CAST5, 16 with the others, none by ecb (IVS may be NULL).  Any number of
 * threads at once.  0, -EIO, -ENOMEM.
 */
extern int crypt_block_run (struct crypt_block *b, bool encrypt,
                            const uint8_t *ivs, uint8_t *buf, size_t len,
                            size_t nr)
  __attribute__ ((__warn_unused_result__));

#endif /* CRYPT_BLOCK_H */
