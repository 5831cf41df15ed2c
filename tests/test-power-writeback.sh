#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# A disk that loses writes behind the host's back: a loop device over a file
# on a small tmpfs takes them into its page cache, and they fail there when the
# tmpfs is full.  What was acknowledged by a flush, or as FUA, on any
# connection, is in the file.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_filter compress
requires_filter cowmerge
requires_qemu_img
requires_nbdsh
requires losetup --version
requires_root
cd "$tmpdir"

cat > load.py <<'EOF'
import hashlib, json, os, threading

BLOCK = 65536
NR_BLOCKS = 512                 # twice what fits
clients, mode = int(os.environ["CLIENTS"]), os.environ["MODE"]
lock = threading.Lock()
acked, promised = set(), set()
nr_failed = 0

def data(block):
    return hashlib.shake_128(b"%d" % block).digest(BLOCK)

def stable(c, block, fua):
    with lock:
        before = set(acked)
    if fua:
        c.pwrite(data(block), block * BLOCK, nbd.CMD_FLAG_FUA)
        before = { block }
    else:
        c.flush()
    with lock:
        promised.update(before)

def client(nr):
    global nr_failed
    c = nbd.NBD()
    c.connect_uri(os.environ["uri"])
    failed = 0
    for n, block in enumerate(range(nr, NR_BLOCKS, clients)):
        try:
            fua = mode == "fua" or (mode == "mix" and n % 3 == 0)
            if not fua:
                c.pwrite(data(block), block * BLOCK)
                with lock:
                    acked.add(block)
            if fua or n % 2 == 0:
                stable(c, block, fua)
        except nbd.Error:
            failed += 1
        if failed == 5:
            break
    with lock:
        nr_failed += failed

threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
for t in threads: t.start()
for t in threads: t.join()
assert nr_failed > 0, "nothing was lost"
assert len(promised) > 50, "hardly anything was promised"
json.dump(sorted(promised), open("promised", "w"))
EOF
cat > verify.py <<'EOF'
import hashlib, json
for block in json.load(open("promised")):
    assert h.pread(65536, block * 65536) == \
        hashlib.shake_128(b"%d" % block).digest(65536), block
EOF

mkdir disk
cleanup_fn sh -c "umount -l '$tmpdir/disk' 2>/dev/null || :"

# attach: disk/f becomes $dev.  Linux takes a request of which a part fits for
# done, so requests are as small as can be.
dev=
attach ()
{
    requires_host losetup -f disk/f
    dev=$(losetup -n -O NAME -j "$tmpdir/disk/f")
    max_sectors="/sys/block/${dev#/dev/}/queue/max_sectors_kb"
    old_max_sectors=$(cat "$max_sectors")
    requires_host sh -c "echo 4 > '$max_sectors'"
}

detach ()
{
    if [ -z "$dev" ]; then return; fi
    echo "$old_max_sectors" > "$max_sectors" || :
    losetup -d "$dev"
    dev=
}
cleanup_fn detach

# check_round clients mode nbdkit-args...
check_round ()
{
    requires_host mount -t tmpfs -o size=16M none disk
    truncate -s 32M disk/f
    attach
    qemu-img create -q -f qcow2 "$dev" 32M
    CLIENTS=$1 MODE=$2 nbdkit -U - "${@:3}" qcow2 "$dev" \
        --run 'export uri; nbdsh -c - < load.py'
    detach
    nbdkit -U - -r qcow2 disk/f --run 'nbdsh -u "$uri" -c - < verify.py'
    umount -l disk
}

for clients in 1 4 16; do
    for mode in flush fua mix; do
        check_round $clients $mode
    done
done
check_round 8 mix --filter=cowmerge
check_round 8 mix --filter=compress
