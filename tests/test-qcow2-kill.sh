#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# kill -9 under load: what was flushed is there, the image is clean but for
# leaks.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdsh

qemu-img create -q -f qcow2 t.qcow2 64M
: > flushed
for round in 1 2 3 4 5; do
    start_nbdkit -P pid -U "$sock" qcow2 t.qcow2
    nbdsh -c "
import os, random
h = nbd.NBD ()
h.connect_uri ('nbd+unix:///?socket=$sock')
r = random.Random ($round)
f = open ('flushed', 'a')
try:
    for i in range (100000):
        todo = []
        for j in range (r.randrange (1, 20)):
            block = r.randrange (16384)
            h.pwrite (b'%08d' % ($round * 1000000 + i) * 512, block * 4096)
            todo.append (block)
        f.write ('start %s\n' % ' '.join (map (str, todo)))
        f.flush ()
        h.flush ()
        for block in todo:
            f.write ('%d %d\n' % (block, $round * 1000000 + i))
        f.write ('end\n')
        f.flush ()
except nbd.Error:
    pass
" &
    client=$!
    sleep 0.$((round * 2 + 1))
    kill_nbdkit pid
    wait $client || :
    rm -f "$sock"
    # No errors; leaks are allowed, and repaired.
    r=0
    qemu-img check -f qcow2 t.qcow2 || r=$?
    test $r = 0 || test $r = 3
    nbdkit -U - qcow2 t.qcow2 repair=leaks --run true
    check_image t.qcow2
    nbdkit -r -U - qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
state, unsure, pending = {}, {}, set ()
for line in open (\"flushed\"):
    words = line.split ()
    if words[0] == \"start\":
        for b in words[1:]:
            unsure[int (b)] = True
    elif words[0] == \"end\":
        unsure.clear ()
    elif len (words) == 2:
        state[int (words[0])] = int (words[1])
for block, value in state.items ():
    d = h.pread (4096, block * 4096)
    v = int (d[:8])
    assert d == b\"%08d\" % v * 512, block
    assert v >= value, (block, v, value)
print (len (state), \"blocks verified\")
"'
done
