#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Readers beside readers, readers beside writers, as qemu decides it: each
# pair of holder and newcomer, of qemu and of ours.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_qemu_io
requires type -P qemu-nbd
requires_host test -r /proc/locks
cd "$tmpdir"

qemu-img create -q -f qcow2 x.qcow2 10M

# Newcomers: do they get in?
qemu_reads ()  { qemu-io -r -f qcow2 -c 'read 0 512' x.qcow2; }
qemu_writes () { qemu-io -f qcow2 -c 'write 0 512' x.qcow2; }
we_read ()     { nbdkit -r -U - qcow2 x.qcow2 --run 'nbdinfo --size "$uri"'; }
we_write ()    { nbdkit -U - qcow2 x.qcow2 --run 'nbdinfo --size "$uri"'; }

# expect yes|no cmd
expect ()
{
    local got=yes

    "$2" > out 2>&1 || got=no
    if [ "$got" != "$1" ]; then
        cat out
        echo "$0: $2: got in: $got, should be: $1"
        exit 1
    fi
}

start_qemu ()
{
    qemu-nbd -f qcow2 -k "$tmpdir/qemu.sock" --fork --pid-file=qemu.pid \
             "$@" x.qcow2
}
stop_qemu ()
{
    local pid i

    pid="$(cat qemu.pid)"
    kill "$pid"
    for i in {1..100}; do
        if ! kill -0 "$pid" 2>/dev/null; then return 0; fi
        sleep 0.1
    done
    return 1
}
cleanup_fn eval 'kill "$(cat qemu.pid)" 2>/dev/null || :'

# Nobody.
for c in qemu_reads qemu_writes we_read we_write; do expect yes $c; done

# A reader.
start_qemu -r
expect yes qemu_reads
expect no qemu_writes
expect yes we_read
expect no we_write
grep 'x.qcow2.*in use' out
stop_qemu

start_nbdkit -P pid -r -U "$tmpdir/sock1" qcow2 x.qcow2
expect yes qemu_reads
expect no qemu_writes
expect yes we_read
expect no we_write
qemu-img info x.qcow2
qemu-img check x.qcow2
stop_nbdkit pid

# A writer.
start_qemu
for c in qemu_reads qemu_writes we_read we_write; do expect no $c; done
grep 'x.qcow2.*in use' out
stop_qemu

start_nbdkit -P pid -U "$tmpdir/sock2" qcow2 x.qcow2
for c in qemu_reads qemu_writes we_read we_write; do expect no $c; done
stop_nbdkit pid

# A server that was killed leaves nothing behind.
start_nbdkit -P pid -U "$tmpdir/sock3" qcow2 x.qcow2
kill_nbdkit pid
for c in qemu_reads qemu_writes we_read we_write; do expect yes $c; done

# Reading needs no write permission.
chmod 0444 x.qcow2
expect yes we_read
