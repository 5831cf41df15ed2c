#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Zeroing what is zero costs nothing, however large; fast zero decides before
# it touches anything.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh

qemu-img create -q -f qcow2 big.qcow2 4T
before="$(stat -c '%s' big.qcow2)"
nbdkit -U - qcow2 big.qcow2 --run 'nbdsh -u "$uri" -c "
import time
start = time.time ()
step = (4 << 30) - 65536
pos = 0
while pos < 1 << 40:
    h.zero (step, pos)
    h.zero (step, pos, nbd.CMD_FLAG_NO_HOLE)
    h.trim (step, pos)
    pos += step
h.flush ()
assert time.time () - start < 20
"'
check_image big.qcow2
test "$(stat -c '%s' big.qcow2)" -le $((before + 1048576))

# Over a backing file, zero must really zero; and in fast form only where no
# data has to be written.
make_data base.raw 1M
for compat in 0.10 1.1; do
    qemu-img create -q -f qcow2 -o compat=$compat -b base.raw -F raw t.qcow2
    export compat
    nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
import errno, os
old = h.pread (1 << 20, 0)
FAST = nbd.CMD_FLAG_FAST_ZERO
def fast (n, off):
    try:
        h.zero (n, off, FAST)
        return True
    except nbd.Error as e:
        assert e.errnum == errno.ENOTSUP
        return False
v3 = os.environ[\"compat\"] == \"1.1\"
assert fast (131072, 65536) == v3
want = old[:65536] + bytes (131072) + old[196608:] if v3 else old
assert h.pread (1 << 20, 0) == want
# Not a whole cluster of data: never fast, and nothing was touched.
assert not fast (65536, 300000)
assert h.pread (1 << 20, 0) == want
h.zero (1 << 20, 0)
assert h.pread (1 << 20, 0) == bytes (1 << 20)
assert fast (1 << 20, 0) == v3
"'
    check_image t.qcow2
done
