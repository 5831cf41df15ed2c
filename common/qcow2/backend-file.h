/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend: a regular file or a block device. */

#ifndef BACKEND_FILE_H
#define BACKEND_FILE_H

#include <stdbool.h>

#include "backend.h"

#define BACKEND_FILE_WRITABLE   1
#define BACKEND_FILE_CREATE     2       /* must not exist; implies WRITABLE */
#define BACKEND_FILE_LOCK       4       /* QEMU-compatible image locking */
#define BACKEND_FILE_SHARE_RW   8       /* lock as a reader that tolerates
                                           a writer: raw backing files */

/* Open PATH.  The type is checked before it is opened (a FIFO must not
 * hang): regular files and block devices only.  0; -errno with one message
 * that names the file and what is wrong: directory, FIFO, socket, missing,
 * not permitted, locked by another process (-EBUSY), exists already
 * (-EEXIST).  O_CLOEXEC.  On CREATE the file is made 0666 & ~umask.
 *
 * Locks (image-lock.h) are taken at open and held to close: WRITABLE as a
 * writer; otherwise as a reader that tolerates no writer, or with SHARE_RW
 * one that does.
 *
 * pwritev reports each kind of "no space" (also EDQUOT, EFBIG) as -ENOSPC,
 * and whatever else went wrong as -EIO or -ENOMEM.  The process must ignore
 * SIGXFSZ: with RLIMIT_FSIZE the kernel sends it before a write fails.
 */
extern int backend_file_open (const char *path, unsigned flags,
                              struct backend **b)
  __attribute__ ((__warn_unused_result__));

/* Identity of the file behind B, to find loops in a backing chain and
 * to share layers: device and inode (block devices: their number and 0).
 * False if B is not a file.
 */
extern bool backend_file_identity (const struct backend *b,
                                   uint64_t *dev, uint64_t *ino);

#endif /* BACKEND_FILE_H */
