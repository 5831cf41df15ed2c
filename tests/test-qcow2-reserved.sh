#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Clusters that are counted before they are used, where flushes are frequent:
# a clean close leaves none, after kill -9 the next server gives them
# back, and an image that was preallocated is not taken for such a one.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
cd "$tmpdir"

write_and_flush='
for i in range (40):
    h.pwrite (b"x" * 4096, (i * 7 % 400) * 65536 + 4096)
    h.flush ()
'

# Clean close: as long as if nothing had been reserved.
qemu-img create -q -f qcow2 t.qcow2 64M
nbdkit -U - qcow2 t.qcow2 --run "nbdsh -u \"\$uri\" -c '$write_and_flush'"
check_image t.qcow2
clean_size=$(stat -c %s t.qcow2)
test "$clean_size" -le $((4 * 65536 + 40 * 65536 + 65536))

# Killed: leaks and nothing else...
qemu-img create -q -f qcow2 k.qcow2 64M
start_nbdkit -P pid -U "$sock" qcow2 k.qcow2
nbdsh -u "nbd+unix:///?socket=$sock" -c "$write_and_flush"
kill_nbdkit pid
rm -f "$sock"
r=0
qemu-img check -f qcow2 k.qcow2 > check.out || r=$?
cat check.out
test $r = 3                     # or the rest of this test shows nothing
grep 'leaked clusters' check.out

# ...until the next server opens it, though it only reads.
nbdkit -U - qcow2 k.qcow2 --run 'nbdinfo "$uri"'
check_image k.qcow2
test "$(stat -c %s k.qcow2)" -le "$clean_size"
qemu-img compare t.qcow2 k.qcow2

# A reader does not change it, nor does a server that does not own it.
qemu-img create -q -f qcow2 k.qcow2 64M
start_nbdkit -P pid2 -U "$sock" qcow2 k.qcow2
nbdsh -u "nbd+unix:///?socket=$sock" -c "$write_and_flush"
kill_nbdkit pid2
rm -f "$sock"
cp k.qcow2 copy.qcow2
nbdkit -r -U - qcow2 k.qcow2 --run 'nbdinfo "$uri"'
cmp k.qcow2 copy.qcow2

# Also if it writes.
nbdkit -U - qcow2 k.qcow2 --run 'nbdsh -u "$uri" -c "h.pwrite (b\"y\", 77)"'
check_image k.qcow2

# Holes that are in use stay.
for mode in metadata falloc; do
    qemu-img create -q -f qcow2 -o preallocation=$mode p.qcow2 64M
    cp --sparse=always p.qcow2 copy.qcow2
    nbdkit -U - qcow2 p.qcow2 --run 'nbdinfo "$uri"'
    cmp p.qcow2 copy.qcow2
    check_image p.qcow2
done

# Many crashes, also of servers that leave no such tail, do not add up.
qemu-img create -q -f qcow2 k.qcow2 64M
for round in 1 2 3; do
    for what in "$write_and_flush" 'h.pwrite (b"z" * 3000000, 50000000)
h.flush ()'; do
        start_nbdkit -P "pid-$round" -U "$sock" qcow2 k.qcow2
        nbdsh -u "nbd+unix:///?socket=$sock" -c "$what"
        kill_nbdkit "pid-$round"
        rm -f "$sock"
    done
done
nbdkit -U - qcow2 k.qcow2 --run true
check_image k.qcow2
