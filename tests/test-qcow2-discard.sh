#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Trim gives host space back and never uncovers the backing file; the file
# ends after its last used cluster; discard=false ignores trim.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh

make_data base.raw 4M
blocks () { stat -c %b "$1"; }

# Host space is given back, and reused.
qemu-img create -q -f qcow2 t.qcow2 64M
nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
import os
for i in range (8):
    h.pwrite (b\"x\" * (4 << 20), i * (4 << 20))
h.flush ()
full = os.stat (\"t.qcow2\").st_blocks
h.trim (16 << 20, 4 << 20)
h.flush ()
h.flush ()
assert os.stat (\"t.qcow2\").st_blocks <= full - (15 << 11)
assert h.pread (16 << 20, 4 << 20) == bytes (16 << 20)
size = os.stat (\"t.qcow2\").st_size
for i in range (4):
    h.pwrite (b\"y\" * (4 << 20), (40 << 20) + i * (4 << 20))
h.flush ()
assert os.stat (\"t.qcow2\").st_size == size
h.trim (64 << 20, 0)
"'
check_image t.qcow2
test "$(stat -c %s t.qcow2)" -le 400000

# discard=false
nbdkit -U - qcow2 t.qcow2 discard=false --run 'nbdsh -u "$uri" -c "
h.pwrite (b\"x\" * 65536, 0)
h.trim (65536, 0)
assert h.pread (65536, 0) == b\"x\" * 65536
"'
check_image t.qcow2

# The backing file never shows through, in version 2 neither.
for compat in 0.10 1.1; do
    qemu-img create -q -f qcow2 -o compat=$compat -b base.raw -F raw ov.qcow2
    nbdkit -U - qcow2 ov.qcow2 --run 'nbdsh -u "$uri" -c "
h.pwrite (b\"x\" * (2 << 20), 0)
h.flush ()
h.trim (1 << 20, 0)
d = h.pread (1 << 20, 0)
assert d == bytes (1 << 20) or d == b\"x\" * (1 << 20)
h.trim (1000, 1 << 20)
assert h.pread (4096, 1 << 20) == b\"x\" * 4096
h.zero (1 << 20, 1 << 20)
h.zero (4 << 20, 0, 0)
assert h.pread (4 << 20, 0) == bytes (4 << 20)
"'
    check_image ov.qcow2
    qemu-img convert -O raw ov.qcow2 ov.raw
    cmp ov.raw <(head -c 4M /dev/zero)
done
