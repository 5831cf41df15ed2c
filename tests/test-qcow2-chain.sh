#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Backing chains: deep ones, relative names, raw and json: forms, layers of
# different lengths; loops and missing files are refused in words.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires type -P nbdcopy

same ()
{
    nbdkit -r -U - qcow2 "$1" "${@:3}" --run 'nbdcopy "$uri" -' | cmp - "$2"
}

# A chain of 30, in two directories; each layer has something of its own.
mkdir a b
make_data a/base.raw 3M
cp a/base.raw shadow
qemu-img create -q -f qcow2 -b base.raw -F raw a/0.qcow2
prev=a/0.qcow2
for i in {1..30}; do
    d=b; if [ $((i % 2)) = 0 ]; then d=a; fi
    qemu-img create -q -f qcow2 -b ../$prev -F qcow2 $d/$i.qcow2
    qemu-io -f qcow2 -c "write -P $i $((i * 70000)) 5000" $d/$i.qcow2
    qemu-io -f raw -c "write -P $i $((i * 70000)) 5000" shadow
    prev=$d/$i.qcow2
done
same a/30.qcow2 shadow
(cd / && same "$tmpdir/a/30.qcow2" "$tmpdir/shadow")

# The middle layer is shorter than both its neighbours: what is beyond its
# end is zero, even though the lowest layer has data there.
make_data low.raw 4M 2
qemu-img create -q -f qcow2 -b low.raw -F raw middle.qcow2 1000448
qemu-img create -q -f qcow2 -b middle.qcow2 -F qcow2 top.qcow2 4M
qemu-img convert -O raw top.qcow2 want
same top.qcow2 want
test "$(tail -c +1000449 want | tr -d '\0' | wc -c)" = 0

# A raw backing file whose length is no multiple of anything.
make_data odd.raw 100001 3
qemu-img create -q -f qcow2 -b odd.raw -F raw odd.qcow2 200k
{ cat odd.raw; head -c 104799 /dev/zero; } > want
same odd.qcow2 want

# file: and json: forms of a plain file.
for name in 'file:odd.raw' \
            "json:{\"driver\":\"raw\",\"file\":{\"driver\":\"file\",\"filename\":\"$tmpdir/odd.raw\"}}" \
            "json:{\"driver\":\"raw\",\"file.filename\":\"$tmpdir/odd.raw\"}"; do
    qemu-img create -q -u -f qcow2 -b "$name" -F raw form.qcow2 200k
    same form.qcow2 want
done

# The format is never guessed.
qemu-img create -q -u -f qcow2 -b odd.raw -F raw guess.qcow2 200k
qemu-img rebase -u -b odd.raw -F raw guess.qcow2
"$PYTHON" "$abs_top_srcdir/tests/image-builder.py" guess.qcow2 \
    set "ext[backing_format].type=0x12345678"
expect_fail nbdkit -U - qcow2 guess.qcow2 --run 'exit 3'
expect_message 'backing-format='
same guess.qcow2 want backing-format=raw

# A loop.
qemu-img create -q -u -f qcow2 -b two.qcow2 -F qcow2 one.qcow2 1M
qemu-img create -q -u -f qcow2 -b three.qcow2 -F qcow2 two.qcow2 1M
qemu-img create -q -u -f qcow2 -b ./one.qcow2 -F qcow2 three.qcow2 1M
expect_fail timeout 20 nbdkit -U - qcow2 one.qcow2 --run 'exit 3'
expect_message 'loop'
qemu-img create -q -f qcow2 self.qcow2 1M
qemu-img rebase -u -b self.qcow2 -F qcow2 self.qcow2
expect_fail timeout 20 nbdkit -U - qcow2 self.qcow2 --run 'exit 3'
expect_message 'loop'

# A missing file: the whole chain is named.
rm a/14.qcow2
expect_fail nbdkit -U - qcow2 a/30.qcow2 --run 'exit 3'
expect_message '30.qcow2.*15.qcow2.*14.qcow2'

# A FIFO as backing file must not hang.
mkfifo fifo
qemu-img create -q -u -f qcow2 -b fifo -F raw onfifo.qcow2 1M
expect_fail timeout 20 nbdkit -U - qcow2 onfifo.qcow2 --run 'exit 3'
expect_message 'fifo'

# external=deny
expect_fail nbdkit -U - qcow2 odd.qcow2 external=deny --run 'exit 3'
expect_message 'external=deny'
