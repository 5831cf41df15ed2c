#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Zero requests that the filter makes of zero clusters fail below it: the
# write fails, and other data is untouched.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_filter error
requires_nbdsh
requires_qemu_img
cd "$tmpdir"

export code='
import errno
data = b"x" * 65536
h.pwrite (data, 0)
for f in (lambda: h.pwrite (bytes (65536 * 3), 65536),
          lambda: h.pwrite (bytes (65536), 65536, nbd.CMD_FLAG_FUA),
          lambda: h.pwrite (bytes (65536) + data, 65536),
          lambda: h.zero (65536, 0)):
    try:
        f ()
        assert False
    except nbd.Error as e:
        assert e.errnum == errno.EIO, e
assert h.pread (65536, 0) == data
h.flush ()
'
for size in 64k 4k; do
    rm -f t.qcow2
    qemu-img create -q -f qcow2 -o cluster_size=$size t.qcow2 10M
    nbdkit -U - --filter=compress --filter=error qcow2 t.qcow2 \
           error-zero-rate=1 error-zero=EIO --run 'nbdsh -u "$uri" -c "$code"'
    check_image t.qcow2
done
