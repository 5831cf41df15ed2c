#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Encrypted images in a backing chain and with internal snapshots, which
# qemu makes and we make.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_lib gnutls
requires_nbdsh
source "$abs_top_srcdir/tests/encrypt-functions.sh"

opts ()
{
    echo -n "driver=qcow2,file.filename=$1,encrypt.key-secret=s"
    if [ $1 = over.qcow2 ]; then
        echo -n ",backing.driver=qcow2,backing.file.filename=base.qcow2"
        echo -n ",backing.encrypt.key-secret=s"
    fi
}

qemu_create_luks "${secret[@]}" -o $luks base.qcow2 1M
make_data base.raw 1000001
truncate -s 1M base.raw
nbdkit -U - qcow2 base.qcow2 passphrase=abc --run 'nbdcopy base.raw "$uri"'
qemu_create_luks "${secret[@]}" -u -b base.qcow2 -F qcow2 \
    -o $luks over.qcow2 1M
cp base.raw shadow
model over.qcow2 shadow
check over.qcow2 shadow

qemu-img snapshot "${secret[@]}" -c snap --image-opts "$(opts base.qcow2)"
cp base.raw shadow
model base.qcow2 shadow
check base.qcow2 shadow
nbdkit -r -U - qcow2 base.qcow2 passphrase=abc snapshot=snap \
    --run 'nbdcopy "$uri" -' | cmp - base.raw

# The same by us: made, changed after, gone back to, deleted.
job () { nbdkit -U - qcow2 base.qcow2 passphrase=abc "$@" --run true; }
job snapshot-create=ours
cp shadow ours.raw
model base.qcow2 shadow
check base.qcow2 shadow
nbdkit -r -U - qcow2 base.qcow2 passphrase=abc snapshot=ours \
    --run 'nbdcopy "$uri" -' | cmp - ours.raw
job snapshot-apply=ours snapshot-delete=snap resize=2M
truncate -s 2M ours.raw
check base.qcow2 ours.raw
job snapshot-delete=ours
check base.qcow2 ours.raw
