#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Random operations on images whose clusters are compressed: what a write
# replaces is freed.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
source "$abs_top_srcdir/tests/model-functions.sh"
cd "$tmpdir"

for type in zlib zstd; do
    for size in 64k 4k 512; do
        make_data shadow 3000001
        qemu-img convert -c -f raw -O qcow2 \
            -o compression_type=$type,cluster_size=$size shadow t.qcow2
        truncate -s 3000320 shadow      # rounded up to sectors
        model_run 10 4096
    done
done
