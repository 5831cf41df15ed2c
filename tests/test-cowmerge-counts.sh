#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# How many operations of which kind reach the plugin.

source ./functions.sh
set -e
set -x

requires_nbdsh

export sock
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge \
             .libs/cowmerge-test-plugin.so size=32M cowmerge-delay=100000

nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
      -c - <<'EOT'
import random
h = connect()
h2 = connect()
data = random.Random(1).randbytes(CLUSTER)

def small_writes(base, order):
    for i, off in enumerate(order):
        (h if i % 2 else h2).pwrite(data[off : off + 4*K], base + off)

# Sequential, backwards, shuffled, from two connections: one write for a
# cluster, and nothing is read or copied.
steps = list(range(0, CLUSTER, 4*K))
for base, order in ((0, steps), (CLUSTER, steps[::-1]),
                    (2*CLUSTER, random.Random(2).sample(steps, len(steps)))):
    with Counted(writes=1, whole=1):
        small_writes(base, order)
    assert h.pread(CLUSTER, base) == data

# Pieces that cross cluster borders and are odd.
with Counted(writes=4, whole=4):
    for off in range(4*CLUSTER, 8*CLUSTER, 5003):
        h.pwrite(b"x" * min(5003, 8*CLUSTER - off), off)

# Overwriting them passes through, even in small parts.
with Counted(writes=16):
    small_writes(0, steps)

# One small write alone: one read, over the gap, and one write.
with Counted(reads=1, writes=1, whole=1):
    h.pwrite(data[:4*K], 10*CLUSTER + 8*K)
    h.flush()
# Two: with gaps up to cowmerge-read-gap one read, else one more.
with Counted(reads=1, writes=1, whole=1):
    h.pwrite(data[:16*K], 11*CLUSTER + 4*K)
    h.pwrite(data[:16*K], 11*CLUSTER + 24*K)
    h.flush()
with Counted(reads=2, writes=1, whole=1):
    h.pwrite(data[:17*K], 12*CLUSTER + 4*K)
    h.flush()
# At the start or the end of the cluster: what is missing, no more.
before = counts()["read_bytes"]
with Counted(reads=2, writes=2, whole=2):
    h.pwrite(data[:4*K], 13*CLUSTER)
    h.pwrite(data[:32*K], 14*CLUSTER + 32*K)
    h.flush()
assert counts()["read_bytes"] - before == 60*K + 32*K

# Whole clusters in the middle of a write pass as one request.
with Counted(writes=1, whole=1):
    h.pwrite(data * 3, 20*CLUSTER)
with Counted(writes=1, whole=1):
    h.pwrite(data[:4*K] + data * 3 + data[:4*K], 24*CLUSTER - 4*K)
with Counted(reads=2, writes=2, whole=2):
    h.flush()

# A read of buffered data asks below for the missing part only; then the
# write-out needs the rest.
h.pwrite(data[:32*K], 30*CLUSTER)
with Counted(reads=0):
    assert h.pread(32*K, 30*CLUSTER) == data[:32*K]
with Counted(reads=1):
    got = h.pread(CLUSTER, 30*CLUSTER)
assert got == data[:32*K] + backing(32*K, 30*CLUSTER + 32*K)

# How a cluster is written is asked for once, for many of them.
assert counts()["layer_extents"] < 10, counts()
EOT
