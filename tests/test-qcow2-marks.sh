#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Images that bear a mark: dirty, corrupt, bitmaps that are broken.  What is
# served read-only is not changed by a byte.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires jq --version
cd "$tmpdir"

build () { "$PYTHON" "$abs_top_srcdir/tests/image-builder.py" t.qcow2 "$@"; }
fresh () { qemu-img convert -f raw -O qcow2 "$@" data.raw t.qcow2; }
make_data data.raw 2M
export write='h.pwrite (b"x" * 512, 1 << 20); h.flush ()'

for mark in dirty corrupt; do
    for options in compat=1.1 lazy_refcounts=on,extended_l2=on \
                   cluster_size=4k,refcount_bits=64; do
        fresh -o $options
        # Refcounts are behind, as after a crash.
        build set 'refcount[9*cluster]=0'
        build set header.incompatible\|=$([ $mark = dirty ] && echo 1 || echo 2)
        sum="$(md5sum < t.qcow2)"
        nbdkit -r -U - qcow2 t.qcow2 --run 'nbdcopy "$uri" -' | cmp - data.raw
        test "$sum" = "$(md5sum < t.qcow2)"
        if [ $mark = corrupt ]; then
            expect_fail nbdkit -U - qcow2 t.qcow2 --run true
            expect_message 'repair=all'
            test "$sum" = "$(md5sum < t.qcow2)"
            repair=repair=all
        else
            repair=
        fi
        nbdkit -U - qcow2 t.qcow2 $repair --run 'nbdsh -u "$uri" -c "$write"'
        test "$(( $(build get header.incompatible) & 3 ))" = 0
        check_image t.qcow2
        cp data.raw shadow
        qemu-io -f raw -c 'write -P 120 1M 512' shadow
        nbdkit -r -U - qcow2 t.qcow2 --run 'nbdcopy "$uri" -' | cmp - shadow
    done
done

# As long as a server of ours has written with lazy refcounts, the image is
# marked dirty; qemu repairs it as well.
qemu-img create -q -f qcow2 -o lazy_refcounts=on t.qcow2 2M
start_nbdkit -P pid -U "$sock" qcow2 t.qcow2
nbdsh -u "$uri" -c "$write"
kill_nbdkit pid
test "$(( $(build get header.incompatible) & 1 ))" = 1
qemu-img check -r all t.qcow2
qemu-io -f qcow2 -c 'read -P 120 1M 512' t.qcow2
check_image t.qcow2

# Broken bitmaps: kept as they are, never valid and stale.
flags ()
{
    qemu-img info -U --output=json t.qcow2 |
        jq -c '[."format-specific".data.bitmaps[]? | [.name, (.flags | sort)]] | sort'
}
for damage in 'bitmap[0].table[0]=1<<50' 'bitmap[0].table[0]=513' \
              'bitmap[0].table_offset=1<<50' 'bitmap[0].flags=3' \
              'bitmap[0].table_size+=1' 'bitmap[0].type=7'; do
    fresh
    qemu-img bitmap --add -g 64k t.qcow2 b
    qemu-img bitmap --add -g 512 t.qcow2 good
    qemu-io -f qcow2 -c 'write 0 64k' t.qcow2
    build set "$damage"
    nbdkit -r -U - qcow2 t.qcow2 --run 'nbdcopy "$uri" null:'
    if nbdkit -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "$write"'; then
        # qemu must not find it valid, without the change.
        if [ "$(( $(build get header.autoclear) & 1 ))" = 1 ]; then
            flags > out || :
            if grep '"b",\["auto"\]' out; then exit 1; fi
        fi
    fi
done

# On a terminal the check of a large image says how far it is, and then
# leaves the line to the summary.
qemu-img create -q -f qcow2 -o cluster_size=512,preallocation=metadata \
         t.qcow2 100M
"$PYTHON" - > out <<'EOT'
import os, pty
pid, fd = pty.fork ()
if pid == 0:
    os.execlp ("nbdkit", "nbdkit", "qcow2", "t.qcow2", "check=true")
try:
    while True:
        out = os.read (fd, 1000)
        if not out:
            break
        print (out.decode (), end="")
except OSError:                 # the other end is closed
    pass
assert os.waitpid (pid, 0)[1] == 0
EOT
tr '\r' '\n' < out > lines
grep '^checked  50 %$' lines
test "$(grep -c '^checked' lines)" -le 101
grep '^clean: 0 errors' lines
