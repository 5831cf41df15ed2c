#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Every LUKS cipher, chaining mode, IV and hash that qemu-img can make: images
# that we make, qemu reads and writes, we read; and images that qemu makes, we
# read and write, qemu reads.  qemu-img takes seconds to make one, so of its
# own it makes those marked with +; all with LUKS_ALL=1.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_lib gnutls
requires_lib nettle
requires_nbdsh
cd "$tmpdir"

secret=( --object secret,id=s,data=abc )
opts=driver=qcow2,file.filename=t.qcow2,encrypt.key-secret=s

# The image has a pattern of 3 at 1000+100000, from qemu if $1 is qemu; the
# other side sees it, and changes it; then the first reads that.
exchange ()
{
    local nbd="nbdkit -U - qcow2 t.qcow2 passphrase=abc --run"
    local ours='nbdsh -u "$uri" -c "'
    local theirs=( qemu-io "${secret[@]}" --image-opts $opts )

    if [ "$1" = qemu ]; then
        "${theirs[@]}" -c 'write -P 3 1000 100000' -c 'write -P 4 1047552 1k'
    else
        $nbd "$ours"'h.pwrite (b\"\3\" * 100000, 1000)
h.pwrite (b\"\4\" * 1024, 1047552)"'
    fi
    "${theirs[@]}" -c 'read -P 3 1000 100000' -c 'read -P 4 1047552 1k' \
                   -c 'write -P 5 70000 5000' > out
    if grep -i fail out; then exit 1; fi
    $nbd "$ours"'
assert h.pread (69000, 1000) == b\"\3\" * 69000
assert h.pread (5000, 70000) == b\"\5\" * 5000
assert h.pread (1024, 1047552) == b\"\4\" * 1024
h.pwrite (b\"\6\" * 600, 71000)"'
    "${theirs[@]}" -c 'read -P 5 70000 1000' -c 'read -P 6 71000 600' > out
    if grep -i fail out; then exit 1; fi
    qemu-img check -q "${secret[@]}" --image-opts $opts
}

# [+] cipher mode iv hash iv-hash
while read -r mark cipher mode iv hash ivhash; do
    rm -f t.qcow2
    nbdkit -U - qcow2 t.qcow2 create=true size=1M encrypt=luks passphrase=abc \
           encrypt-cipher-alg=$cipher encrypt-cipher-mode=$mode \
           encrypt-ivgen-alg=$iv encrypt-hash-alg=$hash \
           ${ivhash:+encrypt-ivgen-hash-alg=$ivhash} encrypt-iter-time=10 \
           --run true
    exchange us
    if [ "$mark" != "+" ] && [ -z "$LUKS_ALL" ]; then continue; fi
    rm -f t.qcow2
    o=encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10
    o=$o,encrypt.cipher-alg=$cipher,encrypt.cipher-mode=$mode
    o=$o,encrypt.ivgen-alg=$iv,encrypt.hash-alg=$hash
    qemu_create_luks "${secret[@]}" t.qcow2 1M \
        -o "$o${ivhash:+,encrypt.ivgen-hash-alg=$ivhash}"
    exchange qemu
done <<EOT
- aes-128 ecb plain64 sha256
- aes-128 cbc plain64 sha256
- aes-128 ctr plain64 sha256
- aes-128 xts plain64 sha256
+ aes-192 xts plain64 sha512
+ aes-256 ecb plain64 sha1
- aes-256 cbc plain64 sha256
+ aes-256 ctr plain sha224
- aes-256 xts plain64 sha256
- serpent-128 ecb plain64 sha256
+ serpent-128 cbc essiv ripemd160 md5
- serpent-128 ctr plain64 sha256
- serpent-128 xts plain64 sha256
+ serpent-192 xts plain64 md5
- serpent-256 ecb plain64 sha256
- serpent-256 cbc plain64 sha256
- serpent-256 ctr plain64 sha256
+ serpent-256 xts plain64 sha384
- twofish-128 ecb plain64 sha256
- twofish-128 cbc plain64 sha256
+ twofish-128 ctr plain64 sha256
- twofish-128 xts plain64 sha256
- twofish-192 xts plain64 sha256
- twofish-256 ecb plain64 sha256
+ twofish-256 cbc essiv sha256 sha256
- twofish-256 ctr plain64 sha256
- twofish-256 xts plain64 sha256
- cast5-128 ecb plain64 sha256
+ cast5-128 cbc plain64 ripemd160
- cast5-128 ctr plain64 sha256
- aes-256 xts plain64 md5
- aes-256 xts plain64 sha1
- aes-256 xts plain64 sha224
- aes-256 xts plain64 sha384
- aes-256 xts plain64 sha512
- aes-256 xts plain64 ripemd160
- aes-256 cbc plain sha256
- aes-256 cbc essiv sha256 sha256
- aes-256 cbc essiv sha1 md5
- aes-128 cbc essiv sha1 sha256
- serpent-256 cbc essiv sha256 sha256
- twofish-192 xts plain sha256
EOT

# Refused, by name; nothing is left behind.
while IFS='|' read -r options message; do
    expect_fail nbdkit -U - qcow2 new.qcow2 create=true size=1M $options \
                --run true
    expect_message "$message"
    test ! -e new.qcow2
done <<EOT
encrypt=luks|passphrase=
encrypt=aes passphrase=abc|encrypt=aes
encrypt-hash-alg=md5|encrypt=luks
encrypt=luks passphrase=abc encrypt-cipher-alg=des|des
encrypt=luks passphrase=abc encrypt-cipher-mode=ofb|ofb
encrypt=luks passphrase=abc encrypt-ivgen-alg=random|random
encrypt=luks passphrase=abc encrypt-cipher-mode=cbc encrypt-ivgen-alg=essiv encrypt-ivgen-hash-alg=sha1|essiv:sha1
encrypt=luks passphrase=abc encrypt-hash-alg=crc32|crc32
encrypt=luks passphrase=abc encrypt-cipher-alg=cast5-128|cast5-xts
encrypt=luks passphrase=abc encrypt-cipher-alg=aes-192 encrypt-cipher-mode=cbc|QEMU
EOT
