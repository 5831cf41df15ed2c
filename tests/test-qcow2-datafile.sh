#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# External data files: made by qemu-img and by us, read, written, missing,
# denied; a raw one is readable as such.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh
source "$abs_top_srcdir/tests/model-functions.sh"

for raw in off on; do
    for by in qemu us; do
        rm -f t.qcow2 data shadow
        : > shadow
        truncate -s 5M shadow
        if [ $by = qemu ]; then
            qemu-img create -q -f qcow2 -o data_file=data,data_file_raw=$raw \
                t.qcow2 5M
        else
            nbdkit -U - qcow2 t.qcow2 create=true size=5M data-file=data \
                data-file-raw=$raw --run true
        fi
        model_run 20 65536
        if [ $raw = on ]; then cmp data shadow; fi
        qemu-io -f qcow2 -c 'write -P 3 1000 100000' t.qcow2
        qemu-io -f raw -c 'write -P 3 1000 100000' shadow
        nbdkit -r -U - qcow2 t.qcow2 --run 'nbdcopy "$uri" -' | cmp - shadow
    done
done

expect_fail nbdkit -U - qcow2 t.qcow2 external=deny --run 'exit 3'
expect_message 'external=deny'
mv data moved
expect_fail nbdkit -U - qcow2 t.qcow2 --run 'exit 3'
expect_message 'data'
nbdkit -r -U - qcow2 t.qcow2 data-file=moved --run 'nbdcopy "$uri" -' |
    cmp - shadow
expect_fail nbdkit -U - qcow2 t.qcow2 data-file=t.qcow2 --run 'exit 3'
ln t.qcow2 data
expect_fail nbdkit -r -U - qcow2 t.qcow2 --run 'exit 3'
