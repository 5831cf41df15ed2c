#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Random operations on an image with internal snapshots, which must stay as
# they are to the last bit.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
source "$abs_top_srcdir/tests/model-functions.sh"
cd "$tmpdir"

for options in compat=1.1 compat=0.10 extended_l2=on \
               cluster_size=512,refcount_bits=8; do
    model_image 3M 0 -o $options
    model_run 11 65536
    qemu-img snapshot -c one t.qcow2
    one="$(model_checksum -l one t.qcow2)"
    model_run 12 65536
    qemu-img snapshot -c two t.qcow2
    two="$(model_checksum -l two t.qcow2)"
    model_run 13 4096
    test "$one" = "$(model_checksum -l one t.qcow2)"
    test "$two" = "$(model_checksum -l two t.qcow2)"
    qemu-img snapshot -d one t.qcow2
    model_run 14 4096
    test "$two" = "$(model_checksum -l two t.qcow2)"
done
