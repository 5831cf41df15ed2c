#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Random operations on images without a backing file: both versions,
# preallocation, sizes that are no multiple of anything.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
source "$abs_top_srcdir/tests/model-functions.sh"
cd "$tmpdir"

for options in compat=1.1 compat=0.10 lazy_refcounts=on \
               preallocation=metadata preallocation=falloc; do
    model_image 20M 0 -o $options
    model_run 1 65536
done
for size in 512 5120 70144 9999872; do
    model_image $size 0
    model_run 2 65536
done

# A size that is no multiple of 512: qemu-img rounds up, so the header is
# patched, and only our own reading of it is compared.
for size in 1 513 70001; do
    model_image 70144 0
    truncate -s $size shadow
    "$PYTHON" "$abs_top_srcdir/tests/image-builder.py" t.qcow2 \
              set header.size=$size
    MODEL_COMPARE=no model_run 2 65536
done
