#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Clusters of a compressed image are written again: as a whole, in part,
# through cowmerge, and by qemu-io.  Space is used again.

source ./functions.sh
set -e
set -x

requires_nbdcopy
requires_nbdsh
requires_qemu_img
requires_qemu_io

make_text ()
{
    "$PYTHON" - "$1" "$2" <<'EOT'
import random, sys
r = random.Random(int(sys.argv[2]))
words = [r.randbytes(r.randrange(2, 9)).hex().encode() for i in range(3000)]
with open(sys.argv[1], "wb") as f:
    out = b""
    while len(out) < 24 << 20:
        out += b" ".join(r.choices(words, k=20000))
    f.write(out[:24 << 20])
EOT
}
make_text "$tmpdir/1.raw" 1
make_text "$tmpdir/2.raw" 2

for type in zlib zstd; do
    img="$tmpdir/$type.qcow2"
    for n in 1 2 1 2 1; do
        create=()
        if [ ! -f "$img" ]; then
            create=( create=true size=24M compression-type=$type )
        fi
        nbdkit -f -U - --filter=compress qcow2 "$img" "${create[@]}" \
               --run 'nbdcopy "'"$tmpdir/$n.raw"'" "$uri"'
        qemu-img compare "$tmpdir/$n.raw" "$img"
        check_image "$img"
        stat -c %s "$img" >> "$tmpdir/$type.sizes"
    done
    cat "$tmpdir/$type.sizes"

    # There are never more than two copies of the data, and the space of old
    # ones is packed as densely as new space.
    first="$(head -1 "$tmpdir/$type.sizes")"
    test "$(sort -n "$tmpdir/$type.sizes" | tail -1)" -le $(( first * 9 / 4 ))

    # Small random writes, merged to whole clusters.
    cp "$tmpdir/1.raw" "$tmpdir/shadow.raw"
    nbdkit -f -U - --filter=cowmerge --filter=compress qcow2 "$img" \
           --run '"'"$PYTHON"'" "'"$abs_top_srcdir"'/tests/preallocate-hammer.py" \
                  --uri "$uri" --no-start-check --max 30000 --rounds 2 \
                  --requests 1500 --final "'"$tmpdir/shadow.raw"'"'
    qemu-img compare "$tmpdir/shadow.raw" "$img"
    check_image "$img"

    # And by others.
    qemu-io -f qcow2 -c 'write -P 7 100k 200k' -c 'discard 1M 64k' \
            -c 'write -c -P 8 1M 64k' "$img"
    qemu-io -f raw -c 'write -P 7 100k 200k' -c 'write -P 8 1M 64k' \
            "$tmpdir/shadow.raw"
    nbdkit -f -U - --filter=compress qcow2 "$img" \
           --run 'nbdcopy "$uri" "'"$tmpdir/back.raw"'"'
    cmp "$tmpdir/shadow.raw" "$tmpdir/back.raw"
    rm -f "$tmpdir/back.raw"
    check_image "$img"
done
