#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Images in which tables are named again and again (hostile-tables.py): what
# is done with them takes seconds, since each table is walked once.  Table by
# table it would take hours.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
cd "$tmpdir"

# A repair walks everything six times, here with sanitizers perhaps.
limit="timeout 120"

make_image ()
{
    rm -f "$1"
    qemu-img create -q -f qcow2 -o refcount_bits=64 "$1" 2P
    qemu-io -f qcow2 -c 'write -q -P 3 0 64k' "$1"
    [ "$1" != bitmaps ] || qemu-img bitmap --add -g 1M "$1" b0
    "$PYTHON" "$abs_top_srcdir/tests/hostile-tables.py" "$1" "$1"
}

code='assert h.pread (512, 0) == b"\3" * 512'

for kind in one-table two-tables snapshots; do
    make_image $kind
    expect_fail $limit nbdkit -U - qcow2 $kind check=true --run true
    expect_message 'corrupt: .*errors'
    $limit nbdkit -r -U - qcow2 $kind --run 'nbdsh -u "$uri" -c "$code"'
    expect_fail $limit nbdkit -U - qcow2 $kind snapshot-create=x --run true
    expect_message 'corrupt|is named by'

    # It is repaired when it is opened, if it is marked.
    "$PYTHON" "$abs_top_srcdir/tests/image-builder.py" $kind \
              set 'header.incompatible|=1'
    $limit nbdkit -U - qcow2 $kind repair=all --run 'nbdsh -u "$uri" -c "
$code
h.pwrite (b\"x\" * 512, 512)
h.flush ()
"'
    $limit nbdkit -U - qcow2 $kind check=true --run true
done

# The last one has the same snapshot 65535 times, and is clean now.
$limit nbdkit -U - qcow2 snapshots snapshot-create=x --run true
$limit nbdkit -U - qcow2 snapshots snapshot-delete=00007 --run true
$limit nbdkit -U - qcow2 snapshots check=true --run true

# The others are not changed as a whole.
expect_fail $limit nbdkit -U - qcow2 two-tables snapshot-create=x --run true
expect_message 'is named by'

# Tables may overlap, but not for ever.
make_image misaligned
expect_fail $limit nbdkit -U - qcow2 misaligned check=true --run true
expect_message 'more than [0-9]* L2 tables'
expect_fail $limit nbdkit -U - qcow2 misaligned repair=all --run true
expect_fail $limit nbdkit -U - qcow2 misaligned snapshot-create=x --run true
$limit nbdkit -r -U - qcow2 misaligned --run 'nbdsh -u "$uri" -c "$code"'

make_image bitmaps
expect_fail $limit nbdkit -U - qcow2 bitmaps check=true --run true
expect_message 'corrupt: .*errors'
$limit nbdkit -U - qcow2 bitmaps repair=all --run true
expect_fail $limit nbdkit -U - qcow2 bitmaps resize=1P shrink=true --run true
expect_message 'use the same space'
$limit nbdkit -r -U - qcow2 bitmaps --run 'nbdsh -u "$uri" -c "$code"'
