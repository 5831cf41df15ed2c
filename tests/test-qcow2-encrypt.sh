#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# LUKS images that qemu-img made: we read and write, qemu verifies, and the
# other way round; also as a backing file and with internal snapshots.
# Legacy AES is read only.

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
luks=encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=50
opts ()
{
    echo -n "driver=qcow2,file.filename=$1,encrypt.key-secret=s"
    if [ $1 = over.qcow2 ]; then
        echo -n ",backing.driver=qcow2,backing.file.filename=base.qcow2"
        echo -n ",backing.encrypt.key-secret=s"
    fi
}
check ()
{
    qemu-img check "${secret[@]}" --image-opts "$(opts $1)"
    qemu-img compare "${secret[@]}" --image-opts "$(opts $1)" \
             driver=raw,file.filename=$2
}
# qemu-img measures how fast the CPU is, and gives up on a busy machine.
create ()
{
    local i
    for i in {1..20}; do
        if qemu-img create -q "$@"; then return 0; fi
        sleep 0.3
    done
    return 1
}
model ()
{
    nbdkit -U - qcow2 $1 passphrase=abc --run "$PYTHON \
        $abs_top_srcdir/tests/model.py --uri \"\$uri\" --shadow $2 \
        --ops $((MODEL_OPS / 3)) --unit 512"
}

for more in "" \
            ,encrypt.cipher-alg=aes-128,encrypt.hash-alg=sha512 \
            ,encrypt.cipher-mode=cbc,encrypt.ivgen-alg=essiv,encrypt.ivgen-hash-alg=sha256 \
            ,cluster_size=4k; do
    rm -f t.qcow2 shadow
    : > shadow
    truncate -s 5M shadow
    create "${secret[@]}" -f qcow2 -o $luks$more t.qcow2 5M
    model t.qcow2 shadow
    check t.qcow2 shadow

    # qemu changes it, we verify.
    qemu-io "${secret[@]}" --image-opts "$(opts t.qcow2)" \
            -c 'write -P 7 1234 70000'
    qemu-io -f raw -c 'write -P 7 1234 70000' shadow
    nbdkit -r -U - qcow2 t.qcow2 passphrase=abc --run 'nbdcopy "$uri" -' |
        cmp - shadow
done

# Passphrases from elsewhere, wrong ones, none.
echo abc > pw
nbdkit -r -U - qcow2 t.qcow2 passphrase=+pw --run 'nbdcopy "$uri" -' |
    cmp - shadow
nbdkit -r -U - qcow2 t.qcow2 passphrase=-5 --run 'nbdcopy "$uri" -' 5<pw |
    cmp - shadow
expect_fail nbdkit -U - qcow2 t.qcow2 passphrase=abd --run 'exit 3'
expect_message 'passphrase'
expect_fail nbdkit -U - qcow2 t.qcow2 --run 'exit 3'
expect_message 'passphrase='

# Nothing of the data is in the file in clear.
nbdkit -U - qcow2 t.qcow2 passphrase=abc --run 'nbdsh -u "$uri" -c "
h.pwrite (b\"find me \" * 8192, 0)"'
if grep -q 'find me find me' t.qcow2; then exit 1; fi

# An overlay over it, encrypted too, and a snapshot.
create "${secret[@]}" -f qcow2 -o $luks base.qcow2 1M
cp shadow base.raw
truncate -s 1M base.raw
nbdkit -U - qcow2 base.qcow2 passphrase=abc --run 'nbdcopy base.raw "$uri"'
create "${secret[@]}" -f qcow2 -u -b base.qcow2 -F qcow2 \
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

# Legacy AES.
if qemu-img create -q "${secret[@]}" -f qcow2 \
       -o encrypt.format=aes,encrypt.key-secret=s aes.qcow2 1M; then
    qemu-io "${secret[@]}" --image-opts "$(opts aes.qcow2)" \
            -c 'write -P 9 1000 300000'
    : > shadow
    truncate -s 1M shadow
    qemu-io -f raw -c 'write -P 9 1000 300000' shadow
    nbdkit -r -U - qcow2 aes.qcow2 passphrase=abc --run 'nbdcopy "$uri" -' |
        cmp - shadow
    expect_fail nbdkit -U - qcow2 aes.qcow2 passphrase=abc --run 'exit 3'
    expect_message 'read-only'
fi
