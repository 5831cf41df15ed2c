#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Clients that die in the middle of a request, that open twice (INFO, then
# GO), that send garbage, that close one half: the server goes on, also for
# another client under load, and the image is clean.  With the plugin alone,
# and with all filters.
#
# nbdkit 1.32 itself can end with an assertion in its connections.c when a
# client goes away while its answers are being sent, whatever the plugin.
# Where that happens the round says nothing about us, and another kind of
# client must do.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_filter preallocate
requires_filter compress
requires_filter cowmerge
requires_qemu_img
requires_nbdsh
cd "$tmpdir"

# A client that behaves: it keeps the upper half busy until the file "stop"
# is there, and sees no error and no byte of another client.
cat > load.py <<'EOF'
import os, random
r = random.Random (1)
half = 32 << 20
shadow = bytearray (4 << 20)
rounds = 0
while rounds < 20 or not os.path.exists ("stop"):
    off = r.randrange (len (shadow) - 70000)
    data = r.randbytes (50) * r.randrange (1, 1400)
    h.pwrite (data, half + off)
    shadow[off:off+len (data)] = data
    off = r.randrange (len (shadow) - 70000)
    assert h.pread (70000, half + off) == shadow[off:off+70000]
    if r.randrange (20) == 0:
        h.flush ()
    rounds += 1
assert h.pread (len (shadow), half) == shadow
EOF

# round KIND ARGS...
round ()
{
    local kind="$1" server load
    shift

    rm -f "$sock" pid stop
    qemu-img create -q -f qcow2 t.qcow2 64M
    nbdkit -f -P pid -U "$sock" "$@" qcow2 t.qcow2 2>err &
    server=$!
    for i in {1..600}; do
        if [ -s pid ]; then break; fi
        sleep 0.1
    done
    nbdsh -u "nbd+unix:///?socket=$sock" \
          -c 'exec (open ("load.py").read ())' 2>load.err &
    load=$!
    for i in 1 2 3; do
        "$PYTHON" "$abs_top_srcdir/tests/bad-client.py" "$sock" "$kind" || :
    done
    touch stop
    if wait $load; then
        kill $server
        wait $server
        check_image t.qcow2
        survived=$((survived + 1))
    else
        cat err load.err
        wait $server || :
        grep 'connections.c.*raw_send_socket: Assertion' err
        echo "a client of kind $kind ends this version of nbdkit"
        # Leaks are what an end like this costs.
        qemu-img check -f qcow2 t.qcow2 || test $? -eq 3
    fi
}

for filters in "" "--filter=cowmerge --filter=compress --filter=preallocate"
do
    survived=0
    for kind in 0 1 2 3 4 5 6 7 8 9; do
        round $kind $filters
    done
    test $survived -ge 6
done
