#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# On a full disk, what was trimmed or replaced a moment ago is space for the
# next write, without a flush in between.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires_root
cd "$tmpdir"

mkdir fs
mount -t tmpfs -o size=40M tmpfs fs || skip "tmpfs cannot be mounted here"
cleanup_fn umount "$tmpdir/fs"

for options in cluster_size=64k extended_l2=on cluster_size=4k,compat=0.10; do
    rm -f fs/*
    qemu-img create -q -f qcow2 -o $options fs/t.qcow2 128M
    nbdkit -U - qcow2 fs/t.qcow2 --run 'nbdsh -u "$uri" -c "
M = 1 << 20
h.pwrite (b\"x\" * (30 * M), 0)
h.flush ()
for i in range (1, 4):
    h.trim (30 * M, 0)
    h.pwrite (b\"y\" * (20 * M), 30 * i * M)
    assert h.pread (20 * M, 30 * i * M) == b\"y\" * (20 * M)
    h.trim (20 * M, 30 * i * M)
    h.pwrite (b\"z\" * (20 * M), 0)
assert h.pread (30 * M, 0) == b\"z\" * (20 * M) + bytes (10 * M)
"'
    check_image fs/t.qcow2
done
