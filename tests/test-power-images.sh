#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Power loss while images of all kinds are written: see
# test-power-stacks.sh.  Internal snapshots do not change, and bitmaps are
# marked as in use before the disk changes.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires type -P nbdcopy
skip_if_valgrind "power.py is about the order of system calls"

"$PYTHON" "$abs_top_srcdir/tests/recorder/power.py" \
          all:4k compress:512 cowmerge:v2 plain:refcount1 \
          plain:subclusters all:overlay-subclusters plain:discard \
          all:snapshots plain:snapshots-subclusters \
          preallocate:data-file cowmerge:data-file-raw \
          plain:lazy all:lazy cowmerge:bitmaps
if [ "$have_gnutls" = "yes" ]; then
    "$PYTHON" "$abs_top_srcdir/tests/recorder/power.py" \
              plain:luks cowmerge+preallocate:luks-subclusters
fi
