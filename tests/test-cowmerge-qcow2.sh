#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Real overlays of all kinds: the model test, then qemu's opinion.

source ./functions.sh
set -e
set -x

requires_qemu_img
requires_lib libnbd
requires test -x ./cowmerge-model

make_data "$tmpdir/base.raw" 12M
img="$tmpdir/overlay.qcow2"

run ()
{
    local cluster="$1" size="$2" options="$3"
    shift 3
    rm -f "$img" "$sock"
    qemu-img create -q -f qcow2 -o cluster_size="$cluster$options" \
             "$img" "$size"
    start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge \
                 qcow2 "$img" discard=true cowmerge-max=2M "$@"
    ./cowmerge-model "$uri" "${SEED:-0}" 4 "$cluster" trim
    stop_nbdkit "$tmpdir/pid"
    check_image "$img"
}

backing=",backing_file=$tmpdir/base.raw,backing_fmt=raw"
run 65536 16M "$backing"
run 65536 16M ""
run 65536 16M "$backing,extended_l2=on"
run 262144 32M "$backing"
run 4096 7999488 "$backing"
run 512 3000320 "$backing,compat=0.10"
requires_filter log
run 65536 16M "$backing" --filter=log logfile="$tmpdir/log"
