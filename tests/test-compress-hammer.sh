#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Random requests from several connections, byte for byte against a shadow,
# with each filter above and below.

source ./functions.sh
set -e
set -x

requires_nbdsh
requires_qemu_img

# hammer "filters" "parameters" "hammer options"
hammer ()
{
    local _f _filters=()
    for _f in $1; do _filters+=( --filter=$_f ); done
    rm -f "$tmpdir/a.qcow2"
    nbdkit -f -U - "${_filters[@]}" \
           qcow2 "$tmpdir/a.qcow2" create=true size=64M $2 \
           --run '"'"$PYTHON"'" "'"$abs_top_srcdir"'/tests/preallocate-hammer.py" \
                  --uri "$uri" --rounds 2 --final "'"$tmpdir/a.raw"'" '"$3"
    qemu-img compare "$tmpdir/a.raw" "$tmpdir/a.qcow2"
    check_image "$tmpdir/a.qcow2"
}

large="--max 4000000 --requests 250"
hammer compress "compress-threads=3" "$large"
hammer compress "compress-threads=1 compression-type=zstd" "$large"
hammer compress "cluster-size=512" "--max 500000 --requests 300"
hammer compress "cluster-size=2M compression-type=zstd" "$large"
hammer "compress preallocate" "prealloc-size=4M" "$large"
hammer "cowmerge compress preallocate" \
       "compression-type=zstd prealloc-size=4M" "--requests 1500"
