#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Block status is exact over the whole chain, merged, and never calls data
# zero.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires type -P nbdinfo
requires type -P jq

# Layers: raw with a hole below, qcow2 in between, overlay on top.
make_data base.raw 1M
truncate -s 8M base.raw
qemu-img create -q -f qcow2 -b base.raw -F raw mid.qcow2
qemu-io -f qcow2 -c 'write -P 1 2M 64k' -c 'write -z 0 64k' mid.qcow2
qemu-img create -q -f qcow2 -b mid.qcow2 -F qcow2 top.qcow2 10M
qemu-io -f qcow2 -c 'write -P 2 4M 128k' -c 'write -z 2M 64k' top.qcow2

nbdkit -r -U - qcow2 top.qcow2 --run 'nbdinfo --map --json "$uri"' |
    jq -r '.[] | "\(.offset) \(.length) \(.type)"' > out
diff -u out - <<EOT
0 65536 3
65536 983040 0
1048576 3145728 3
4194304 131072 0
4325376 6160384 3
EOT

# Allocated zero clusters are zero, but no hole.
qemu-img create -q -f qcow2 -o preallocation=metadata pre.qcow2 1M
qemu-io -f qcow2 -c 'write -z 0 512k' pre.qcow2
nbdkit -r -U - qcow2 pre.qcow2 --run 'nbdinfo --map --json "$uri"' |
    jq -r '.[] | "\(.offset) \(.length) \(.type)"' > out
diff -u out - <<EOT
0 524288 2
524288 524288 0
EOT

# Subclusters.
qemu-img create -q -f qcow2 -o extended_l2=on sub.qcow2 1M
qemu-io -f qcow2 -c 'write -P 3 2k 2k' -c 'write -P 3 8k 4k' sub.qcow2
nbdkit -r -U - qcow2 sub.qcow2 --run 'nbdinfo --map --json "$uri"' |
    jq -r '.[] | "\(.offset) \(.length) \(.type)"' > out
diff -u out - <<EOT
0 2048 3
2048 2048 0
4096 4096 3
8192 4096 0
12288 1036288 3
EOT
