/* SPDX-License-Identifier: BSD-3-Clause */
/* Persistent dirty bitmaps: kept consistent while we write.
 * Spec: "Bitmaps extension", "Bitmaps".
 *
 * Bitmaps with the "auto" flag must reflect every change of the disk.  On
 * disk they are marked in use before the first change; the changes are
 * collected in memory, and added at clean close.  After a crash the mark
 * stays, so nobody takes them for valid.  Other bitmaps, and those that
 * are in use or broken already, are left as they are.
 */

#ifndef BITMAPS_H
#define BITMAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc.h"
#include "commit.h"
#include "geometry.h"
#include "header.h"
#include "overlap.h"

/* One entry of the directory. */
struct bitmap_entry {
  uint64_t entry_off;           /* of the entry in the image file */
  uint64_t table_off;
  uint32_t table_size;          /* entries */
  uint32_t flags;               /* BITMAP_* */
  uint8_t type;
  uint8_t granularity_bits;
  char *name;
};

#define BITMAP_IN_USE   1
#define BITMAP_AUTO     2

struct bitmap_directory {
  struct bitmap_entry *entries;
  size_t nr;
};

/* Read the directory that H describes.  Every value is checked except
 * the tables.  -EINVAL with a message; -EIO, -ENOMEM.  On failure D holds
 * nothing.
 */
extern int bitmaps_read_directory (const char *name, struct backend *file,
                                   const struct geometry *geo,
                                   const struct header *h,
                                   struct bitmap_directory *d)
  __attribute__ ((__warn_unused_result__));
extern void bitmaps_free_directory (struct bitmap_directory *d);

/* Bitmap table entries that a disk of SIZE bytes needs. */
extern uint64_t bitmaps_table_size (const struct geometry *geo,
                                    uint64_t size, unsigned granularity_bits);

/* Does nothing but one reference exist to each cluster of [OFF, OFF + LEN)?
 * A hostile image may use a cluster of a bitmap twice; then a change to one
 * use would break the other.  Takes LOCK_META exclusively.  False also if
 * nobody can tell.
 */
extern bool bitmaps_are_exclusive (struct alloc *alloc, uint64_t off,
                                   uint64_t len);

struct bitmaps;

/* The bitmaps of a writable image with a valid bitmaps extension.
 * MAX_BYTES: memory for the changes; bitmaps that would need more are not
 * kept up, but marked in use.  0; -EINVAL: the directory is broken, so the
 * autoclear bit has to go; -EIO, -ENOMEM.
 */
extern int bitmaps_open (const char *name, const struct geometry *geo,
                         const struct header *h, struct backend *file,
                         struct alloc *alloc, struct overlap *overlap,
                         struct commit *commit, uint64_t max_bytes,
                         struct bitmaps **b)
  __attribute__ ((__warn_unused_result__));
extern void bitmaps_close (struct bitmaps *b);

/* Before the first change (I6): mark the auto bitmaps as in use, on disk;
 * the caller issues the barrier.  *CHANGED: something was written.
 */
extern int bitmaps_announce (struct bitmaps *b, bool *changed)
  __attribute__ ((__warn_unused_result__));

/* [OFF, OFF + LEN) was, or is being, changed.  Any thread, no lock. */
extern void bitmaps_mark (struct bitmaps *b, uint64_t off, uint64_t len);

/* At clean close, before the last commit: add the changes, then take the
 * mark away.  An error leaves the marks.
 */
extern int bitmaps_store (struct bitmaps *b)
  __attribute__ ((__warn_unused_result__));

#endif /* BITMAPS_H */
