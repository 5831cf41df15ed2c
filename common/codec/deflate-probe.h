/* SPDX-License-Identifier: BSD-3-Clause */
/* Is it worth while to compress a cluster at all? */

#ifndef DEFLATE_PROBE_H
#define DEFLATE_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True if LEN bytes of IN look like noise, in the statistics of their
 * bytes and in that nothing occurs twice within WINDOW bytes: deflate
 * would make them smaller by one or two percent at the most, if at all.
 *
 * Takes about 10 us for 64 KiB of noise, much less for all else.  Always
 * false for what is too short to tell (less than 16 KiB).
 */
extern bool deflate_probe_is_noise (const uint8_t *in, size_t len,
                                    unsigned window);

#endif /* DEFLATE_PROBE_H */
