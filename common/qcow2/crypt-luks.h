/* SPDX-License-Identifier: BSD-3-Clause */
/* The LUKS1 header: from a passphrase to the cipher of the data; a new
 * header.
 */

#ifndef CRYPT_LUKS_H
#define CRYPT_LUKS_H

#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "crypt-cipher.h"
#include "crypt.h"

/* See crypt_open_luks. */
extern int crypt_luks_unlock (const char *name, struct backend *file,
                              uint64_t off, uint64_t len,
                              const char *passphrase,
                              struct crypt_cipher **c)
  __attribute__ ((__warn_unused_result__));

/* See crypt_create_luks; in crypt-luks-create.c. */
extern int crypt_luks_create (const char *name,
                              const struct crypt_luks_options *o,
                              const char *passphrase,
                              uint8_t **header, size_t *len)
  __attribute__ ((__warn_unused_result__));

#endif /* CRYPT_LUKS_H */
