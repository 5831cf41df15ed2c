#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# The disk fills up half way, by a file system that is full and by
# ulimit -f: clients get ENOSPC, what was flushed is there, the image is
# clean, and writing goes on when there is space again.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh
requires_root

mkdir fs
mount -t tmpfs -o size=8M tmpfs fs ||
    skip "tmpfs cannot be mounted here"
cleanup_fn umount "$tmpdir/fs"

export code="
import errno
def write_all (step):
    written = []
    try:
        for off in range (0, h.get_size (), step):
            h.pwrite (b'%08d' % off * 8192, off)
            h.flush ()
            written.append (off)
    except nbd.Error as e:
        assert e.errnum == errno.ENOSPC, e
        return written
    assert False
def verify (written):
    for off in written:
        assert h.pread (65536, off) == b'%08d' % off * 8192, off
w = write_all (65536)
assert len (w) > 20, len (w)
verify (w)
"
for options in cluster_size=64k cluster_size=512 lazy_refcounts=on,cluster_size=4k; do
    rm -f fs/*
    qemu-img create -q -f qcow2 -o $options fs/t.qcow2 64M
    nbdkit -U - qcow2 fs/t.qcow2 --run 'nbdsh -u "$uri" -c "$code" -c "
import os
# Space comes back: by our own trim, then from outside.
h.trim (1 << 20, 0)
for i in range (3):
    try:
        h.flush ()
    except nbd.Error as e:
        print (e)
os.system (\"mount -o remount,size=32M \" + os.getcwd () + \"/fs\")
h.flush ()
h.pwrite (b\"z\" * (4 << 20), 32 << 20)
h.flush ()
verify (w[16:])
assert h.pread (4 << 20, 32 << 20) == b\"z\" * (4 << 20)
"'
    check_image fs/t.qcow2
    rm -f fs/*
    mount -o remount,size=8M "$tmpdir/fs"
done

# RLIMIT_FSIZE: the signal does not kill the server.
qemu-img create -q -f qcow2 t.qcow2 64M
(ulimit -f 8192
 nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "$code"')
check_image t.qcow2

# Making an image that does not fit leaves nothing behind.
expect_fail nbdkit -U - qcow2 fs/new.qcow2 create=true size=64M \
    preallocation=full --run 'exit 3'
expect_message 'space'
test ! -e fs/new.qcow2
