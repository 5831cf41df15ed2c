/* SPDX-License-Identifier: BSD-3-Clause */
/* The LUKS1 header on disk, and how key material is split: shared by
 * crypt-luks.c and crypt-luks-create.c.
 * Spec: LUKS On-Disk Format Specification version 1.2.
 */

#ifndef CRYPT_LUKS_FORMAT_H
#define CRYPT_LUKS_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "crypt-hash.h"

/* Offsets in the header.  All numbers are big-endian. */
#define LUKS_MAGIC              "LUKS\xba\xbe"
#define LUKS_MAGIC_LEN          6
#define LUKS_VERSION            6       /* 16 */
#define LUKS_CIPHER_NAME        8       /* LUKS_STRING_LEN bytes */
#define LUKS_CIPHER_MODE        40      /* LUKS_STRING_LEN bytes */
#define LUKS_HASH_SPEC          72      /* LUKS_STRING_LEN bytes */
#define LUKS_PAYLOAD_OFFSET     104     /* 32, sectors */
#define LUKS_KEY_BYTES          108     /* 32 */
#define LUKS_MK_DIGEST          112     /* LUKS_DIGEST_LEN bytes */
#define LUKS_MK_SALT            132     /* LUKS_SALT_LEN bytes */
#define LUKS_MK_ITERATIONS      164     /* 32 */
#define LUKS_UUID               168     /* text, LUKS_UUID_LEN bytes */
#define LUKS_KEY_SLOTS          208
#define LUKS_PHDR_LEN           592

/* Of a key slot, and in it. */
#define LUKS_NR_SLOTS           8
#define LUKS_SLOT_LEN           48
#define LUKS_SLOT_ACTIVE        0       /* 32 */
#define LUKS_SLOT_ITERATIONS    4       /* 32 */
#define LUKS_SLOT_SALT          8       /* LUKS_SALT_LEN bytes */
#define LUKS_SLOT_OFFSET        40      /* 32, sectors from the header */
#define LUKS_SLOT_STRIPES       44      /* 32 */
#define LUKS_ENABLED            0x00ac71f3U
#define LUKS_DISABLED           0x0000deadU

#define LUKS_SECTOR             512
#define LUKS_STRING_LEN         32
#define LUKS_SALT_LEN           32
#define LUKS_DIGEST_LEN         20
#define LUKS_UUID_LEN           40
#define LUKS_STRIPES            4000    /* that everybody uses */
#define LUKS_MAX_KEY            64      /* bytes */

/* The anti-forensic diffusion: each digest-sized piece of BLOCK is replaced
 * by the hash of its number and itself.  0, -EIO.
 */
extern int crypt_luks_diffuse (const struct crypt_hash *hash, uint8_t *block,
                               size_t len)
  __attribute__ ((__warn_unused_result__));

#endif /* CRYPT_LUKS_FORMAT_H */
