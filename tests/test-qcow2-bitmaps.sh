#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Persistent bitmaps that qemu-img made: our writes are in them, they are in
# use while we write and after a crash, and bitmaps that do not track are
# left alone.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires jq --version
cd "$tmpdir"

# dirty NAME: the dirty extents, "start length" a line, as qemu sees them.
dirty ()
{
    rm -f nbd.sock
    qemu-nbd -r -t -f qcow2 -B "$1" -k "$PWD/nbd.sock" t.qcow2 &
    local pid=$! i
    for i in {1..100}; do
        if [ -S nbd.sock ]; then break; fi
        sleep 0.1
    done
    nbdinfo --map="qemu:dirty-bitmap:$1" --json \
            "nbd+unix:///?socket=$PWD/nbd.sock" |
        jq -r '.[] | select(.type == 1) | "\(.offset) \(.length)"'
    kill $pid
    wait $pid || :
}

flags ()
{
    qemu-img info -U --output=json t.qcow2 |
        jq -c '[."format-specific".data.bitmaps[] | [.name, (.flags | sort)]] | sort'
}

for options in cluster_size=64k cluster_size=512 cluster_size=2M,extended_l2=on; do
    rm -f t.qcow2
    qemu-img create -q -f qcow2 -o $options t.qcow2 100M
    qemu-img bitmap --add -g 64k t.qcow2 coarse
    qemu-img bitmap --add -g 512 t.qcow2 fine
    qemu-img bitmap --add -g 64k --disable t.qcow2 off

    # Only reading changes nothing.
    before="$(md5sum < t.qcow2)"
    nbdkit -U - qcow2 t.qcow2 --run 'nbdcopy "$uri" null:'
    test "$before" = "$(md5sum < t.qcow2)"

    nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
h.pwrite(b\"x\" * 1000, 100000)
h.zero(65536, 10 << 20)
h.pwrite(b\"y\" * 512, (100 << 20) - 512)
h.trim(1 << 20, 50 << 20)
"'
    check_image t.qcow2
    test "$(flags)" = '[["coarse",["auto"]],["fine",["auto"]],["off",[]]]'
    dirty coarse > out
    diff out - <<EOT
65536 65536
10485760 65536
52428800 1048576
104792064 65536
EOT
    dirty fine > out
    diff out - <<EOT
99840 1536
10485760 65536
52428800 1048576
104857088 512
EOT
    test -z "$(dirty off)"

    # A second session adds to what is there; qemu adds as well.
    nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "h.pwrite(b\"x\" * 512, 0)"'
    qemu-io -f qcow2 -c "write 512 512" t.qcow2
    check_image t.qcow2
    test "$(dirty fine | head -n 1)" = "0 1024"

    # A crash: the bitmaps are in use, never valid and stale.
    start_nbdkit -P pid -U "$sock" qcow2 t.qcow2
    nbdsh -u "nbd+unix:///?socket=$sock" -c 'h.pwrite(b"z" * 512, 30 << 20)' \
          -c 'h.flush()'
    kill_nbdkit pid
    rm -f "$sock"
    test "$(flags)" = '[["coarse",["auto","in-use"]],["fine",["auto","in-use"]],["off",[]]]'

    # They stay so.
    nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "h.pwrite(b\"x\" * 512, 0)"'
    test "$(flags)" = '[["coarse",["auto","in-use"]],["fine",["auto","in-use"]],["off",[]]]'
done
