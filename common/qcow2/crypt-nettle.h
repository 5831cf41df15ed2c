/* SPDX-License-Identifier: BSD-3-Clause */
/* The ciphers and chaining modes that gnutls lacks, by nettle, with the
 * meaning of crypt-block.h.  Without nettle there are none.
 */

#ifndef CRYPT_NETTLE_H
#define CRYPT_NETTLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct crypt_nettle;

/* See crypt_block_open.  0; -ENOTSUP without a message; -ENOMEM. */
extern int crypt_nettle_open (const char *name, const char *chain,
                              const uint8_t *key, size_t key_len,
                              struct crypt_nettle **n)
  __attribute__ ((__warn_unused_result__));
/* Wipes the key.  NULL is allowed. */
extern void crypt_nettle_close (struct crypt_nettle *n);

/* See crypt_block_run. */
extern void crypt_nettle_run (const struct crypt_nettle *n, bool encrypt,
                              const uint8_t *ivs, uint8_t *buf, size_t len,
                              size_t nr);

#endif /* CRYPT_NETTLE_H */
