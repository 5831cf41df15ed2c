#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Random operations on images with persistent bitmaps: they have a bit for
# each sector that changed, after each session of ours and of qemu's.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires jq --version
source "$abs_top_srcdir/tests/model-functions.sh"
cd "$tmpdir"

# Everything that differs between shadow.0 and shadow is in the bitmap $1, as
# qemu sees it.
covered ()
{
    local i

    rm -f nbd.sock
    qemu-nbd -r -t -f qcow2 -B "$1" -k "$PWD/nbd.sock" t.qcow2 &
    local pid=$!
    for i in {1..100}; do
        if [ -S nbd.sock ]; then break; fi
        sleep 0.1
    done
    nbdinfo --map="qemu:dirty-bitmap:$1" --json \
            "nbd+unix:///?socket=$PWD/nbd.sock" > map.json
    kill $pid
    wait $pid || :
    "$PYTHON" - "$1" <<'EOT'
import json, sys
old, new = (open(n, "rb").read() for n in ("shadow.0", "shadow"))
dirty = bytearray(len(new) // 512 + 1)
for e in json.load(open("map.json")):
    if e["type"] & 1:
        first, n = e["offset"] // 512, (e["length"] + 511) // 512
        dirty[first:first + n] = b"\1" * n
bad = [i for i in range(len(new) // 512)
       if old[i * 512:i * 512 + 512] != new[i * 512:i * 512 + 512]
       and not dirty[i]]
print("%s: %d dirty sectors" % (sys.argv[1], sum(dirty)))
sys.exit("not in the bitmap: sectors %s" % bad[:10] if bad else 0)
EOT
}
flags ()
{
    qemu-img info --output=json t.qcow2 |
        jq -c '[."format-specific".data.bitmaps[] | [.name, (.flags | sort)]] | sort'
}

seed=1
for options in cluster_size=64k cluster_size=4k,refcount_bits=8 \
               extended_l2=on,lazy_refcounts=on data_file=data; do
    rm -f data
    model_image 6M 0 -o $options
    model_qemu_changes $((seed++)) -f qcow2 t.qcow2
    cp shadow shadow.0
    qemu-img bitmap --add -g 512 t.qcow2 fine
    qemu-img bitmap --add -g 64k t.qcow2 coarse
    qemu-img snapshot -c snap t.qcow2 || [ $options = data_file=data ]
    for i in 1 2; do
        model_run $((seed++)) 65536
        test "$(flags)" = '[["coarse",["auto"]],["fine",["auto"]]]'
        covered fine
        covered coarse
        model_qemu_changes $((seed++)) -f qcow2 t.qcow2
        model_verify t.qcow2
        covered fine
    done

    # The disk grows and shrinks, with its bitmaps.
    if [ $options != data_file=data ]; then
        qemu-img snapshot -d snap t.qcow2
    fi
    for resize in "resize=8M" "resize=5M shrink=true"; do
        nbdkit -U - qcow2 t.qcow2 $resize --run true
        check_image t.qcow2
        test "$(flags)" = '[["coarse",["auto"]],["fine",["auto"]]]'
    done
    truncate -s 5M shadow shadow.0
    covered fine
    model_run $((seed++)) 65536
    covered fine
    covered coarse
done
