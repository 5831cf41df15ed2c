#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Each allocation of memory by a filter fails once: requests succeed or fail
# with an error that says so, or the server or one connection does not start;
# the image is clean, and what was flushed is there.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_plugin file
requires_qemu_img
requires_nbdsh
requires_qemu_img_option compression_type=zstd
requires "$PYTHON" -c 'import nbd'
skip_if_valgrind "it preloads replacements of malloc"
skip_if_sanitizers "they have their own malloc"
cd "$tmpdir"
export shim="$abs_top_builddir/tests/.libs/no-memory.so"

# Each value fills 64k or more, so that blocks can be told apart.
"$PYTHON" -c 'import sys
for i in range(80): sys.stdout.buffer.write(bytes([i + 160]) * 65536)' > base
overlay () # file size options
{
    qemu-img create -q -f qcow2 -b base -F raw -o "$3" "$1" "$2"
}
overlay zlib $(( 16 * 65536 - 7680 )) compression_type=zlib
overlay zstd $(( 16 * 65536 - 7680 )) compression_type=zstd
overlay small 4400k cluster_size=4k
truncate -s $(( 16 * 65536 - 7680 )) raw

# each_fails at-least name filter disk workload nbdkit-arguments...
each_fails ()
{
    local least=$1 i
    shift

    "$PYTHON" "$abs_top_srcdir/tests/filters-nomem.py" "$@" > counts
    cat counts
    test "$(sed 's/.*: \([0-9]*\) .*/\1/' counts)" -ge $least
    if [ "$3" = raw ]; then return; fi
    for i in "$1".*.img; do
        check_image "$i"
    done
}

each_fails 20 cowmerge cowmerge zlib requests --filter=cowmerge qcow2 @
each_fails 20 stack cowmerge zlib requests \
           --filter=cowmerge --filter=compress qcow2 @
each_fails 3 zlib compress zlib requests --filter=compress qcow2 @
each_fails 3 zstd compress zstd requests --filter=compress qcow2 @
each_fails 4 hints preallocate zlib requests --filter=preallocate qcow2 @
each_fails 8 ahead preallocate raw requests --filter=preallocate file @ \
           prealloc-size=64k prealloc-align=64k
# The table of blocks grows, or does without.
NO_MEMORY_SIZE=16384 \
each_fails 2 table cowmerge small many --filter=cowmerge qcow2 @
