/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend: an export of an NBD server, by libnbd. */

#ifndef BACKEND_NBD_H
#define BACKEND_NBD_H

#include <stdbool.h>

#include "backend.h"

/* Is URI (or any string) one that backend_nbd_open is meant for: nbd:,
 * nbds:, nbd+unix: and the like?
 */
extern bool backend_nbd_is_uri (const char *uri);

/* Connect to the export that URI names; EXPORT, if not NULL, takes the
 * place of the name in the URI.  No thread is started, so this can be
 * called before a fork.
 *
 * The length of the file is fixed; truncate gives -ENOTSUP.
 *
 * A connection that is lost is made again, and the request repeated, for a
 * few seconds.  If writes had been acknowledged on it but not flushed, they
 * may be gone with the server: flush fails with -EIO from then on.
 *
 * 0; after one message that names URI: -EIO (no connection, protocol
 * error), -EROFS (WRITABLE, but the export is read-only), -ENOTSUP (built
 * without libnbd), -EINVAL (not a URI), -ENOMEM.
 */
extern int backend_nbd_open (const char *uri, const char *export_name,
                             bool writable, struct backend **b)
  __attribute__ ((__warn_unused_result__));

#endif /* BACKEND_NBD_H */
