#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# dir=: each image is an export; a missing one is made from the golden image;
# images are closed, and complete, when the last client leaves.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh
requires type -P nbdinfo

mkdir d sub
make_data golden.raw 2M
qemu-img convert -f raw -O qcow2 golden.raw golden.qcow2
sum="$(md5sum < golden.qcow2)"
qemu-img create -q -f qcow2 d/a.qcow2 1M
qemu-img snapshot -c s1 d/a.qcow2
echo hello > d/text
mkfifo d/fifo
mkdir d/sub
ln -s ../golden.qcow2 d/link.qcow2

start_nbdkit -P pid -U "$sock" qcow2 dir=d create=true \
    backing-file="$tmpdir/golden.qcow2" backing-format=qcow2
u () { echo "nbd+unix:///$1?socket=$sock"; }
nbdinfo --list "$(u a.qcow2)" | grep 'export=' > list
diff list - <<EOT
export="a.qcow2":
export="a.qcow2@s1":
export="link.qcow2":
EOT
for bad in "" ../golden.qcow2 .hidden sub/x /etc/passwd; do
    if nbdinfo --size "$(u "$bad")"; then exit 1; fi
done
test ! -e d/.hidden

# Twenty jobs at once, each with two connections.
for i in {1..20}; do
    nbdsh -c "
h = nbd.NBD (); h.connect_uri ('$(u job$i)')
g = nbd.NBD (); g.connect_uri ('$(u job$i)')
want = open ('golden.raw', 'rb').read ()
assert h.pread (1 << 20, 0) == want[:1 << 20]
h.pwrite (b'%d' % $i * 100, 5000)
h.flush ()
assert g.pread (2, 5000) == b'%d%d' % ($i % 10 if $i < 10 else $i // 10, $i % 10)
" &
done
wait $(jobs -p | tail -n 20)
test "$sum" = "$(md5sum < golden.qcow2)"

# Closed: qemu can have it while the server runs.
for i in {1..50}; do
    if qemu-img check -q d/job7; then break; fi
    sleep 0.1
done
for i in {1..20}; do
    check_image d/job$i
    cmp -n 100 <(nbdcopy "$(u job$i)" - | tail -c +5001) \
        <(yes | head -n 100 | sed "s/y/$i/" | tr -d '\n')
done
stop_nbdkit pid

expect_fail nbdkit -U - qcow2 dir=missing --run 'exit 3'
expect_message missing
expect_fail nbdkit -U - qcow2 dir=d golden.qcow2 --run 'exit 3'
