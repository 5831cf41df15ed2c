#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Internal snapshots as exports: listed, with their own size, readable beside
# a writer of the active layer.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh
requires type -P nbdinfo

make_data one.raw 3M 1
make_data two.raw 3M 2
qemu-img convert -f raw -O qcow2 one.raw t.qcow2
qemu-img snapshot -c first t.qcow2
nbdkit -U - qcow2 t.qcow2 --run 'nbdcopy two.raw "$uri"'
qemu-img resize -q t.qcow2 4M
qemu-img snapshot -c second t.qcow2
qemu-img resize -q t.qcow2 5M
truncate -s 4M two.raw

start_nbdkit -P pid -U "$sock" qcow2 t.qcow2
uri="nbd+unix:///?socket=$sock"
nbdinfo --list "$uri" > list
grep 'export="":' list
grep 'export="@first":' list
grep 'export="@second":' list
grep 'description: internal snapshot 1, 20..-' list
test "$(nbdinfo --size "nbd+unix:///@first?socket=$sock")" = 3145728
test "$(nbdinfo --size "nbd+unix:///@second?socket=$sock")" = 4194304
test "$(nbdinfo --size "$uri")" = 5242880
nbdsh -c "
import random
w = nbd.NBD (); w.connect_uri ('$uri')
s = nbd.NBD (); s.connect_uri ('nbd+unix:///@first?socket=$sock')
assert s.is_read_only ()
want = open ('one.raw', 'rb').read ()
r = random.Random (1)
for i in range (500):
    off = r.randrange (5 << 20)
    n = min (r.randrange (1, 70000), (5 << 20) - off)
    w.pwrite (r.randbytes (n), off)
    if i % 10 == 0:
        w.trim (65536 * 4, 65536 * r.randrange (60))
    off = r.randrange (len (want))
    n = min (100000, len (want) - off)
    assert s.pread (n, off) == want[off:off + n]
w.flush ()
"
nbdcopy "nbd+unix:///@second?socket=$sock" - | cmp - two.raw
nbdcopy "nbd+unix:///@2?socket=$sock" - | cmp - two.raw
if nbdinfo "nbd+unix:///@none?socket=$sock"; then exit 1; fi
stop_nbdkit pid
check_image t.qcow2
qemu-img convert -l first -O raw t.qcow2 out
cmp -n 3145728 out one.raw

nbdkit -U - qcow2 t.qcow2 snapshot=first --run 'nbdcopy "$uri" -' |
    cmp - one.raw
expect_fail nbdkit -U - qcow2 t.qcow2 snapshot=none --run 'exit 3'
expect_message 'none'
