#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Images with the legacy AES encryption are read only, also below an image that
# is written.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_lib gnutls
requires_nbdsh
source "$abs_top_srcdir/tests/model-functions.sh"

secret=( --object secret,id=s,data=abc )
requires_host qemu-img create -q "${secret[@]}" -f qcow2 \
              -o encrypt.format=aes,encrypt.key-secret=s aes.qcow2 1M
qemu-io "${secret[@]}" --image-opts driver=qcow2,file.filename=aes.qcow2,encrypt.key-secret=s \
        -c 'write -P 9 1000 300000'
: > shadow
truncate -s 1M shadow
qemu-io -f raw -c 'write -P 9 1000 300000' shadow
nbdkit -r -U - qcow2 aes.qcow2 passphrase=abc --run 'nbdcopy "$uri" -' |
    cmp - shadow
expect_fail nbdkit -U - qcow2 aes.qcow2 passphrase=abc --run 'exit 3'
expect_message 'read-only'

# It can be under an image that is written.
nbdkit -U - qcow2 on-aes.qcow2 create=true backing-file=aes.qcow2 \
       backing-format=qcow2 passphrase=abc --run "$PYTHON \
    $abs_top_srcdir/tests/model.py --uri \"\$uri\" --shadow shadow \
    --ops 200 --unit 65536"
nbdkit -r -U - qcow2 on-aes.qcow2 passphrase=abc \
       --run 'nbdcopy "$uri" -' | cmp - shadow
