#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# File systems that allocate each in its own way, and one that has no
# fallocate: what is read is right, the file ends up as without the filter,
# as much fits on a full disk, and with a quota.

source ./functions.sh
set -e
set -x

requires_plugin file
requires_nbdsh
requires_qemu_img
requires mkfs.ext2 -V
requires mkfs.ext4 -V
requires mkfs.xfs -V
requires_root

hammer="$PYTHON $abs_top_srcdir/tests/preallocate-hammer.py"
small="prealloc-size=1M prealloc-align=64k"
mnt="$tmpdir/mnt"
mkdir "$mnt"
make_data "$tmpdir/random" 1M

# Parts of 400 clusters, 4k each.
parts='
for i in range(400):
    h.pwrite(b\"x\" * 4096, (i * 7919) % 4000 * 65536 + i % 14 * 4096)
h.flush()
'

# As much as there is space for, and what was written is there.
fill='
data = open(\"'"$tmpdir/random"'\", \"rb\").read()
n = 0
try:
    while True:
        h.pwrite(data[n % 16 * 65536:][:65536], n * 65536)
        n += 1
except nbd.Error as e:
    assert e.errno == \"ENOSPC\", e.errno
for i in range(n):
    assert h.pread(65536, i * 65536) == data[i % 16 * 65536:][:65536]
print(n)
'

# serve name filter script: creates and serves $mnt/NAME.
serve ()
{
    nbdkit -f -v -U - $2 qcow2 "$mnt/$1" create=true size=1G \
           --run 'nbdsh -u "$uri" -c "'"$3"'"' 2> "$tmpdir/err"
}

same_space ()
{
    local _f

    for _f in "" --filter=preallocate; do
        serve a "$_f" "$parts"
        if [ -n "$_f" ]; then grep -E 'ahead' "$tmpdir/err"; fi
        stat -c '%s %b' "$mnt/a" > "$tmpdir/space$_f"
        check_image "$mnt/a"
        rm "$mnt/a"
    done
    # In blocks of 512: the file's own tables may differ by some.
    awk 'NR == 1 { size = $1; n = $2 }
         NR == 2 { exit !($1 == size && $2 <= n + 32) }' \
        "$tmpdir/space" "$tmpdir/space--filter=preallocate"
}

byte_for_byte ()
{
    nbdkit -f -U - --filter=preallocate \
           qcow2 "$mnt/a" create=true size=48M $small --run "$hammer"' \
           --uri "$uri" --rounds 2 --requests 1000 --final '"$tmpdir/shadow"
    qemu-img compare -f raw -F qcow2 "$tmpdir/shadow" "$mnt/a"
    check_image "$mnt/a"
    rm "$mnt/a"
    truncate -s 48M "$mnt/a"
    nbdkit -f -U - --filter=preallocate file "$mnt/a" $small \
           --run "$hammer"' --uri "$uri" --rounds 2 --requests 1000'
    rm "$mnt/a"
}

# as_much where tolerance: in clusters.
as_much ()
{
    local _without _with

    _without="$(serve "$1" "" "$fill")"
    rm "$mnt/$1"
    sync -f "$mnt"
    _with="$(serve "$1" --filter=preallocate "$fill")"
    qemu-img check -f qcow2 "$mnt/$1"
    rm "$mnt/$1"
    sync -f "$mnt"
    test "$_with" -ge $(( _without - $2 ))
}

mounted=
for fs in ext4 xfs btrfs ext2; do
    # Not every distribution has btrfs.
    if [ $fs = btrfs ] && ! mkfs.btrfs -V; then continue; fi
    rm -f "$tmpdir/fs"
    truncate -s 400M "$tmpdir/fs"
    mkfs.$fs -q "$tmpdir/fs"
    if ! mount -o loop "$tmpdir/fs" "$mnt"; then
        echo "$0: this machine cannot mount $fs from a loop device"
        continue
    fi
    mounted="$mounted $fs"
    cleanup_fn sh -c "umount -l '$mnt' 2>/dev/null || :"

    same_space
    if [ $fs = ext2 ]; then
        grep 'could not allocate .* ahead: Operation not supp' "$tmpdir/err"
    fi
    byte_for_byte
    # What btrfs says of its free space is an estimate.
    if [ $fs = btrfs ]; then
        btrfs subvolume create "$mnt/quota"
        if btrfs quota enable "$mnt"; then
            btrfs qgroup limit 40M "$mnt/quota"
            as_much quota/a 2
            grep -i 'could not allocate .* ahead: No space' "$tmpdir/err"
        fi
    else
        as_much a 2
    fi
    umount "$mnt"
done
if [ -z "$mounted" ]; then skip "no file system can be mounted"; fi
