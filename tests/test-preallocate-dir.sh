#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Images of a directory: each grows ahead for itself, and gives the rest
# back when its own last client leaves, while the server goes on.

source ./functions.sh
set -e
set -x

requires_nbdsh
requires_qemu_img

mkdir "$tmpdir/disks"
for name in a b; do
    qemu-img create -q -f qcow2 "$tmpdir/disks/$name.qcow2" 256M
done

cp "$tmpdir/disks/a.qcow2" "$tmpdir/plain-a.qcow2"     # without the filter

start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=preallocate \
             qcow2 dir="$tmpdir/disks"

# length NAME less|more SIZE: of the image, within a few seconds.
length ()
{
    local i
    for i in $(seq 100); do
        case $2 in
            more) test "$(stat -c %s "$tmpdir/disks/$1")" -lt "$3" || return 0 ;;
            less) test "$(stat -c %s "$tmpdir/disks/$1")" -ge "$3" || return 0 ;;
        esac
        sleep 0.1
    done
    stat "$tmpdir/disks/$1"
    return 1
}

export -f length
export tmpdir
nbdsh -c '
import subprocess
def connect(name):
    c = nbd.NBD()
    c.set_export_name(name)
    c.connect_unix("'"$sock"'")
    return c
def length(*args):
    subprocess.run(["bash", "-ec", "length " + " ".join(args)], check=True)

a, b, b2 = connect("a.qcow2"), connect("b.qcow2"), connect("b.qcow2")
for i in range(300):
    a.pwrite(b"a" * 65536, i * 65536)
    (b, b2)[i & 1].pwrite(b"b" * 65536, i * 131072)
length("a.qcow2", "more", "134217728")
length("b.qcow2", "more", "134217728")

a.shutdown()
length("a.qcow2", "less", "21000000")
b.shutdown()
b2.pwrite(b"c" * 65536, 400 * 131072)
length("b.qcow2", "more", "134217728")
b2.shutdown()
length("b.qcow2", "less", "21000000")

# Again, the same image in the same server: the first step is a small one.
a = connect("a.qcow2")
assert a.pread(65536, 299 * 65536) == b"a" * 65536
a.pwrite(b"d" * 65536, 1000 * 65536)
length("a.qcow2", "more", "22000000")
a.shutdown()
length("a.qcow2", "less", "21000000")
'
stop_nbdkit "$tmpdir/pid"

# As long as without the filter.
nbdkit -U - qcow2 "$tmpdir/plain-a.qcow2" --run 'nbdsh -u "$uri" -c "
for i in range(300):
    h.pwrite(b\"a\" * 65536, i * 65536)
h.flush()
h.pwrite(b\"d\" * 65536, 1000 * 65536)"'
test "$(stat -c %s "$tmpdir/disks/a.qcow2")" -eq \
     "$(stat -c %s "$tmpdir/plain-a.qcow2")"
qemu-img compare "$tmpdir/disks/a.qcow2" "$tmpdir/plain-a.qcow2"
for name in a b; do
    check_image "$tmpdir/disks/$name.qcow2"
done
