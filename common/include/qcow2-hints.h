/* SPDX-License-Identifier: BSD-3-Clause */
/* Facts that travel beside an NBD request, from a filter of this
 * package to the qcow2 plugin below it.
 *
 * The plugin exports the function named by QCOW2_HINTS_SYMBOL.  It
 * returns the hints of the calling thread, never NULL.  A filter looks
 * it up once, in .get_ready:
 *
 *   qcow2_hints_fn *get = (qcow2_hints_fn *)
 *     dlsym (RTLD_DEFAULT, QCOW2_HINTS_SYMBOL);
 *
 * (nbdkit loads plugins RTLD_GLOBAL).  Where the symbol is absent, the
 * plugin below is not ours.  A filter sets its own fields just before it
 * calls next->op, and clears them just after, in the same thread; so
 * that filters in between do not matter, and fields of different filters
 * do not disturb each other.  A hint may always be ignored: the data is
 * right without it.
 */

#ifndef QCOW2_HINTS_H
#define QCOW2_HINTS_H

#include <stdbool.h>
#include <stdint.h>

#define QCOW2_HINTS_SYMBOL "nbdkit_qcow2_hints"

/* Grows with each incompatible change of the struct.  A filter refuses a
 * plugin of another version; new fields are added at the end and change
 * only the size.
 */
#define QCOW2_HINTS_VERSION 1

struct qcow2_hints {
  uint32_t version;             /* QCOW2_HINTS_VERSION, set by the plugin */
  uint32_t size;                /* sizeof of the plugin's struct */

  /* Filter compress, for pwrite: each whole cluster of the request is
   * stored compressed if that makes it smaller.  (A request that ends at
   * the end of the disk has its last, short cluster whole.)
   *
   * Also set while the plugin opens an image (in the main thread from
   * .config_complete to .after_fork, and around .open of a connection):
   * compressed writes will follow.  The plugin then refuses, at once and
   * by name, an image that cannot take them (data file, zstd in a version
   * 2 image, a level out of the range of the image's codec).
   */
  bool compress;
  int compress_level;           /* 0 = the codec's default */
  unsigned compress_window;     /* zlib only, bytes: 4096 or 32768 */

  /* Filter preallocate, for pwrite and zero: when the request makes the
   * file grow, it grows to at least GROW_SIZE bytes beyond what the
   * request needs, to a multiple of GROW_ALIGN.  0 = no hint.
   */
  uint64_t grow_size;
  uint64_t grow_align;          /* power of two */

  /* Filter cowmerge, for extents: NBDKIT_EXTENT_HOLE means "no cluster
   * (or subcluster) of this layer is allocated here, so that a write has
   * to allocate and to copy", whatever the backing chain holds;
   * NBDKIT_EXTENT_ZERO still means that the range reads as zeroes
   * through the whole chain.
   */
  bool layer_extents;

  /* The plugin's answer to such an extents request, beside the extents.
   * Not there in an older plugin (see size); 0 = not told.
   *
   * The guest disk: connections which are told the same number see the
   * same disk, whatever export name they use.
   */
  uint64_t layer_disk;
  /* Bytes that a write copies as a whole: the size of a cluster, or of a
   * subcluster in an image with extended L2 entries.
   */
  uint32_t layer_grain;
};

typedef struct qcow2_hints *qcow2_hints_fn (void);

#endif /* QCOW2_HINTS_H */
