#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Nobody can tell what is allocated, since extents requests fail: writes
# work all the same, over qcow2 and over other plugins.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_filter error
requires_nbdsh
requires_qemu_img
cd "$tmpdir"

export code='
h.pwrite (b"x" * 65536, 0)
h.pwrite (b"y" * 65536, 1 << 20)
h.flush ()
assert h.pread (65536, 0) == b"x" * 65536
assert h.pread (65536, 1 << 20) == b"y" * 65536
assert h.pread (65536, 65536) == bytes (65536)
'
errors="error-extents-rate=1 error-extents=EIO"
qemu-img create -q -f qcow2 t.qcow2 10M
truncate -s 10M t.raw
for plugin in "memory 10M" "file t.raw" "qcow2 t.qcow2"; do
    nbdkit -U - --filter=preallocate --filter=error $plugin $errors \
           prealloc-size=1M --run 'nbdsh -u "$uri" -c "$code"'
done
check_image t.qcow2

# cowmerge has to know, and says so.
expect_fail nbdkit -U - --filter=cowmerge --filter=error qcow2 t.qcow2 \
            $errors --run 'nbdsh -u "$uri" -c "$code"'
expect_message 'put it above'
