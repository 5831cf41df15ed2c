/* SPDX-License-Identifier: BSD-3-Clause */
/* Persistent bitmaps of an image, read by code that is independent of the
 * engine, of which it uses only the offsets in ondisk.h.
 * Spec: "Bitmaps extension".
 */

#ifndef CRASH_BITMAPS_H
#define CRASH_BITMAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"

#define CRASH_BITMAPS_MAX 4

struct crash_bitmaps {
  uint64_t dir_off, dir_len;    /* bytes; 0 = there are none */
  unsigned cluster_bits;
  size_t nr;
  struct crash_bitmap {
    bool in_use, tracks;        /* tracks: the flag "auto" */
    unsigned granularity_bits;
    uint64_t table_off, nr_table;
    uint64_t *table;            /* entries */
  } bitmaps[CRASH_BITMAPS_MAX];
};

/* The value of the header extension TYPE: its place in the file, or 0 if the
 * image has none.
 */
extern uint64_t crash_bitmaps_extension (struct backend *b, uint32_t type);

/* Directory and tables.  None, if the autoclear bit says that they are not to
 * be used.  0, or -EINVAL after a message on stderr if they lie.
 */
extern int crash_bitmaps_load (struct backend *b, struct crash_bitmaps *list)
  __attribute__ ((__warn_unused_result__));
extern void crash_bitmaps_free (struct crash_bitmaps *list);

/* The bit of the byte OFF of the disk; false also if it cannot be read. */
extern bool crash_bitmaps_get (struct backend *b,
                               const struct crash_bitmaps *list, size_t i,
                               uint64_t off);

/* The number of bitmaps that track and are valid.  *OK: in each of them there
 * is a bit for each byte in which OLD and NOW, the disk of SIZE bytes, differ;
 * if not, says so on stderr.
 */
extern size_t crash_bitmaps_valid (struct backend *b, const uint8_t *old,
                                   const uint8_t *now, uint64_t size,
                                   bool *ok);

#endif /* CRASH_BITMAPS_H */
