#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Random operations on images with extended L2 entries.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
source "$abs_top_srcdir/tests/model-functions.sh"
cd "$tmpdir"

model_image 20M 0 -o extended_l2=on
model_run 7 2048
model_image 20M 7000001 -o extended_l2=on
model_run 8 2048
model_image 20M 7000001 -o extended_l2=on,cluster_size=16k
model_run 9 512
