#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# An ext4 file system made, filled and checked on the disk, through FUSE; then
# once more on an overlay of it.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires mke2fs -V
requires e2fsck -V
requires type -P debugfs
requires type -P nbdfuse
requires type -P fusermount3
requires_host test -c /dev/fuse

use ()
{
    mkdir -p mnt
    # Left mounted if the script fails.
    nbdfuse -P fuse.pid mnt/disk "$1" &
    local pid=$! i
    cleanup_fn sh -c "fusermount3 -u '$tmpdir/mnt' 2>/dev/null || :"
    for i in {1..100}; do
        if [ -s fuse.pid ]; then break; fi
        sleep 0.1
    done
    "${@:2}"
    fusermount3 -u mnt
    wait $pid
    rm -f fuse.pid
}

make_fs () { mke2fs -q -F -t ext4 mnt/disk; }
check_fs () { e2fsck -f -n mnt/disk; }
fill ()
{
    local i
    for i in {1..40}; do echo "write $tmpdir/file$((i % 4)) name$i"; done > script
    echo "rm name7" >> script
    echo "rm name9" >> script
    debugfs -w -f script mnt/disk
    check_fs
}
compare ()
{
    debugfs -R "dump name$1 got" mnt/disk
    cmp got file$(( $1 % 4 ))
}

for i in 0 1 2 3; do make_data file$i $((i * 300000 + 1000)) $i; done
qemu-img create -q -f qcow2 base.qcow2 128M
for image in base.qcow2 over.qcow2; do
    if [ $image = over.qcow2 ]; then
        qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 over.qcow2
    fi
    rm -f "$sock"
    start_nbdkit -P pid -U "$sock" qcow2 $image
    uri="nbd+unix:///?socket=$sock"
    if [ $image = base.qcow2 ]; then use "$uri" make_fs; fi
    use "$uri" fill
    use "$uri" compare 5
    use "$uri" compare 40
    stop_nbdkit pid
    check_image $image
    qemu-img convert -O raw $image raw
    e2fsck -f -n raw
    if [ $image = over.qcow2 ]; then
        qemu-img compare -f raw -F qcow2 raw over.qcow2
    fi
done
