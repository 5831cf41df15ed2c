#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Random operations on overlays: the backing file is shorter, longer, of odd
# size; both versions.  It must not change.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
source "$abs_top_srcdir/tests/model-functions.sh"
cd "$tmpdir"

for compat in 1.1 0.10; do
    for backing in 5000001 20971520 30000000 512; do
        model_image 20M $backing -o compat=$compat
        before="$(md5sum < base.qcow2)"
        model_run 3 65536
        test "$before" = "$(md5sum < base.qcow2)"
    done
done
