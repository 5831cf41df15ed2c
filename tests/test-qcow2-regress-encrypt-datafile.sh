#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Encrypted guest data in an external data file: a trim leaves what was
# there or zeroes, never what a hole of the file decrypts to; nor is a hole
# made while the stable entry still points there.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_lib gnutls
requires_qemu_io
requires_nbdsh
cd "$tmpdir"

secret="secret,id=s,data=pw"
opts="driver=qcow2,file.filename=e.qcow2,encrypt.key-secret=s"
for raw in off on; do
    rm -f e.qcow2 e.data
    qemu_create_luks --object $secret \
        -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 \
        -o data_file=e.data,data_file_raw=$raw e.qcow2 1M
    nbdkit -U - qcow2 e.qcow2 passphrase=pw --run 'nbdsh -u "$uri" -c "
S = 65536
h.pwrite (b\"x\" * (4 * S), 0)
h.flush ()
h.trim (S, S)
assert h.pread (S, S) in (bytes (S), b\"x\" * S)
before = open (\"e.data\", \"rb\").read ()
h.trim (S, S)
assert open (\"e.data\", \"rb\").read () == before
h.zero (S, 2 * S)
assert h.pread (S, 2 * S) == bytes (S)
h.pwrite (b\"y\" * 512, S + 512)
got = h.pread (S, S)
assert got[512:1024] == b\"y\" * 512
assert set (got[1024:]) < {0, 120}
"'
    for c in 'read -P 120 0 64k' 'read -P 121 66048 512' \
             'read -P 0 128k 64k'; do
        qemu-io --object $secret --image-opts $opts -c "$c" | tee out
        if grep -i failed out; then exit 1; fi
    done
done
