#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# An error in one thread is the error of the write; nothing hangs, and the
# image stays consistent.

source ./functions.sh
set -e
set -x

plugin=./.libs/hints-test-plugin.so
requires test -f $plugin
requires_nbdsh
requires_filter error
requires_qemu_img

# The right errno, whichever piece fails: the first, one in the middle, a
# part of a cluster.  Others are not touched.
for e in ENOSPC EIO; do
    for at in 0 5M $(( (16 << 20) - 1 )) $(( (16 << 20) + 100 )); do
        nbdkit -f -U - --filter=compress $plugin compress-threads=3 \
               fail-at=$at fail-errno=$e --run 'nbdsh -u "$uri" -c "
try:
    h.pwrite(b\"x\" * ((16 << 20) + 1000), 0)
    assert False
except nbd.Error as ex:
    assert ex.errno == \"'$e'\", ex.errno
h.pwrite(b\"y\" * (4 << 20), 20 << 20)
assert h.pread(4 << 20, 20 << 20) == b\"y\" * (4 << 20)
"'
    done
done

# Errors at random, several connections.
nbdkit -f -U - --filter=compress --filter=error \
       qcow2 "$tmpdir/a.qcow2" create=true size=64M compress-threads=3 \
       error-pwrite=EIO error-pwrite-rate=5% \
       error-zero=EIO error-zero-rate=5% \
       --run '"'"$PYTHON"'" "'"$abs_top_srcdir"'/tests/preallocate-hammer.py" \
              --uri "$uri" --errors --rounds 2 --requests 500 --max 3000000'
check_image "$tmpdir/a.qcow2"

# The file may not grow beyond 4 MiB.
( ulimit -f 4096
  nbdkit -f -U - --filter=compress qcow2 "$tmpdir/b.qcow2" create=true \
         size=64M --run 'nbdsh -u "$uri" -c "
import os
try:
    for i in range(8):
        h.pwrite(os.urandom(1 << 20), i << 20)
    assert False
except nbd.Error as ex:
    assert ex.errno in (\"ENOSPC\", \"EFBIG\"), ex.errno
"' )
check_image "$tmpdir/b.qcow2"
