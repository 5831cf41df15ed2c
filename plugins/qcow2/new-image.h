/* SPDX-License-Identifier: BSD-3-Clause */
/* create=true: make the images that the options describe. */

#ifndef NEW_IMAGE_H
#define NEW_IMAGE_H

/* Make the image PATH.  An existing file is an error, never overwritten; on
 * failure nothing is left behind.  0 or -errno after a message.
 */
extern int new_image_create (const char *path)
  __attribute__ ((__warn_unused_result__));

#endif /* NEW_IMAGE_H */
