#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Layers of a chain are locked as readers, and shared: between overlays in
# one server, in several, and with qemu.  Nobody may write to one, except to
# a raw backing file, where qemu allows it too.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_qemu_io
requires_nbdsh
cd "$tmpdir"

refused ()
{
    if "$@" > out 2>&1; then
        cat out
        echo "$0: this should have been refused: $*"
        exit 1
    fi
    cat out
    grep -E 'lock|in use' out
}

truncate -s 10M raw
qemu-img create -q -f qcow2 -b raw -F raw base.qcow2
for i in 1 2 3 4; do
    qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 o$i.qcow2
done

start_nbdkit -P pid1 -U "$tmpdir/sock1" qcow2 o1.qcow2
start_nbdkit -P pid2 -U "$tmpdir/sock2" qcow2 o2.qcow2
qemu-io -f qcow2 -c 'write 0 512' -c 'read 512 512' o3.qcow2
qemu-img info base.qcow2
nbdkit -r -U - qcow2 base.qcow2 --run 'nbdinfo --size "$uri"'
refused qemu-io -f qcow2 -c 'write 0 512' base.qcow2
refused nbdkit -f -U - qcow2 base.qcow2
grep base.qcow2 out
qemu-io -f raw -c 'write 0 512' raw
stop_nbdkit pid1
stop_nbdkit pid2

# The other way round: who writes to the base keeps overlays out.
start_nbdkit -P pid -U "$tmpdir/sock3" qcow2 base.qcow2
refused qemu-io -f qcow2 -c 'read 0 512' o1.qcow2
refused nbdkit -f -U - qcow2 o1.qcow2
grep 'base.qcow2.*in use' out
stop_nbdkit pid

# Overlays in one server share the base, and keep it from being written.
if nbdkit qcow2 --help | grep -q '^dir='; then
    start_nbdkit -P pid -U "$sock" qcow2 dir=.
    nbdinfo --size "nbd+unix:///o1.qcow2?socket=$sock"
    nbdsh -c - <<EOT
import nbd
a, b, c = nbd.NBD (), nbd.NBD (), nbd.NBD ()
a.connect_uri ("nbd+unix:///o1.qcow2?socket=$sock")
b.connect_uri ("nbd+unix:///o2.qcow2?socket=$sock")
a.pwrite (b"a" * 512, 0)
b.pwrite (b"b" * 512, 0)
assert a.pread (512, 0) == b"a" * 512
try:
    c.connect_uri ("nbd+unix:///base.qcow2?socket=$sock")
    assert c.is_read_only ()
except nbd.Error as ex:
    print ("as it should be:", ex)
EOT
    stop_nbdkit pid
fi
for i in 1 2 3 4; do check_image o$i.qcow2; done
check_image base.qcow2
