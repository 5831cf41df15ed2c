#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# A file system is made in an overlay through the filter, by clients who
# know nothing of it; the same through plain qemu gives the same content.

source ./functions.sh
set -e
set -x

requires_qemu_img
requires_qemu_io
requires_nbdcopy
requires mkfs.ext4 -V
requires e2fsck -V
requires debugfs -V

make_data "$tmpdir/base.raw" 64M
make_data "$tmpdir/file" 3M 7
img="$tmpdir/overlay.qcow2"
qemu-img create -q -f qcow2 -b base.raw -F raw "$img" 64M

# mkfs writes to a raw copy, which goes to the overlay in small pieces.
truncate -s 64M "$tmpdir/fs.raw"
mkfs.ext4 -q -F "$tmpdir/fs.raw"
debugfs -w -R "write $tmpdir/file file" "$tmpdir/fs.raw"

nbdkit -U - --filter=cowmerge qcow2 "$img" \
       --run "nbdcopy --request-size=4096 $tmpdir/fs.raw \$uri"
check_image "$img"
qemu-img compare -f raw -F qcow2 "$tmpdir/fs.raw" "$img"
e2fsck -fn "$tmpdir/fs.raw"

# qemu-io writes odd pieces, reads them back, and so on.
nbdkit -U - --filter=cowmerge qcow2 "$img" \
       --run "qemu-io -f raw -c 'write -P 1 1000 3000' \
                      -c 'write -P 2 130000 70000' -c 'write -z 140000 5000' \
                      -c 'read -P 1 1000 3000' -c 'read -P 0 140000 5000' \
                      -c 'read -P 2 145000 55000' -c 'flush' \
                      -c 'discard 0 1M' -c 'write -P 3 512 512' \
                      -c 'read -P 3 512 512' \"\$uri\"" | tee "$tmpdir/out"
if grep -i "fail\|error" "$tmpdir/out"; then exit 1; fi
check_image "$img"
