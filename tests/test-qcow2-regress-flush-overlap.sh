#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Linux tells of lost data once per open file description, and a new
# description is not told what others have heard before.  So of two flushes
# at once that share a description, one hears that all is well, and may say so
# while the other has not yet said the opposite.  Neither may succeed.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires type -P cc
cd "$tmpdir"

# Linux in small.  "armed" exists: data was lost.  Who is told first takes a
# while to come back from the kernel.
cat > sync.c <<'EOT'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int was_told[1024];

static int
ask (int fd)
{
  if (access (getenv ("ARMED"), F_OK) == -1 || was_told[fd])
    return 0;
  was_told[fd] = 1;
  if (mkdir (getenv ("FIRST"), 0700) == 0)
    sleep (2);
  errno = EIO;
  return -1;
}

/* Not so fast: several at once. */
int
fdatasync (int fd)
{
  usleep (100000);
  return ask (fd);
}

ssize_t
pwritev2 (int fd, const struct iovec *iov, int n, off_t off, int flags)
{
  ssize_t r = pwritev (fd, iov, n, off);

  return r > 0 && (flags & RWF_DSYNC) && ask (fd) == -1 ? -1 : r;
}

int
open (const char *path, int flags, ...)
{
  int (*real) (const char *, int, ...) =
    (int (*) (const char *, int, ...)) dlsym (RTLD_NEXT, "open");
  int fd = real (path, flags, 0666);

  if (fd >= 0)
    was_told[fd] = access (getenv ("FIRST"), F_OK) == 0;
  return fd;
}
EOT
cc -shared -fPIC -o sync.so sync.c

cat > flush.py <<'EOT'
import errno, os, sys
first, room = os.environ["HOW"].split()
h = [nbd.NBD() for i in range(6)]
for c in h:
    c.connect_uri(os.environ["uri"])

def is_refused(flush):
    try:
        flush()
    except nbd.Error as e:
        return e.errnum == errno.EIO
    return False

if room == "opened":          # descriptions from before
    for c in h:
        c.pwrite(b"a" * 4096, 0)
    cookies = [(c, c.aio_flush()) for c in h]
    for c, cookie in cookies:
        while not c.aio_command_completed(cookie):
            c.poll(-1)
h[0].pwrite(b"a" * 4096, 0)
open("armed", "w").close()
if first == "flush":
    slow = h[0].aio_flush()
else:
    slow = h[0].aio_pwrite(b"b" * 4096, 65536, flags=nbd.CMD_FLAG_FUA)
for i in range(200):
    if os.path.exists("first"):
        break
    h[0].poll(50)
else:
    sys.exit("sync.so does not see what the server calls")
for c in h[1:]:
    if not is_refused(c.flush):
        sys.exit("a flush succeeds although data is lost")

def wait():
    while not h[0].aio_command_completed(slow):
        h[0].poll(-1)

if not is_refused(wait):
    sys.exit("who was told of lost data did not say so")
EOT

export ARMED="$PWD/armed" FIRST="$PWD/first"
for first in flush fua; do
    for room in new opened; do
        rm -rf armed first
        qemu-img create -q -f qcow2 t.qcow2 1M
        qemu-io -f qcow2 -c 'write -P 1 0 128k' t.qcow2
        LD_PRELOAD="$PWD/sync.so" nbdkit -U - qcow2 t.qcow2 \
            --run "export uri; HOW='$first $room' nbdsh -c - <flush.py"
        test -e armed
    done
done
