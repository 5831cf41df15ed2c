/* SPDX-License-Identifier: BSD-3-Clause */
/* Between the files of fuzz-seeds. */

#ifndef FUZZ_SEEDS_H
#define FUZZ_SEEDS_H

#include "fuzz.h"

/* Write the seed NAME of TARGET. */
extern void seed_write (const char *target, const char *name,
                        const void *data, size_t size);

/* The image of that name of the table in fuzz-seeds.c, filled. */
extern struct backend *seed_image (const char *name);

/* As a seed of all targets that read images. */
extern void seed_save_image (struct backend *file, const char *name,
                             unsigned options,
                             const uint8_t *script, size_t script_len);

/* A valid LUKS header with its key material, passphrase "secret", as cheap
 * as possible.  False: built without gnutls.  (fuzz-seeds-luks.c)
 */
#define SEED_LUKS_LEN 4096
extern bool seed_luks (uint8_t header[SEED_LUKS_LEN]);
extern void seed_luks_headers (void);

/* Images with fields that lie.  (fuzz-seeds-hostile.c) */
extern void seed_hostile_images (void);

#endif /* FUZZ_SEEDS_H */
