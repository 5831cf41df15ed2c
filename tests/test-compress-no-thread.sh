#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# One of the first threads cannot be created: the server of compress or
# cowmerge does not start, or does without it, and nothing is lost.  (Later
# ones are nbdkit's own, for the connection.)

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
skip_if_valgrind "it preloads a replacement of pthread_create"
if [ "$sanitizers" != "no" ]; then
    skip "sanitizers have their own pthread_create, and threads"
fi
cd "$tmpdir"

export code='
h.pwrite (b"x" * 655360, 100)
h.flush ()
assert h.pread (655360, 100) == b"x" * 655360
'
shim="$abs_top_builddir/tests/.libs/no-thread.so"
served=0
for filters in --filter=compress "--filter=cowmerge --filter=compress"; do
    for n in 0 1 2 3 4 5; do
        rm -f t.qcow2
        qemu-img create -q -f qcow2 t.qcow2 10M
        rm -f pid s
        LD_PRELOAD="$shim" NO_THREAD=$n timeout 60 nbdkit -f -P pid -U s \
            $filters qcow2 t.qcow2 compress-threads=4 &
        for i in {1..100}; do
            if [ -s pid ] || ! kill -0 $! 2>/dev/null; then break; fi
            sleep 0.1
        done
        # A thread of nbdkit's own: the connection fails, or is slower.
        if [ -s pid ] && timeout 20 nbdsh -u "nbd+unix:///?socket=s" \
               -c "$code"; then
            served=$(( served + 1 ))
        fi
        r=0
        kill $! || :
        wait $! || r=$?
        if [ $r -ge 2 ]; then exit 1; fi
        check_image t.qcow2
    done
done
# Those that only nbdkit, or nobody, misses.
echo "$served of 12 served"
test $served -ge 2
