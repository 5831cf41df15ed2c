/* SPDX-License-Identifier: BSD-3-Clause */
/* What the filter knows of the plugin's layer, beside NBD: through the
 * hints of common/include/qcow2-hints.h.
 */

#ifndef LAYER_H
#define LAYER_H

#include <stdbool.h>
#include <stdint.h>

#include <nbdkit-filter.h>

#include "overlay.h"

/* Find the hints.  To be called from .config_complete, before that of what
 * is below.  -1 with a message if the plugin below is not one that gives
 * them, or if a filter above compresses: what it sends compressed
 * would be buffered here, and written plain.
 */
extern int layer_init (void)
  __attribute__ ((__warn_unused_result__));

/* Find out whether a filter below compresses.  From .get_ready. */
extern void layer_ready (void);

/* Does a filter in this server compress whole clusters, and no parts of
 * them?
 */
extern bool layer_whole_clusters (void);

/* The presence of a cluster that was just written. */
extern enum presence_state layer_state_written (void);

/* What the plugin tells of the disk of SIZE bytes that NEXT leads to.  All 0
 * if the plugin is an older one, which does not tell.  -EINVAL, with a
 * message, if a filter in between keeps the question from the plugin.
 */
struct layer_facts {
  uint64_t disk;                /* equal for connections to the same disk */
  uint32_t grain;               /* bytes that a write copies as a whole */
};
extern int layer_ask (nbdkit_next *next, uint64_t size,
                      struct layer_facts *facts)
  __attribute__ ((__warn_unused_result__));

/* Ask the plugin which clusters from IDX on its layer has, and enter that
 * in the presence map.  Afterwards the state of IDX is known, unless there
 * was no memory to keep it.  Blocks; takes a claim; called without locks.
 */
extern void layer_learn (struct overlay *ov, nbdkit_next *next,
                         uint64_t idx);

#endif /* LAYER_H */
