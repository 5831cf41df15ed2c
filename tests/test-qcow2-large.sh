#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Opening an image of 1 TiB with all its metadata: quick, and little memory.
# Reads in it are right; so is zero detection.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh
# Room for the tables.
requires_host sh -c 'test "$(df --output=avail -B 1M "$0" | tail -n 1)" -gt 2048' "$tmpdir"

qemu-img create -q -f qcow2 -o preallocation=metadata t.qcow2 1T
start_nbdkit -P pid -U "$sock" qcow2 t.qcow2
nbdsh -c "
import time
start = time.time ()
h = nbd.NBD ()
h.connect_uri ('nbd+unix:///?socket=$sock')
assert h.pread (4096, (1 << 40) - 4096) == bytes (4096)
print ('first read after', time.time () - start)
import random
r = random.Random (1)
for i in range (20000):
    h.pread (512, r.randrange (1 << 31) * 512)
for i in range (1000):
    h.pwrite (b'x' * 512, r.randrange (1 << 31) * 512)
h.flush ()
"
# Peak memory, with caches filled: the sanitizers and valgrind need more.
if [ "$sanitizers" = no ] && [ -z "$NBDKIT_VALGRIND" ]; then
    peak="$(awk '/VmHWM/ { print $2 }' /proc/$(cat pid)/status)"
    test "$peak" -lt $((160 * 1024))
fi
stop_nbdkit pid
qemu-img create -q -f qcow2 z.qcow2 100M
nbdkit -U - qcow2 z.qcow2 detect-zeroes=true --run 'nbdsh -u "$uri" -c "
h.pwrite (bytes (20 << 20), 0)
h.pwrite (b\"x\" * 65536 + bytes (65536) + b\"y\" * 65536, 40 << 20)
assert h.pread (3 * 65536, 40 << 20) == b\"x\" * 65536 + bytes (65536) + b\"y\" * 65536
h.pwrite (bytes (65536), 40 << 20)
assert h.pread (65536, 40 << 20) == bytes (65536)
"'
check_image z.qcow2
test "$(stat -c %s z.qcow2)" -lt 600000
