#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# System calls fail under load, once or from some moment on, with EIO, ENOSPC,
# EINTR or part of the bytes: no crash, no hang, nothing lost of what a flush
# confirmed, and the next server finds an image with leaks at most; also if
# the power fails as well.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires type -P nbdcopy
skip_if_valgrind "power.py is about the order of system calls"

"$PYTHON" "$abs_top_srcdir/tests/recorder/power.py" --fault --cuts 10 \
          plain:4k all:64k cowmerge+preallocate:data-file compress:snapshots
