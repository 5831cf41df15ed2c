#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Requests from several connections around and beyond the frontier, byte
# for byte against a shadow: over file, memory and qcow2.  Steps are small,
# so that there are many.

source ./functions.sh
set -e
set -x

requires_plugin file
requires_plugin memory
requires_filter delay
requires_nbdsh
requires_qemu_img

hammer="$PYTHON $abs_top_srcdir/tests/preallocate-hammer.py"
small="prealloc-size=1M prealloc-align=64k"

truncate -s 256M "$tmpdir/a.raw"
nbdkit -f -U - --filter=preallocate file "$tmpdir/a.raw" $small \
       --run "$hammer"' --uri "$uri" --rounds 2'

# The file plugin ignores export names: it is one disk by three names.
# Writes that take their time are still in flight when others begin.
truncate -s 0 "$tmpdir/a.raw"
truncate -s 128M "$tmpdir/a.raw"
nbdkit -f -U - --filter=preallocate --filter=delay \
       file "$tmpdir/a.raw" $small delay-write=2ms \
       --run "$hammer"' --uri "$uri" --rounds 2 --requests 1500 --exports=,a,b'

nbdkit -f -U - --filter=preallocate memory 128M $small \
       --run "$hammer"' --uri "$uri" --rounds 2'

for c in 4k 64k; do
    img="$tmpdir/$c.qcow2"
    nbdkit -f -U - --filter=preallocate \
           qcow2 "$img" create=true size=96M cluster-size=$c $small \
           --run "$hammer"' --uri "$uri" --rounds 2 --final '"$tmpdir/a.raw"
    qemu-img compare "$tmpdir/a.raw" "$img"
    check_image "$img"
done
