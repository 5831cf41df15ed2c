#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# nbdkit's -r is noticed among other short options, and only there; what
# create=true needs to look at the backing file reaches it; dir= makes no
# image for the name of a snapshot.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_qemu_io
requires_nbdsh
cd "$tmpdir"

# A dirty image is repaired when it is opened for writing, not with -r.
qemu-img create -q -f qcow2 t.qcow2 1M
"$PYTHON" "$abs_top_srcdir/tests/image-builder.py" t.qcow2 \
    set header.incompatible=1
cp t.qcow2 dirty.qcow2
for options in '-rU -' '-r -U -' '-fvrU -' '-U - -r' '-rt 4 -U -' \
               '--readonly -U -'; do
    nbdkit $options qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
assert h.is_read_only ()"'
    cmp t.qcow2 dirty.qcow2
done
# These are values, and not that option.
for options in '-U - -e -r' '-U - -er'; do
    cp dirty.qcow2 t.qcow2
    nbdkit $options qcow2 t.qcow2 --run true
    expect_fail cmp t.qcow2 dirty.qcow2
done

# An overlay on an image that is encrypted, and on one whose own backing
# file has no recorded format.
qemu-img create -q -f raw base.raw 1M
qemu-img create -q -f qcow2 -o backing_file=base.raw,backing_fmt=raw mid.qcow2
"$PYTHON" "$abs_top_srcdir/tests/image-builder.py" mid.qcow2 \
    set 'ext[backing_format].type=0x12345678'
expect_fail nbdkit -U - qcow2 mid.qcow2 --run true
nbdkit -U - qcow2 mid.qcow2 backing-format=raw --run true
qemu-img create -q -f qcow2 -o backing_file=mid.qcow2,backing_fmt=qcow2 q.qcow2 1M
if [ "$have_gnutls" = "yes" ]; then
    qemu_create_luks --object secret,id=s,data=pw \
        -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 \
        luks.qcow2 1M
    nbdkit -U - qcow2 over.qcow2 create=true backing-file=luks.qcow2 \
        backing-format=qcow2 passphrase=pw --run 'nbdsh -u "$uri" -c "
assert h.get_size () == 1 << 20"'
fi

# What makes no sense gets a sentence of its own.
expect_fail nbdkit -U - qcow2 file= --run true
expect_message 'file= must not be empty'
expect_fail nbdkit -U - qcow2 mid.qcow2 file=q.qcow2 --run true
expect_message 'file= is given twice'
for job in resize=2M repair=all snapshot-create=x; do
    expect_fail nbdkit -U - qcow2 q.qcow2 check=true $job --run true
    expect_message 'check=true changes nothing'
done
for lock in true false; do
    expect_fail nbdkit -U - qcow2 self.qcow2 create=true size=1M \
                data-file=self.qcow2 lock=$lock --run true
    expect_message 'this is the image itself'
    test ! -e self.qcow2
done
if [ "$have_gnutls" = "yes" ]; then
    echo > empty
    expect_fail nbdkit -U - qcow2 e.qcow2 create=true size=1M encrypt=luks \
                passphrase=+empty --run true
    expect_message 'not an empty one'
    test ! -e e.qcow2
fi

# dir=
mkdir dir
expect_fail nbdkit -U - qcow2 dir=dir data-file=d.raw --run true
expect_message data-file
nbdkit -U - qcow2 dir=dir create=true size=1M --run '
    ! nbdsh -c "h.set_export_name (\"new@snap\")" -c "h.connect_unix (\"$unixsocket\")"
    ! test -e dir/new
    nbdsh -c "h.set_export_name (\"new\")" -c "h.connect_unix (\"$unixsocket\")"'
test -e dir/new
