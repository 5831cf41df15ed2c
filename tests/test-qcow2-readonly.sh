#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# nbdkit -r never writes a byte and needs no write permission, also on a
# dirty or corrupt image; a writable server leaves an unchanged image alone.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh

make_data data.raw 3M
qemu-img convert -f raw -O qcow2 -o lazy_refcounts=on data.raw t.qcow2
chmod a-w t.qcow2
sum="$(md5sum t.qcow2; stat -c '%Y %s %b' t.qcow2)"
unchanged () { test "$sum" = "$(md5sum t.qcow2; stat -c '%Y %s %b' t.qcow2)"; }

nbdkit -r -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
assert h.is_read_only ()
assert h.pread (512, 0) == open (\"data.raw\", \"rb\").read (512)
h.flush ()
"'
unchanged
nbdkit -rf -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "assert h.is_read_only ()"'
unchanged
chmod u+w t.qcow2
nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
assert not h.is_read_only ()
h.pread (512, 0)
h.flush ()
"'
unchanged

# Marked dirty, marked corrupt.
for bit in 1 2; do
    cp t.qcow2 bad.qcow2
    "$PYTHON" "$abs_top_srcdir/tests/image-builder.py" bad.qcow2 \
        set header.incompatible=$bit
    cp bad.qcow2 copy.qcow2
    nbdkit -r -U - qcow2 bad.qcow2 --run 'nbdcopy "$uri" -' | cmp - data.raw
    cmp bad.qcow2 copy.qcow2
done
expect_fail nbdkit -U - qcow2 bad.qcow2 --run 'exit 3'
expect_message 'corrupt'
cmp bad.qcow2 copy.qcow2
