#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Random operations with the smallest and largest clusters and refcounts:
# the refcount table grows again and again with 512-byte clusters.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
source "$abs_top_srcdir/tests/model-functions.sh"
cd "$tmpdir"

for bits in 1 2 8 16 64; do
    model_image 3M 0 -o cluster_size=512,refcount_bits=$bits
    model_run 4 512
done
model_image 3M 1000001 -o cluster_size=4k,refcount_bits=64
model_run 5 4096
model_image 40M 30000001 -o cluster_size=2M,refcount_bits=1
model_run 6 2097152
