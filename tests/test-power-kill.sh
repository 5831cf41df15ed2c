#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# kill -9 of each stack under load: what was flushed is there, all else is old
# or new, and the image has leaks at most.  The next server goes on with it.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires type -P nbdcopy
skip_if_valgrind "power.py is about the order of system calls"

"$PYTHON" "$abs_top_srcdir/tests/recorder/power.py" --kill \
          plain:64k preallocate:4k cowmerge:overlay compress:64k \
          compress:zstd cowmerge+preallocate:data-file all:64k \
          all:overlay-subclusters all:snapshots plain:lazy plain:bitmaps
