/* SPDX-License-Identifier: BSD-3-Clause */
/* Image locking by the byte ranges that QEMU uses, so that each side
 * notices the other.
 *
 * There are two bytes per permission.  A holder puts a shared lock on byte
 * PERM_BASE + n if it uses permission n, and on UNSHARED_BASE + n if it
 * does not want others to use it.  All locks are shared ones, so taking
 * them never fails; the conflict is found by asking afterwards whether an
 * exclusive lock would be possible on the opposite bytes.  Locks first,
 * question second: of two that start at once at least one sees the other.
 *
 * QEMU 7.2 holds, observed with /proc/locks:
 *
 *                                      in use         not shared
 *   writer (qcow2)                     100 101 103    201 203
 *   reader, backing layer (qcow2)      100            201 203
 *   raw backing layer                  100            -
 *   qemu-img info (an instant)         -              201 203
 *
 * We hold the same, with one exception: an external data file is locked
 * like an image, where QEMU shares writing (but not resizing) of it.
 *
 * The lock file of QEMU's "file.locking" and POSIX process locks are not
 * used: those end when any descriptor of the file is closed.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "image-lock.h"

#define PERM_BASE       100
#define UNSHARED_BASE   200

/* Bit numbers in QEMU's sets of permissions. */
#define CONSISTENT_READ (1U << 0)
#define WRITE           (1U << 1)
#define RESIZE          (1U << 3)
#define NR_PERMISSIONS  4

#define ATTEMPTS        5
#define ATTEMPT_WAIT_MS 40

struct permissions {
  unsigned used, unshared;
};

static const struct permissions permissions[] = {
  [IMAGE_LOCK_READER] = { CONSISTENT_READ, WRITE | RESIZE },
  [IMAGE_LOCK_SHARED_READER] = { CONSISTENT_READ, 0 },
  [IMAGE_LOCK_WRITER] = { CONSISTENT_READ | WRITE | RESIZE, WRITE | RESIZE },
};

#if HAVE_DECL_F_OFD_SETLK

static int
lock_byte (int fd, int byte, short type)
{
  struct flock fl = {
    .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1,
  };

  return fcntl (fd, F_OFD_SETLK, &fl) == -1 ? -errno : 0;
}

/* -EBUSY if someone else has a lock on the byte. */
static int
probe_byte (int fd, int byte)
{
  struct flock fl = {
    .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1,
  };

  if (fcntl (fd, F_OFD_GETLK, &fl) == -1)
    return -errno;
  return fl.l_type == F_UNLCK ? 0 : -EBUSY;
}

static void
unlock_all (int fd)
{
  int i;

  for (i = 0; i < NR_PERMISSIONS; ++i) {
    lock_byte (fd, PERM_BASE + i, F_UNLCK);
    lock_byte (fd, UNSHARED_BASE + i, F_UNLCK);
  }
}

static int
lock_all (int fd, const struct permissions *p)
{
  int i, r = 0;

  for (i = 0; i < NR_PERMISSIONS && r == 0; ++i) {
    if (p->used & (1U << i))
      r = lock_byte (fd, PERM_BASE + i, F_RDLCK);
    if (r == 0 && (p->unshared & (1U << i)))
      r = lock_byte (fd, UNSHARED_BASE + i, F_RDLCK);
  }
  /* Someone holds an exclusive lock: not QEMU, but as good as busy. */
  return r == -EAGAIN || r == -EACCES ? -EBUSY : r;
}

static int
probe_all (int fd, const struct permissions *p)
{
  int i, r = 0;

  for (i = 0; i < NR_PERMISSIONS && r == 0; ++i) {
    if (p->used & (1U << i))
      r = probe_byte (fd, UNSHARED_BASE + i);
    if (r == 0 && (p->unshared & (1U << i)))
      r = probe_byte (fd, PERM_BASE + i);
  }
  return r;
}

int
image_lock_acquire (int fd, const char *name, enum image_lock_kind kind)
{
  const struct timespec wait = { .tv_nsec = ATTEMPT_WAIT_MS * 1000000L };
  const struct permissions *p = &permissions[kind];
  int attempt, r;

  for (attempt = 0; ; ++attempt) {
    r = lock_all (fd, p);
    if (r == 0)
      r = probe_all (fd, p);
    if (r == 0)
      return 0;
    unlock_all (fd);
    if (r != -EBUSY || attempt == ATTEMPTS - 1)
      break;
    nanosleep (&wait, NULL);
  }

  if (r == -EBUSY) {
    nbdkit_error ("%s: the image is in use by another program or export%s; "
                  "stop that first (lock=false overrides this at the risk "
                  "of destroying the image)", name,
                  kind == IMAGE_LOCK_WRITER ? "" : " that writes to it");
    return -EBUSY;
  }
  nbdkit_error ("%s: cannot lock the image: %s; if its file system has no "
                "locks, use lock=false and see to it yourself that nobody "
                "else uses the image", name, strerror (-r));
  return -EIO;
}

#else /* !HAVE_DECL_F_OFD_SETLK */

int
image_lock_acquire (int fd, const char *name, enum image_lock_kind kind)
{
  nbdkit_error ("%s: this system has no locks that belong to an open file; "
                "use lock=false and see to it yourself that nobody else "
                "uses the image", name);
  return -EIO;
}

#endif /* !HAVE_DECL_F_OFD_SETLK */
