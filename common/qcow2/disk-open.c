/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening a path that should be a disk.
 *
 * Looks before it opens, since opening alone may do something (a tape
 * rewinds, a FIFO waits for its other end), opens without waiting, and
 * looks again at what it got, which may be something else by now.
 *
 * No state, no locks.  Does not read the file.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "disk-open.h"

/* Regular files and block devices; for the rest say what it is. */
static int
check_type (const char *path, const struct stat *st)
{
  const char *what;

  switch (st->st_mode & S_IFMT) {
  case S_IFREG:
  case S_IFBLK:
    return 0;
  case S_IFDIR:  what = "a directory"; break;
  case S_IFIFO:  what = "a FIFO (pipe)"; break;
  case S_IFSOCK: what = "a socket"; break;
  case S_IFCHR:  what = "a character device"; break;
  default:       what = "of an unknown type"; break;
  }
  nbdkit_error ("%s: is %s; only regular files and block devices can hold "
                "a disk image", path, what);
  return S_ISDIR (st->st_mode) ? -EISDIR : -EINVAL;
}

static int
fail_open (const char *path, bool writable, bool create, int err)
{
  if (err == EEXIST)
    nbdkit_error ("%s: exists already, and is not overwritten", path);
  else if (create)
    nbdkit_error ("%s: cannot create the file: %s", path, strerror (err));
  else if (writable &&
           (err == EACCES || err == EROFS || err == EPERM))
    nbdkit_error ("%s: cannot open for writing: %s (serve it read-only "
                  "with -r, or change its permissions)", path,
                  strerror (err));
  else
    nbdkit_error ("%s: cannot open: %s", path, strerror (err));
  return -err;
}

void
disk_open_sync_name (const char *path)
{
  char *copy = strdup (path);
  int fd;

  if (copy == NULL)
    return;
  fd = open (dirname (copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd == -1 || fsync (fd) == -1)
    nbdkit_debug ("%s: cannot sync the directory: %s", path, strerror (errno));
  if (fd != -1)
    close (fd);
  free (copy);
}

int
disk_open (const char *path, bool writable, bool create)
{
  int oflags = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  struct stat st;
  int fd, r;

  oflags |= writable ? O_RDWR : O_RDONLY;
  if (create)
    oflags |= O_CREAT | O_EXCL;
  else {
    if (stat (path, &st) == -1)
      return fail_open (path, writable, create, errno);
    r = check_type (path, &st);
    if (r < 0)
      return r;
  }

  do
    fd = open (path, oflags, 0666);
  while (fd == -1 && errno == EINTR);
  if (fd == -1)
    return fail_open (path, writable, create, errno);
  if (fstat (fd, &st) == -1) {
    r = fail_open (path, writable, create, errno);
    goto err;
  }
  r = check_type (path, &st);
  if (r < 0)
    goto err;
  r = fcntl (fd, F_GETFL);
  if (r == -1 || fcntl (fd, F_SETFL, r & ~O_NONBLOCK) == -1) {
    r = fail_open (path, writable, create, errno);
    goto err;
  }
  return fd;

 err:
  close (fd);
  return r;
}
