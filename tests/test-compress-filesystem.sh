#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# An ext4 file system made, filled, changed and checked on a compressed
# image: cowmerge makes whole clusters of its small writes, compress stores
# them compressed.

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

# use command...: with the disk as mnt/disk.
use ()
{
    mkdir -p mnt
    nbdfuse -P fuse.pid mnt/disk "$uri" &
    local pid=$! i
    cleanup_fn sh -c "fusermount3 -u '$tmpdir/mnt' 2>/dev/null || :"
    for i in {1..100}; do
        if [ -s fuse.pid ]; then break; fi
        sleep 0.1
    done
    "$@"
    fusermount3 -u mnt
    wait $pid
    rm -f fuse.pid
}

make_fs () { mke2fs -q -F -t ext4 mnt/disk; }

# change command...: debugfs commands.
change ()
{
    printf '%s\n' "$@" > script
    debugfs -w -f script mnt/disk
    e2fsck -f -n mnt/disk
}

compare ()
{
    debugfs -R "dump $1 got" mnt/disk
    cmp got "$2"
}

seq 200000 > text
make_data noise 300000

for type in zlib zstd; do
    qemu-img create -q -f qcow2 -o compression_type=$type fs.qcow2 128M
    rm -f "$sock"
    start_nbdkit -P pid -U "$sock" --filter=cowmerge --filter=compress \
                 qcow2 fs.qcow2
    use make_fs
    use change "write $tmpdir/text a" "write $tmpdir/noise b" \
        "write $tmpdir/text c"
    use change "rm a" "write $tmpdir/noise d" "rm b" "write $tmpdir/text e"
    use compare c text
    use compare d noise
    stop_nbdkit pid
    check_image fs.qcow2

    # It is compressed, and a reader without the filters sees the same.
    qemu-img check --output=json fs.qcow2 > check.json
    test "$(sed -n 's/.*"compressed-clusters": \([0-9]*\).*/\1/p' check.json)" \
         -ge 10
    qemu-img convert -f qcow2 -O raw fs.qcow2 fs.raw
    e2fsck -f -n fs.raw
    debugfs -R "dump e got" fs.raw
    cmp got text
done
