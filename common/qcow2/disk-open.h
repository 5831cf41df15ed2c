/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening a path that should be a disk: a regular file or a block device.
 */

#ifndef DISK_OPEN_H
#define DISK_OPEN_H

#include <stdbool.h>

/* Open PATH (O_CLOEXEC; symbolic links are followed).  WRITABLE: for
 * reading and writing.  CREATE: the file must not exist, and is made with
 * mode 0666 & ~umask.  Never blocks.
 *
 * A descriptor, or -errno after one message that names PATH and what is
 * wrong: -EISDIR, -EINVAL (FIFO, socket, character device), -ENOENT,
 * -EACCES, -EROFS, -EEXIST and whatever else open gives.
 */
extern int disk_open (const char *path, bool writable, bool create)
  __attribute__ ((__warn_unused_result__));

/* Make the name of the new file PATH survive a power loss.  Best effort:
 * some file systems cannot do this for directories, and a directory may be
 * writable but not readable.
 */
extern void disk_open_sync_name (const char *path);

#endif /* DISK_OPEN_H */
