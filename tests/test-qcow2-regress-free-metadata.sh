#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# A compressed cluster whose entry refers to metadata: when it is replaced,
# the metadata is not freed (and so not punched out of the file).

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
cd "$tmpdir"

build () { "$PYTHON" "$abs_top_srcdir/tests/image-builder.py" t.qcow2 "$@"; }

make_data data.raw 2M
for target in header.l1_table_offset header.refcount_table_offset \
              'l1[0].offset' 'reftable[0]'; do
    qemu-img convert -f raw -O qcow2 data.raw t.qcow2
    # The old cluster leaks, which is all the harm that is allowed.
    build set "guest[5*64k]=(1<<62)|(@$target+512)"
    nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
h.pwrite (b\"x\" * 65536, 5 * 65536)
h.flush ()
h.trim (65536, 6 * 65536)
h.flush ()
h.flush ()
want = bytearray (open (\"data.raw\", \"rb\").read ())
want[5 * 65536:6 * 65536] = b\"x\" * 65536
want[6 * 65536:7 * 65536] = bytes (65536)
open (\"want.raw\", \"wb\").write (want)
"'
    qemu-img compare -f raw -F qcow2 want.raw t.qcow2
    qemu-img check -r leaks t.qcow2
    check_image t.qcow2
done
