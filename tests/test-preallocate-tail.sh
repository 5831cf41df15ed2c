#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# What a server that was killed left behind the last used cluster: the next
# clean close gives it back, also if nobody wrote, and never if it could be
# somebody's data.

source ./functions.sh
set -e
set -x

requires_nbdsh
requires_qemu_img

img="$tmpdir/a.qcow2"

# crash flush|lose: 300 clusters, and perhaps as many that were not flushed.
crash ()
{
    rm -f "$img" "$sock"
    start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=preallocate \
                 qcow2 "$img" create=true size=256M
    nbdsh -u "$uri" -c '
for i in range(300): h.pwrite(b"x" * 65536, i * 65536)
h.flush()
if "'$1'" == "lose":
    for i in range(300): h.pwrite(b"y" * 65536, (1000 + i) * 65536)'
    kill_nbdkit "$tmpdir/pid"
    test "$(stat -c %s "$img")" -ge 134217728
}

# open_close args...: nothing is written.
open_close ()
{
    nbdkit -f -v -U - qcow2 "$img" "$@" --run '
        nbdsh -u "$uri" -c "assert h.pread(512, 0) == b\"x\" * 512"' \
           2> "$tmpdir/err"
}

size () { stat -c %s "$img"; }
end () { qemu-img check --output=json "$img" |
             "$PYTHON" -c 'import json, sys
print(json.load(sys.stdin)["image-end-offset"])'; }

for what in flush lose; do
    crash $what
    open_close -r
    open_close lock=false
    test "$(size)" -ge 134217728
    open_close
    test "$(size)" -eq "$(end)"
    check_image "$img"
    touch -d '2001-01-01' "$img"
    open_close
    test "$(stat -c %Y "$img")" -eq "$(date -d 2001-01-01 +%s)"
done

# With a write: the same.
crash lose
nbdkit -f -U - qcow2 "$img" --run 'nbdsh -u "$uri" -c "h.pwrite(b\"x\", 0)"'
test "$(size)" -eq "$(end)"
check_image "$img"

# Refcounts that lie: the last clusters are data of the guest, though none
# of them is counted.  Opened, changed in place, or both: they stay.
crash flush
open_close
used="$(end)"
"$PYTHON" - "$img" <<'EOT'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    f.seek(48)
    table = struct.unpack(">Q", f.read(8))[0]
    f.seek(table)
    block = struct.unpack(">Q", f.read(8))[0]
    f.seek(0, 2)
    end = f.tell() // 65536
    f.seek(block + 2 * (end - 20))
    f.write(bytes(40))
EOT
qemu-img convert -O raw "$img" "$tmpdir/before"
open_close
grep 'is not consistent' "$tmpdir/err"
nbdkit -f -U - qcow2 "$img" --run 'nbdsh -u "$uri" -c "h.pwrite(b\"x\", 0)"'
test "$(size)" -eq "$used"
qemu-img compare -f raw -F qcow2 "$tmpdir/before" "$img"

# Created with space on purpose: that has refcounts, and stays.
for p in metadata falloc full; do
    rm "$img"
    nbdkit -f -U - qcow2 "$img" create=true size=64M preallocation=$p \
           --filter=preallocate --run true
    stat -c '%s %b' "$img" > "$tmpdir/created"
    nbdkit -f -U - qcow2 "$img" --filter=preallocate --run '
        nbdsh -u "$uri" -c "h.pwrite(b\"x\" * 512, 0)"'
    if [ $p != metadata ]; then
        stat -c '%s %b' "$img" | cmp - "$tmpdir/created"
        test "$(stat -c %b "$img")" -ge 131072
    fi
    stat -c '%s' "$img" | cmp - <(cut -d' ' -f1 "$tmpdir/created")
    check_image "$img"
done
