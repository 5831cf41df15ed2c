#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Snapshots, resize, check and repair before serving, in both directions with
# qemu-img.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh
requires type -P nbdcopy
job () { nbdkit -U - qcow2 t.qcow2 "$@" --run true; }
content () { nbdkit -r -U - qcow2 t.qcow2 "$@" --run 'nbdcopy "$uri" -' | md5sum; }
code () { local r=0; nbdkit -U - qcow2 "$@" check=true --run 'exit 9' || r=$?; echo "code $r"; }

make_data one 2M 1
make_data two 2M 2
make_data three 2M 3

for options in compat=1.1 compat=0.10 extended_l2=on cluster_size=512 \
               lazy_refcounts=on; do
    # We snapshot; qemu changes, applies, deletes.
    qemu-img create -q -f qcow2 -o $options t.qcow2 2M
    nbdkit -U - qcow2 t.qcow2 --run 'nbdcopy one "$uri"'
    one="$(content)"
    SOURCE_DATE_EPOCH=1700000000 job snapshot-create=a
    check_image t.qcow2
    qemu-img snapshot -l t.qcow2 | grep 2023-11-1
    nbdkit -U - qcow2 t.qcow2 --run 'nbdcopy two "$uri"'
    two="$(content)"
    test "$(content snapshot=a)" = "$one"
    job snapshot-create=b
    expect_fail job snapshot-create=b
    expect_message '"b"'
    qemu-io -f qcow2 -c 'write -P 1 0 2M' t.qcow2
    qemu-img snapshot -a a t.qcow2
    check_image t.qcow2
    test "$(content)" = "$one"
    qemu-img snapshot -d a t.qcow2
    check_image t.qcow2
    test "$(content)" = "$one"

    # qemu snapshots; we apply and delete.
    nbdkit -U - qcow2 t.qcow2 --run 'nbdcopy three "$uri"'
    three="$(content)"
    qemu-img snapshot -c c t.qcow2
    job snapshot-apply=b
    check_image t.qcow2
    test "$(content)" = "$two"
    test "$(content snapshot=c)" = "$three"
    job snapshot-delete=b
    check_image t.qcow2
    test "$(content)" = "$two"
    job snapshot-apply=c snapshot-delete=c
    check_image t.qcow2
    test "$(content)" = "$three"
    test -z "$(qemu-img snapshot -l t.qcow2)"
    expect_fail job snapshot-apply=none
    expect_message none

    # Resize.
    job resize=5M
    check_image t.qcow2
    cmp <(cat three; head -c 3M /dev/zero) \
        <(nbdkit -r -U - qcow2 t.qcow2 --run 'nbdcopy "$uri" -')
    qemu-io -f qcow2 -c 'write -P 5 4M 1M' t.qcow2
    expect_fail job resize=1M
    expect_message 'shrink=true'
    job resize=1M shrink=true
    check_image t.qcow2
    job resize=5M
    check_image t.qcow2
    cmp <(head -c 1M three; head -c 4M /dev/zero) \
        <(nbdkit -r -U - qcow2 t.qcow2 --run 'nbdcopy "$uri" -')
done

# An overlay that grows does not show what its backing file has there.
qemu-img create -q -f qcow2 -b one -F raw t.qcow2 1M
job resize=2M
check_image t.qcow2
cmp <(head -c 1M one; head -c 1M /dev/zero) \
    <(nbdkit -r -U - qcow2 t.qcow2 --run 'nbdcopy "$uri" -')

# Check and repair.
build () { "$PYTHON" "$abs_top_srcdir/tests/image-builder.py" t.qcow2 "$@"; }
qemu-img convert -f raw -O qcow2 one t.qcow2
test "$(code t.qcow2)" = "code 0"
build set 'refcount[7*65536]=2'
test "$(code t.qcow2)" = "code 2"      # the COPIED flag is wrong then
qemu-img convert -f raw -O qcow2 one t.qcow2
build set append=131072 'refcount[end-64k]=1'
test "$(code t.qcow2)" = "code 3"
expect_fail qemu-img check t.qcow2
job repair=leaks
check_image t.qcow2
for damage in 'refcount[7*65536]=0' 'refcount[7*65536]=3' 'l2[0][3].copied=0' \
              'reftable[0]=0' 'header.incompatible=1' 'header.incompatible=2'; do
    qemu-img convert -f raw -O qcow2 one t.qcow2
    build set "$damage"
    sum="$(md5sum < t.qcow2)"
    code t.qcow2
    test "$sum" = "$(md5sum < t.qcow2)"
    job repair=all
    check_image t.qcow2
    nbdkit -r -U - qcow2 t.qcow2 --run 'nbdcopy "$uri" -' | cmp - one
done

# A dirty image is repaired when it is opened for writing.
qemu-img create -q -f qcow2 -o lazy_refcounts=on t.qcow2 2M
start_nbdkit -P pid -U "$sock" qcow2 t.qcow2
nbdsh -u "nbd+unix:///?socket=$sock" -c 'h.pwrite (b"x" * 100000, 0)' -c 'h.flush ()'
kill_nbdkit pid
test "$(build get header.incompatible)" = 1
nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
assert h.pread (100000, 0) == b\"x\" * 100000
h.pwrite (b\"y\" * 100, 1 << 20)"'
test "$(build get header.incompatible)" = 0
check_image t.qcow2

# With -r these are refused.
expect_fail nbdkit -r -U - qcow2 t.qcow2 resize=5M --run true
expect_message 'nbdkit -r'
