#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Over qcow2: the file grows in large steps, ends after a clean close where
# it would without the filter, and does so also after a crash.

source ./functions.sh
set -e
set -x

requires_nbdsh
requires_qemu_img

# Clusters written as a whole, and in part.
write='
import os
for i in range(200):
    h.pwrite(b\"x\" * (65536 if i % 3 else 5000),
             (i * 7919) % 8000 * 65536 + i % 5 * 4096 * (i % 3 == 0))
h.flush()
with open(during, \"w\") as f:
    f.write(str(os.stat(image).st_blocks))
'

for f in "" --filter=preallocate; do
    img="$tmpdir/a$f.qcow2"
    nbdkit -f -U - $f qcow2 "$img" create=true size=1G \
           --run 'nbdsh -u "$uri" -c "
image, during = \"'"$img"'\", \"'"$tmpdir/during$f"'\"
'"$write"'"'
    stat -c %s "$img" > "$tmpdir/size$f"
    stat -c %b "$img" > "$tmpdir/blocks$f"
    check_image "$img"
done
qemu-img compare "$tmpdir/a.qcow2" "$tmpdir/a--filter=preallocate.qcow2"
cmp "$tmpdir/size" "$tmpdir/size--filter=preallocate"
test "$(cat "$tmpdir/blocks--filter=preallocate")" -le \
     $(( $(cat "$tmpdir/blocks") + 64 ))
test "$(cat "$tmpdir/during--filter=preallocate")" -ge 262144

# A crash leaves a tail; the next clean close gives it back, also if it
# does not write anything new.
img="$tmpdir/b.qcow2"
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=preallocate \
             qcow2 "$img" create=true size=1G
nbdsh -u "$uri" -c "image, during = '$img', '$tmpdir/during'" -c "${write//\\}"
kill_nbdkit "$tmpdir/pid"
test "$(stat -c %s "$img")" -ge 134217728
qemu-img compare "$tmpdir/a.qcow2" "$img"

nbdkit -f -U - --filter=preallocate qcow2 "$img" \
       --run 'nbdsh -u "$uri" -c "h.pwrite(b\"x\" * 4000, 100)"'
check_image "$img"
qemu-img compare "$tmpdir/a.qcow2" "$img"
stat -c %s "$img"
test "$(stat -c %s "$img")" -le $(( $(cat "$tmpdir/size") + 1048576 ))

# Read-only: not a byte is written.
sha256sum "$img" > "$tmpdir/sum"
nbdkit -f -U - -r --filter=preallocate qcow2 "$img" \
       --run 'nbdsh -u "$uri" -c "h.pread(65536, 0)"'
sha256sum -c "$tmpdir/sum"
