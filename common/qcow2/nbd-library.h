/* SPDX-License-Identifier: BSD-3-Clause */
/* libnbd, loaded when the first image on an NBD server is opened.
 *
 * Linked in the ordinary way it makes the dynamic loader read libxml2,
 * ICU and libstdc++ too: 8 ms each time that any image is opened, about
 * as long as everything else together.
 */

#ifndef NBD_LIBRARY_H
#define NBD_LIBRARY_H

#include <libnbd.h>

/* The functions of libnbd that are used, without their nbd_ prefix. */
#define NBD_LIBRARY_FUNCTIONS(X) \
  X (add_meta_context) \
  X (aio_connect_uri) \
  X (aio_is_closed) \
  X (aio_is_connecting) \
  X (aio_is_dead) \
  X (aio_is_negotiating) \
  X (aio_is_ready) \
  X (block_status) \
  X (cache) \
  X (can_cache) \
  X (can_flush) \
  X (can_fua) \
  X (can_meta_context) \
  X (can_multi_conn) \
  X (can_trim) \
  X (can_zero) \
  X (close) \
  X (create) \
  X (flush) \
  X (get_block_size) \
  X (get_errno) \
  X (get_error) \
  X (get_size) \
  X (is_read_only) \
  X (opt_go) \
  X (poll) \
  X (pread) \
  X (pwrite) \
  X (set_export_name) \
  X (set_opt_mode) \
  X (set_uri_allow_local_file) \
  X (shutdown) \
  X (trim) \
  X (zero)

/* libnbd.pread (...) is nbd_pread (...).  Valid once nbd_library_load has
 * succeeded, and constant from then on.
 */
struct nbd_library {
#define NBD_LIBRARY_FIELD(name) __typeof__ (nbd_##name) *name;
  NBD_LIBRARY_FUNCTIONS (NBD_LIBRARY_FIELD)
#undef NBD_LIBRARY_FIELD
#ifdef LIBNBD_HAVE_NBD_SET_PREAD_INITIALIZE
  __typeof__ (nbd_set_pread_initialize) *set_pread_initialize;
#endif
};
extern struct nbd_library libnbd;

/* Load libnbd if that has not happened yet; it stays loaded.  Any thread,
 * with any lock held.
 *
 * 0; -ENOTSUP after one message that says what cannot be loaded.
 */
extern int nbd_library_load (void)
  __attribute__ ((__warn_unused_result__));

#endif /* NBD_LIBRARY_H */
