#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Images and backing files on an NBD server.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_lib libnbd
requires_nbdsh
source "$abs_top_srcdir/tests/model-functions.sh"

# The image itself is on a server: a file that is large enough.
qemu-img create -q -f qcow2 t.qcow2 20M
cp t.qcow2 disk
truncate -s 40M disk
: > shadow
truncate -s 20M shadow
start_nbdkit -P pid -U "$sock" file disk
nbdkit -U - qcow2 uri="nbd+unix:///?socket=$sock" --run "$PYTHON \
    $abs_top_srcdir/tests/model.py --uri \"\$uri\" --shadow shadow \
    --ops $((MODEL_OPS / 2))"
stop_nbdkit pid
rm -f "$sock"
qemu-img check -f qcow2 disk
qemu-img compare -f qcow2 -F raw disk shadow

# A golden image there, overlays here: raw and qcow2, plain and json: names.
make_data golden 3M
qemu-img convert -f raw -O qcow2 golden golden.qcow2
start_nbdkit -P pid -U "$sock" -e raw -r file dir="$tmpdir"
for format in raw qcow2; do
    file=golden
    if [ $format = qcow2 ]; then file=golden.qcow2; fi
    for name in "nbd+unix:///$file?socket=$sock" \
                "nbd:unix:$sock:exportname=$file" \
                "json:{\"driver\":\"$format\",\"file\":{\"driver\":\"nbd\",\"server\":{\"type\":\"unix\",\"path\":\"$sock\"},\"export\":\"$file\"}}"; do
        rm -f t.qcow2
        nbdkit -U - qcow2 t.qcow2 create=true backing-file="$name" \
            backing-format=$format --run true
        cp golden shadow
        MODEL_COMPARE=no model_run 3 65536
        nbdkit -r -U - qcow2 t.qcow2 --run 'nbdcopy "$uri" -' | cmp - shadow
        qemu-img compare -f qcow2 -F raw t.qcow2 shadow
    done
done
stop_nbdkit pid

# The server is not there.
expect_fail timeout 60 nbdkit -U - qcow2 t.qcow2 --run true
expect_message 'golden'
