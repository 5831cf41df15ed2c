#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Clients that die in the middle of a request, that open twice (INFO, then
# GO), that send garbage: the server goes on and the image is clean.
#
# nbdkit 1.32 itself can end with an assertion in its connections.c when a
# client goes away while its answers are being sent, whatever the plugin.
# Where that happens the round says nothing about us, and another kind of
# client must do.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
cd "$tmpdir"

qemu-img create -q -f qcow2 t.qcow2 64M
survived=0
for kind in 0 1 2 3 4 5 6; do
    rm -f "$sock" pid
    nbdkit -f -P pid -U "$sock" qcow2 t.qcow2 2>err &
    server=$!
    for i in {1..600}; do
        if [ -s pid ]; then break; fi
        sleep 0.1
    done
    for i in 1 2 3; do
        "$PYTHON" "$abs_top_srcdir/tests/bad-client.py" "$sock" $kind || :
    done
    if nbdsh -u "nbd+unix:///?socket=$sock" \
          -c 'h.pwrite (b"alive" * 100, 0)' \
          -c 'assert h.pread (500, 0) == b"alive" * 100' -c 'h.flush ()'; then
        kill $server
        wait $server
        check_image t.qcow2
        survived=$((survived + 1))
    else
        wait $server || :
        cat err
        grep 'connections.c.*raw_send_socket: Assertion' err
        echo "a client of kind $kind ends this version of nbdkit"
        qemu-img check -f qcow2 t.qcow2
    fi
done
test $survived -ge 4
