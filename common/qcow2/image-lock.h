/* SPDX-License-Identifier: BSD-3-Clause */
/* Locks that keep this program and QEMU off an image that the other uses.
 */

#ifndef IMAGE_LOCK_H
#define IMAGE_LOCK_H

/* What the holder does, and what it lets others do meanwhile. */
enum image_lock_kind {
  /* Reads; nobody may write or resize: layers with metadata. */
  IMAGE_LOCK_READER,
  /* Reads; others may write: a raw backing file, as QEMU does it. */
  IMAGE_LOCK_SHARED_READER,
  /* Reads, writes, resizes; nobody else may write or resize, and a
   * reader that does not tolerate that is refused.
   */
  IMAGE_LOCK_WRITER,
};

/* Lock the file open as FD (reading is enough).  The locks belong to the
 * open file description: they are kept across fork, end with the last
 * close, and two descriptors of one process are strangers to each other.
 *
 * 0.  -EBUSY: someone else uses the file in a way that excludes KIND (after
 * a few attempts, since "qemu-img info" and the like hold their locks for
 * an instant only).  -EIO: the file system has no such locks.  One message
 * names NAME and what to do.  On failure no lock is left.
 */
extern int image_lock_acquire (int fd, const char *name,
                               enum image_lock_kind kind)
  __attribute__ ((__warn_unused_result__));

#endif /* IMAGE_LOCK_H */
