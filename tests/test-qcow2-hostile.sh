#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Images that lie: one clear sentence at open, or EIO for the range that is
# broken while the rest is served; never a crash.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh
build () { "$PYTHON" "$abs_top_srcdir/tests/image-builder.py" t.qcow2 "$@"; }

make_data data.raw 3M
fresh () { qemu-img convert -f raw -O qcow2 "$@" data.raw t.qcow2; }

# At open.  The message names the file and the field.
while read -r setting field; do
    fresh
    build set "$setting"
    for ro in "" -r; do
        expect_fail timeout 20 nbdkit $ro -U - qcow2 t.qcow2 --run 'exit 3'
        expect_message 't.qcow2'
        expect_message "$field"
    done
done <<EOT
header.version=4 version
header.cluster_bits=8 cluster_bits
header.cluster_bits=22 cluster_bits
header.cluster_bits=0xffffffff cluster_bits
header.size=1<<63 size
header.size=1<<62 size
header.crypt_method=3 crypt_method
header.l1_size=0 l1_size
header.l1_size=0xffffffff l1
header.l1_table_offset=1 l1_table_offset
header.l1_table_offset=1<<40 l1|L1
header.l1_table_offset=1<<63 l1_table_offset
header.refcount_table_offset=512 refcount_table_offset
header.refcount_table_offset=1<<63 refcount_table_offset
header.refcount_table_clusters=0xffffffff refcount_table
header.refcount_order=7 refcount_order
header.header_length=80 header_length
header.header_length=0xfffffff8 header_length
header.nb_snapshots=0xffffffff nb_snapshots
header.incompatible=1<<17 17
ext[0].len=0xfffffff0 extension
EOT

# The feature name table tells what an unknown bit means.
fresh
build set header.incompatible=1\<\<40 add_ext=0x6803f857:
expect_fail nbdkit -U - qcow2 t.qcow2 --run 'exit 3'
expect_message '40'

# One bad L2 entry: its cluster is EIO, reading and writing; all others work.
export code="
import errno
def fails (f, *a):
    try:
        f (*a)
    except nbd.Error as e:
        assert e.errnum == errno.EIO, e
        return
    assert False, a
want = open ('data.raw', 'rb').read ()
bad = 5 * 65536
fails (h.pread, 4096, bad)
fails (h.pwrite, b'x' * 512, bad)
assert h.pread (bad, 0) == want[:bad]
rest = bad + 65536
assert h.pread (len (want) - rest, rest) == want[rest:]
h.pwrite (want[:4096], 0)
h.flush ()
"
for setting in 'l2[0][5].offset+=512' 'l2[0][5].offset=1<<50' \
               'l2[0][5].reserved=2' 'l2[0][5].offset=end+1M'; do
    fresh
    build set "$setting"
    nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "$code"'
done

# A bad L1 entry: what it maps is EIO.
fresh -o cluster_size=512
build set 'l1[3]|=1'
nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
import errno
try:
    h.pread (512, 3 * 32768)
    assert False
except nbd.Error as e:
    assert e.errnum == errno.EIO
assert len (h.pread (3 * 32768, 0)) == 3 * 32768
h.pread (32768, 4 * 32768)
"'

# An L2 table beyond the end of the file is no zeroes.
fresh
build set 'l1[0].offset=(end+128k)&~65535'
nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
import errno
for f in (lambda: h.pread (512, 0), lambda: h.pwrite (bytes (512), 0)):
    try:
        f ()
        assert False
    except nbd.Error as e:
        assert e.errnum == errno.EIO
"'

# A broken refcount block, met when something is allocated.
for setting in 'reftable[0]+=512' 'reftable[0]=(end+128k)&~65535'; do
    qemu-img create -q -f qcow2 t.qcow2 10M
    build set "$setting"
    nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
try:
    h.pwrite (bytes (512), 0)
    h.flush ()
except nbd.Error as e:
    print (e)
"'
done

# A data cluster that is also metadata: not written, the image is marked
# corrupt, and refused from then on.
for target in 0 @header.l1_table_offset @header.refcount_table_offset \
              'l1' 'reftable'; do
    fresh
    if [ $target = l1 ]; then target="$(build get 'l1[0].offset')"; fi
    if [ $target = reftable ]; then target="$(build get 'reftable[0]')"; fi
    if [ $target != 0 ]; then
        build set "l2[0][5].offset=$target"
    else
        continue        # offset 0 means: not allocated
    fi
    nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
import errno
try:
    h.pwrite (b\"x\" * 512, 5 * 65536)
    assert False
except nbd.Error as e:
    assert e.errnum == errno.EIO
try:
    h.pwrite (b\"x\" * 512, 0)
    assert False
except nbd.Error as e:
    assert e.errnum == errno.EIO
assert h.pread (65536, 0) == open (\"data.raw\", \"rb\").read (65536)
"'
    test "$(build get header.incompatible)" = 2 ||
        test "$(build get header.incompatible)" = 0x2
    expect_fail nbdkit -U - qcow2 t.qcow2 --run 'exit 3'
    expect_message corrupt
done

# A truncated download: what is missing is EIO, never zeroes or garbage.
fresh
truncate -s 2M t.qcow2
nbdkit -r -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
want = open (\"data.raw\", \"rb\").read ()
good = bad = 0
for off in range (0, len (want), 65536):
    try:
        assert h.pread (65536, off) == want[off:off + 65536]
        good += 1
    except nbd.Error:
        bad += 1
assert good > 20 and bad > 10, (good, bad)
"'

# Nor after a write has made the file longer.
nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
want = open (\"data.raw\", \"rb\").read ()
h.zero (65536, 0)
h.trim (131072, 65536)
h.flush ()
h.flush ()
for i in range (2):
    h.pwrite (b\"x\" * 65536, 65536 * i)
h.flush ()
lost = 0
for off in range (65536 * 3, len (want), 65536):
    try:
        assert h.pread (65536, off) == want[off:off + 65536], off
    except nbd.Error:
        lost += 1
assert lost > 10, lost
"'
