/* SPDX-License-Identifier: BSD-3-Clause */
/* Backend, files: making data stable, so that whoever has lost data is told.
 *
 * The host notes lost data (a write behind that failed) once per inode, and
 * tells it once per open file description: the next fdatasync there fails,
 * the one after it succeeds.  Two calls at the same time on one description
 * would share one answer, and the other caller, who may be the one that lost
 * data, would hear that all is well.  So each call has a description to
 * itself, a slot.  What a description was told before it was opened it does
 * not hear again.
 *
 * Invariants:
 *  - A slot is used by one call at a time.
 *  - A call that is told of lost data sets LOST before it lets go of its slot,
 *    and a flush succeeds only if LOST is not set after the host's answer.
 *  - A flush uses a slot that was opened later only when a call that had slot
 *    0 has begun after that, and ended: slot 0 is as old as the file, so what
 *    anybody, also another process, had been told before is in LOST by then.
 *  So no flush succeeds after the host has told anybody that a write which
 *  the flush covers is lost.
 *
 * Some of it is told to nobody but the caller at hand: that the disk could not
 * empty its own cache, that ext4 had no place for what it was to allocate
 * later.  So LOST is set at once, whoever hears it.
 *
 * Slot 0 is the description of all other requests, and flushes only use it;
 * further ones are opened when all are busy (or for a write that is stable
 * at once, which covers nothing that is older than its slot), so one client
 * at a time needs no more.  Where the host does not allow to open the file
 * again (other user, no /proc), or half of the descriptors that the process
 * may have are in use, calls wait for each other.
 *
 * Locks: LOCK_BACKEND protects the slots, but not the descriptor of a slot
 * that one has taken.  Held while a slot is opened, never across data I/O.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "backend-file.h"
#include "backend-file-internal.h"
#include "locks.h"

void
backend_file_sync_init (struct backend_file *f)
{
  struct backend_file_sync *s = &f->sync;

  ranked_mutex_init (&s->lock, LOCK_BACKEND);
  pthread_cond_init (&s->released, NULL);
  s->can_open = true;
  s->slots[0].fd = -1;          /* F->fd, which is not known yet */
  s->nr_slots = 1;
}

void
backend_file_sync_destroy (struct backend_file *f)
{
  struct backend_file_sync *s = &f->sync;
  unsigned i;

  for (i = 1; i < s->nr_slots; ++i)
    close (s->slots[i].fd);
  pthread_cond_destroy (&s->released);
  ranked_mutex_destroy (&s->lock);
}

/* Another description of the file.  -1 and errno. */
static int
open_again (const struct backend_file *f)
{
  struct rlimit limit;
  struct stat st;
  char path[32];
  int fd, err;

  snprintf (path, sizeof path, "/proc/self/fd/%d", f->fd);
  do
    fd = open (path, O_RDWR | O_CLOEXEC | O_NOCTTY);
  while (fd == -1 && errno == EINTR);
  if (fd == -1)
    return -1;
  if (fstat (fd, &st) == -1)
    err = errno;
  else if (f->is_block ? st.st_rdev != f->dev
           : st.st_dev != f->dev || st.st_ino != f->ino)
    err = ESTALE;               /* that is no procfs */
  else if (getrlimit (RLIMIT_NOFILE, &limit) == 0 &&
           (rlim_t) fd >= limit.rlim_cur / 2)
    err = EMFILE;               /* the rest is for clients and other files */
  else
    return fd;
  close (fd);
  errno = err;
  return -1;
}

/* One more slot.  The lock is held. */
static void
add_slot_locked (struct backend_file *f)
{
  struct backend_file_sync *s = &f->sync;
  const int fd = open_again (f);

  if (fd == -1) {
    nbdkit_debug ("%s: open again: %m; flushes wait for each other",
                  f->backend.name);
    s->can_open = false;
    return;
  }
  s->slots[s->nr_slots].fd = fd;
  /* The call that has slot 0 now may have had its answer. */
  s->slots[s->nr_slots].ripe = s->ended + s->slots[0].busy + 1;
  s->nr_slots++;
}

/* Take a slot, for a write or a flush, when one is free; if none is, open
 * one for the next time.  -1: there is none for writes, and never will be.
 */
static int
take_slot (struct backend_file *f, bool for_write)
{
  struct backend_file_sync *s = &f->sync;
  const unsigned first = for_write ? 1 : 0;
  bool may_open = true;
  unsigned i;

  MUTEX_SCOPE (&s->lock);

  for (;;) {
    for (i = first; i < s->nr_slots; ++i)
      if (!s->slots[i].busy && (for_write || s->slots[i].ripe <= s->ended)) {
        s->slots[i].busy = true;
        return i;
      }
    if (may_open && s->can_open && s->nr_slots < BACKEND_FILE_SLOTS) {
      add_slot_locked (f);
      may_open = false;
    }
    else if (s->nr_slots <= first)
      return -1;
    else
      ranked_mutex_wait (&s->released, &s->lock);
  }
}

static void
release_slot (struct backend_file *f, unsigned slot)
{
  struct backend_file_sync *s = &f->sync;

  MUTEX_SCOPE (&s->lock);

  s->slots[slot].busy = false;
  if (slot == 0)
    s->ended++;
  pthread_cond_broadcast (&s->released);
}

int
backend_file_sync_flush (struct backend *b)
{
  struct backend_file *f = backend_file_of (b);
  int slot = take_slot (f, false);     /* there is slot 0 */
  int r, err = 0;

  do
    r = fdatasync (slot == 0 ? f->fd : f->sync.slots[slot].fd);
  while (r == -1 && errno == EINTR);
  if (r == -1) {
    err = errno;
    f->sync.lost = true;
  }
  release_slot (f, slot);

  if (err) {
    nbdkit_error ("%s: fdatasync: %s: what was written since the last "
                  "flush may be lost", b->name, strerror (err));
    return backend_file_io_error (err);
  }
  return f->sync.lost ? -EIO : 0;
}

#if defined (HAVE_PWRITEV2) && HAVE_DECL_RWF_DSYNC

ssize_t
backend_file_sync_write (struct backend_file *f, const struct iovec *iov,
                         int iovcnt, uint64_t off)
{
  int slot = take_slot (f, true);
  ssize_t r;
  int err;

  if (slot == -1) {
    errno = EOPNOTSUPP;
    return -1;
  }
  do
    r = pwritev2 (f->sync.slots[slot].fd, iov, iovcnt, (off_t) off, RWF_DSYNC);
  while (r == -1 && errno == EINTR);
  err = errno;
  if (r == -1 && !backend_file_is_unsupported (err)) {
    /* No space: for this write alone, or was this slot told that other data
     * is lost?  Then so is another slot, and slot 0 always becomes free.
     */
    if (backend_file_io_error (err) == -EIO)
      f->sync.lost = true;
    else if (backend_file_sync_flush (&f->backend) < 0)
      err = EIO;
  }
  release_slot (f, slot);
  errno = err;
  return r;
}

#else

ssize_t
backend_file_sync_write (struct backend_file *f, const struct iovec *iov,
                         int iovcnt, uint64_t off)
{
  errno = EOPNOTSUPP;
  return -1;
}

#endif

void
backend_file_sync_write_behind (struct backend *b)
{
#ifdef SYNC_FILE_RANGE_WRITE
  struct backend_file *f = backend_file_of (b);
  int err;

  /* Length 0 is the whole file. */
  if (sync_file_range (f->fd, 0, 0, SYNC_FILE_RANGE_WRITE) == 0)
    return;
  err = errno;
  if (err == EIO || err == ENOSPC || err == EDQUOT) {
    f->sync.lost = true;
    nbdkit_error ("%s: sync_file_range: %s: what was written since the last "
                  "flush may be lost", b->name, strerror (err));
  }
  else
    nbdkit_debug ("%s: sync_file_range: %s", b->name, strerror (err));
#endif
}
