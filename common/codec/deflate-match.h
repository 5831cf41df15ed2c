/* SPDX-License-Identifier: BSD-3-Clause */
/* A raw deflate stream (RFC 1951) with a window of any size, fast.
 *
 * zlib is slow, and the fast libraries cannot do with a window of 4 KiB
 * (libdeflate), or make streams that are three to four percent larger
 * (ISA-L).
 */

#ifndef DEFLATE_MATCH_H
#define DEFLATE_MATCH_H

#include <stddef.h>
#include <stdint.h>

/* The memory of one compressor (about 300 KiB), for one call at a time. */
struct deflate_match;

/* NULL if there is no memory. */
extern struct deflate_match *deflate_match_create (void);

/* NULL is allowed. */
extern void deflate_match_free (struct deflate_match *m);

/* Compress LEN bytes (2 GiB at the most) of IN into OUT, of which OUT_LEN
 * bytes may be used.  No match is farther than WINDOW bytes: 4096 or
 * 32768.  EFFORT is how many earlier places are compared with each
 * position, 1 or more; 3 gives 3 to 4 % more than zlib's level 6 at four times
 * its speed.  Returns the length of the stream, or 0 if it does not fit.
 *
 * The result depends on the arguments only.
 */
extern size_t deflate_match_compress (struct deflate_match *m,
                                      unsigned effort, unsigned window,
                                      const void *in, size_t len,
                                      void *out, size_t out_len);

#endif /* DEFLATE_MATCH_H */
