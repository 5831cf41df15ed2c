/* SPDX-License-Identifier: BSD-3-Clause */
/* The LUKS1 header: from a passphrase to the cipher of the data. */

#ifndef CRYPT_LUKS_H
#define CRYPT_LUKS_H

#include <stdint.h>

#include "backend.h"
#include "crypt-cipher.h"

/* See crypt_open_luks. */
extern int crypt_luks_unlock (const char *name, struct backend *file,
                              uint64_t off, uint64_t len,
                              const char *passphrase,
                              struct crypt_cipher **c)
  __attribute__ ((__warn_unused_result__));

#endif /* CRYPT_LUKS_H */
