#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Power loss below each stack of filters: whatever the moment, and whatever
# is lost of what no fdatasync covered, the image has leaks at most, and
# every sector that was flushed.  See recorder/power.py, which also says how
# to run many more cases.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires type -P nbdcopy
skip_if_valgrind "power.py is about the order of system calls"

power="$abs_top_srcdir/tests/recorder/power.py"
rounds=( --rounds "${POWER_ROUNDS:-2}" )
"$PYTHON" "$power" "${rounds[@]}" plain:64k plain:overlay \
          preallocate:64k preallocate:overlay \
          cowmerge:64k cowmerge:overlay compress:64k compress:overlay \
          cowmerge+preallocate:64k cowmerge+preallocate:overlay \
          all:64k all:overlay
# The same for zstd.
"$PYTHON" "$power" "${rounds[@]}" compress:zstd all:zstd

# The test itself: if syncs did nothing, or some of them, it would find out.
expect_fail "$PYTHON" "$power" --lie 1 plain:64k all:64k
expect_message 'should be one of'
expect_fail "$PYTHON" "$power" --lie .5 --cuts 30 plain:4k plain:64k
expect_message 'our check says|is garbage|should be one of'
