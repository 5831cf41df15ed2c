#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# An image that is served for writing is locked as qemu locks it: the same
# bytes, so that qemu and other servers are kept out, and say so.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_qemu_io
requires type -P qemu-nbd
requires_host test -r /proc/locks
cd "$tmpdir"

# locked_bytes file
#
# The bytes of the file with locks of open file descriptions, sorted.
locked_bytes ()
{
    local from to

    awk -v ino="$(stat -c %i "$1")" \
        '$2 == "OFDLCK" { split ($6, a, ":");
                          if (a[3] == ino) print $7, $8 }' /proc/locks |
        while read -r from to; do seq "$from" "$to"; done | sort -n | xargs
}

# refused cmd...
#
# The command fails, and its message speaks of a lock or of use by others,
# and names the file.
refused ()
{
    if "$@" > out 2>&1; then
        cat out
        echo "$0: this should have been refused: $*"
        exit 1
    fi
    cat out
    grep -E 'lock|in use' out
    grep x.qcow2 out
}

qemu-img create -q -f qcow2 x.qcow2 10M

# What qemu takes.
qemu-nbd -f qcow2 -k "$tmpdir/qemu.sock" --fork --pid-file=qemu.pid x.qcow2
writer="$(locked_bytes x.qcow2)"
if [ -z "$writer" ]; then skip "this qemu or file system has no such locks"; fi
kill "$(cat qemu.pid)"
for i in {1..100}; do
    if ! kill -0 "$(cat qemu.pid)" 2>/dev/null; then break; fi
    sleep 0.1
done

start_nbdkit -P pid -U "$sock" qcow2 x.qcow2
test "$(locked_bytes x.qcow2)" = "$writer"
refused qemu-io -f qcow2 -c 'read 0 512' x.qcow2
refused qemu-io -r -f qcow2 -c 'read 0 512' x.qcow2
refused qemu-img info x.qcow2
qemu-img info -U x.qcow2
refused nbdkit -f -U - qcow2 x.qcow2
refused nbdkit -f -r -U - qcow2 x.qcow2
nbdkit -r -U - qcow2 x.qcow2 lock=false --run 'nbdinfo --size "$uri"'
stop_nbdkit pid

test -z "$(locked_bytes x.qcow2)"
qemu-io -f qcow2 -c 'write -P 1 0 64k' x.qcow2

# Without locks: none.
start_nbdkit -P pid2 -U "$tmpdir/sock2" qcow2 x.qcow2 lock=false
test -z "$(locked_bytes x.qcow2)"
qemu-img info x.qcow2
stop_nbdkit pid2
check_image x.qcow2
