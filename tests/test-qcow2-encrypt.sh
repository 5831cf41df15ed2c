#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# LUKS images that qemu-img made: we read and write, qemu verifies, and the
# other way round.

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
}

for more in "" \
            ,encrypt.cipher-alg=aes-128,encrypt.hash-alg=sha512 \
            ,encrypt.cipher-mode=cbc,encrypt.ivgen-alg=essiv,encrypt.ivgen-hash-alg=sha256 \
            ,cluster_size=4k; do
    rm -f t.qcow2 shadow
    : > shadow
    truncate -s 5M shadow
    qemu_create_luks "${secret[@]}" -o $luks$more t.qcow2 5M
    model t.qcow2 shadow
    check t.qcow2 shadow

    # qemu changes it, we verify.
    qemu-io "${secret[@]}" --image-opts "$(opts t.qcow2)" \
            -c 'write -P 7 1234 70000'
    qemu-io -f raw -c 'write -P 7 1234 70000' shadow
    nbdkit -r -U - qcow2 t.qcow2 passphrase=abc --run 'nbdcopy "$uri" -' |
        cmp - shadow
done

# Nothing of the data is in the file in clear.
nbdkit -U - qcow2 t.qcow2 passphrase=abc --run 'nbdsh -u "$uri" -c "
h.pwrite (b\"find me \" * 8192, 0)"'
if grep -q 'find me find me' t.qcow2; then exit 1; fi
