#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Two flushes at once, of which one fails.  The host tells of lost data only
# one of them, which may not be the one whose data it is: so the other, which
# is told later that all is well, must fail as well.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires type -P cc
cd "$tmpdir"

# Storage: the first fdatasync once "armed" takes a while and succeeds, all
# others fail at once.
cat > sync.c <<'EOT'
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int
fdatasync (int fd)
{
  if (access (getenv ("ARMED"), F_OK) == -1)
    return 0;
  if (mkdir (getenv ("FIRST"), 0700) == 0) {
    sleep (2);
    return 0;
  }
  errno = EIO;
  return -1;
}
EOT
cc -shared -fPIC -o sync.so sync.c

qemu-img create -q -f qcow2 t.qcow2 1M
qemu-io -f qcow2 -c 'write -P 1 0 128k' t.qcow2
export ARMED="$PWD/armed" FIRST="$PWD/first"
r=0
LD_PRELOAD="$PWD/sync.so" nbdkit -U - qcow2 t.qcow2 \
    --run 'export uri; nbdsh -c -' <<'EOT' || r=$?
import errno, os, sys
other = nbd.NBD()
for c in h, other:
    c.connect_uri(os.environ["uri"])
h.pwrite(b"a" * 4096, 0)
h.flush()
open("armed", "w").close()

h.pwrite(b"b" * 4096, 0)
slow = h.aio_flush()
while not os.path.exists("first"):
    h.poll(50)
other.pwrite(b"c" * 4096, 65536)
try:
    other.flush()
    sys.exit("a flush that fails is told to have succeeded")
except nbd.Error:
    pass
try:
    while not h.aio_command_completed(slow):
        h.poll(-1)
    sys.exit("a flush succeeds although another failed meanwhile")
except nbd.Error as e:
    assert e.errnum == errno.EIO
EOT
test $r = 0
