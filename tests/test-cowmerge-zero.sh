#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# An image without backing file: nothing is read, and the plugin fills new
# clusters by itself.  An image with subclusters: these are made whole.

source ./functions.sh
set -e
set -x

requires_nbdsh

export sock
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge \
             .libs/cowmerge-test-plugin.so backing=zero cluster=256k \
             cowmerge-delay=100000

nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
      -c - <<'EOT'
h = connect()
C = 256*K
with Counted(writes=1, whole=1):
    for off in range(0, C, 4*K):
        h.pwrite(b"a" * 4*K, off)

# A piece is written as it is, near ones together, far ones apart.
before = counts()["write_bytes"]
with Counted(writes=1):
    h.pwrite(b"b" * 512, C + 1000)
    h.flush()
assert counts()["write_bytes"] - before == 512
with Counted(writes=1):
    h.pwrite(b"c" * 512, 2*C + 1000)
    h.pwrite(b"d" * 512, 2*C + 60000)
    h.flush()
with Counted(writes=2):
    h.pwrite(b"e" * 512, 3*C)
    h.pwrite(b"f" * 512, 4*C - 512)
    h.flush()
got = h.pread(C, 2*C)
assert got[1000:1512] == b"c" * 512
assert got[60000:60512] == b"d" * 512
assert got.count(0) == C - 1024
assert stable(C, 3*C) == b"e" * 512 + bytes(C - 1024) + b"f" * 512
EOT
stop_nbdkit "$tmpdir/pid"
rm "$sock"

# Subclusters of 2k in clusters of 64k.
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge \
             .libs/cowmerge-test-plugin.so grain=2k cowmerge-delay=100000
nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
      -c - <<'EOT'
h = connect()
before = counts()["write_bytes"]
with Counted(writes=1, copied=1):       # by the plugin: its subclusters
    h.pwrite(b"a" * 4*K, 8*K)
    h.flush()
assert counts()["write_bytes"] - before == 4*K
before = counts()["write_bytes"]
with Counted(reads=1, writes=1, copied=1):
    h.pwrite(b"a" * 512, CLUSTER + 8*K + 600)
    h.flush()
assert counts()["write_bytes"] - before == 2*K
with Counted(writes=1, whole=1):
    for off in range(2*CLUSTER, 3*CLUSTER, 4*K):
        h.pwrite(b"a" * 4*K, off)
EOT
