#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Power loss during what is done before serving: resize, snapshots, repair.
# The disk is as it was before or as it is after, internal snapshots do not
# change, and what is wrong with refcounts was announced by the dirty bit.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires type -P nbdcopy
skip_if_valgrind "power.py is about the order of system calls"

"$PYTHON" "$abs_top_srcdir/tests/recorder/power.py" --job --cuts 6 \
          4k:grow bitmaps:grow 512:shrink 64k:repair data-file:repair \
          4k:snapshot-create v2:snapshot-create lazy:snapshot-create \
          overlay:snapshot-delete subclusters:snapshot-delete \
          bitmaps:snapshot-apply 4k:snapshot-apply
