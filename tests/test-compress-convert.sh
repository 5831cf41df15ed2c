#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# nbdcopy through the filter makes the image that qemu-img convert -c would
# make: the same data, hardly larger (at the same level not at all), checks
# clean.

source ./functions.sh
set -e
set -x

requires_nbdcopy
requires_qemu_img
requires_qemu_img_option compression_type=zstd

# Text, programs, noise, zeroes, and an odd end.
"$PYTHON" - "$tmpdir/disk.raw" <<'EOT'
import glob, random, sys
r = random.Random(1)
with open(sys.argv[1], "wb") as out:
    for name in sorted(glob.glob("/usr/bin/*"))[:40]:
        try:
            with open(name, "rb") as f:
                out.write(f.read(1 << 20))
        except OSError:
            pass
    out.write(r.randbytes(1 << 20))
    out.write(bytes(3 << 20))
    out.write(b"".join(b"%d %s\n" % (i, b"abc" * r.randrange(20))
                       for i in range(60000)))
    out.write(b"e" * 1536)
    out.truncate((out.tell() + 511) & ~511)
EOT
size="$(stat -c %s "$tmpdir/disk.raw")"

# convert image parameters...
convert ()
{
    rm -f "$1"
    nbdkit -f -U - --filter=compress qcow2 "$1" create=true size=$size \
           "${@:2}" --run 'nbdcopy "'"$tmpdir/disk.raw"'" "$uri"'
    qemu-img compare "$tmpdir/disk.raw" "$1"
    check_image "$1"
}

for type in zlib zstd; do
    for c in 512 4k 64k 2M; do
        convert "$tmpdir/$type-$c.qcow2" compression-type=$type \
                cluster-size=$c compress-threads=3
    done

    qemu-img convert -c -O qcow2 -o compression_type=$type \
             "$tmpdir/disk.raw" "$tmpdir/qemu.qcow2"
    ours="$(stat -c %s "$tmpdir/$type-64k.qcow2")"
    qemu="$(stat -c %s "$tmpdir/qemu.qcow2")"
    test "$ours" -le $(( qemu * 108 / 100 + 196608 ))

    # Every cluster that can be compressed is, as many as with qemu-img.
    for f in "$tmpdir/$type-64k.qcow2" "$tmpdir/qemu.qcow2"; do
        qemu-img check --output=json "$f" |
            sed -n 's/.*"compressed-clusters": \([0-9]*\).*/\1/p'
    done > "$tmpdir/compressed"
    cat "$tmpdir/compressed"
    test "$(head -1 "$tmpdir/compressed")" -ge \
         $(( $(tail -1 "$tmpdir/compressed") * 98 / 100 ))
done

# The large window makes it smaller, about as small as QEMU's, but for the
# granularity of the file's length, and QEMU reads it.
convert "$tmpdir/window.qcow2" compress-window=32k
qemu-img convert -c -O qcow2 "$tmpdir/disk.raw" "$tmpdir/qemu.qcow2"
test "$(stat -c %s "$tmpdir/window.qcow2")" -le \
     $(( $(stat -c %s "$tmpdir/qemu.qcow2") + 196608 ))
test "$(stat -c %s "$tmpdir/window.qcow2")" -lt \
     "$(stat -c %s "$tmpdir/zlib-64k.qcow2")"

# At zlib's level 6, which is what qemu-img uses, it is as small as QEMU's.
convert "$tmpdir/level.qcow2" compress-level=6
test "$(stat -c %s "$tmpdir/level.qcow2")" -le \
     $(( $(stat -c %s "$tmpdir/qemu.qcow2") + 196608 ))

# A higher level makes it smaller, and the lowest works.
convert "$tmpdir/level.qcow2" compress-level=9
test "$(stat -c %s "$tmpdir/level.qcow2")" -le \
     "$(stat -c %s "$tmpdir/zlib-64k.qcow2")"
convert "$tmpdir/level.qcow2" compress-level=1
convert "$tmpdir/level.qcow2" compress-level=19 compression-type=zstd
