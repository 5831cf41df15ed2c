#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Where there is little space, as much can be written as without the
# filter, and what was written is there.

source ./functions.sh
set -e
set -x

requires_plugin file
requires_nbdsh
requires_root
mkdir "$tmpdir/mnt"
requires_host mount -t tmpfs -o size=20M tmpfs "$tmpdir/mnt"
cleanup_fn umount -l "$tmpdir/mnt"

cat > "$tmpdir/fill.py" <<'EOT'
import os
n = 0
data = []
try:
    while True:
        b = os.urandom(65536)
        h.pwrite(b, n * 65536)
        data.append(b)
        n += 1
except nbd.Error as e:
    assert e.errno == "ENOSPC"
for i in range(n):
    assert h.pread(65536, i * 65536) == data[i]
h.pwrite(data[1], 0)
if flush:
    h.flush()
print(n)
EOT

# fill filter plugin args...
fill ()
{
    nbdkit -f -U - "$@" \
           --run 'nbdsh -u "$uri" -c "flush = '$flush'
exec(open(\"'"$tmpdir/fill.py"'\").read())"'
}

flush=False
for where in tmpfs ext4; do
    if [ $where = ext4 ]; then
        umount "$tmpdir/mnt"
        truncate -s 32M "$tmpdir/fs"
        requires mkfs.ext4 -q "$tmpdir/fs"
        if ! mount -o loop "$tmpdir/fs" "$tmpdir/mnt"; then break; fi
    fi

    truncate -s 1G "$tmpdir/mnt/a.raw"
    without="$(fill file "$tmpdir/mnt/a.raw")"
    for size in 1G 4M; do
        rm "$tmpdir/mnt/a.raw"
        truncate -s 1G "$tmpdir/mnt/a.raw"
        with="$(fill --filter=preallocate file "$tmpdir/mnt/a.raw" \
                     prealloc-size=$size)"
        test "$with" -eq "$without"
    done
    rm "$tmpdir/mnt/a.raw"

    # What was acknowledged can be found after the disk was full: tables had
    # got their space before.
    flush=True
    without="$(fill qcow2 "$tmpdir/mnt/a.qcow2" create=true size=1G)"
    check_image "$tmpdir/mnt/a.qcow2"
    rm "$tmpdir/mnt/a.qcow2"
    with="$(fill --filter=preallocate qcow2 "$tmpdir/mnt/a.qcow2" \
                 create=true size=1G)"
    test "$with" -ge $(( without - 1 ))
    check_image "$tmpdir/mnt/a.qcow2"
    rm "$tmpdir/mnt/a.qcow2"
    flush=False
done
