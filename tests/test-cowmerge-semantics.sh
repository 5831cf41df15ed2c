#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Reads, extents, zero, trim and cache see buffered data.

source ./functions.sh
set -e
set -x

requires_nbdsh

export sock
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge \
             .libs/cowmerge-test-plugin.so size=8M cowmerge-delay=100000

nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
      -c - <<'EOT'
h = connect()
h.set_strict_mode(0)
shadow = backing(h.get_size(), 0)

def check():
    assert h.pread(h.get_size(), 0) == shadow

def write(c, off, n):
    shadow[off:off+n] = c * n
    h.pwrite(c * n, off)

def zero(off, n, flags=0):
    h.zero(n, off, flags)
    shadow[off:off+n] = bytes(n)

# Reads over, beside and between pieces.
with Counted(reads=0):
    write(b"a", 100, 50)
    write(b"b", 200, 50)
    write(b"c", 120, 100)
    write(b"d", CLUSTER - 1, 3)
check()
assert h.pread(2, CLUSTER - 1) == b"dd"
assert h.pread(300, 0) == shadow[:300]

# Zero: a part of a buffered cluster, with others whole; no I/O for a part.
write(b"e", 3*CLUSTER, 4*K)
write(b"e", 4*CLUSTER, 4*K)
write(b"e", 5*CLUSTER, 4*K)
zero(3*CLUSTER + 2*K, 2*CLUSTER)
check()
with Counted():
    zero(5*CLUSTER, 2*K)
    zero(5*CLUSTER + 50*K, 1)
check()
# Zero that completes a cluster.
write(b"f", 6*CLUSTER, 32*K)
with Counted(writes=1, whole=1):
    zero(6*CLUSTER + 32*K, 32*K)
check()
# Refused fast zeroing changes nothing, also of buffered parts.
write(b"g", 8*CLUSTER, 4*K)
fails(errno.ENOTSUP, h.zero, CLUSTER + 10, 8*CLUSTER + 10,
      nbd.CMD_FLAG_FAST_ZERO)
check()

# Trim: whole clusters are zero or as before; parts that are buffered stay.
write(b"h", 10*CLUSTER, 4*K)
write(b"i", 11*CLUSTER, 4*K)
write(b"j", 12*CLUSTER, 4*K)
h.trim(CLUSTER + 4*K, 11*CLUSTER - 2*K)
got = h.pread(CLUSTER, 11*CLUSTER)
assert got == bytes(CLUSTER)
shadow[11*CLUSTER : 12*CLUSTER] = got
check()

# Extents: buffered clusters are data.
zero(20*CLUSTER, 8*CLUSTER)
hole = nbd.STATE_HOLE | nbd.STATE_ZERO
assert extents(h, 8*CLUSTER, 20*CLUSTER) == [(8*CLUSTER, hole)]
write(b"k", 21*CLUSTER, 1)
write(b"k", 24*CLUSTER - 1, 2)
assert extents(h, 8*CLUSTER, 20*CLUSTER) == [
    (CLUSTER, hole), (CLUSTER, 0), (CLUSTER, hole), (2*CLUSTER, 0),
    (3*CLUSTER, hole)]
assert extents(h, 100, 20*CLUSTER + 50)[0][1] == hole
assert extents(h, CLUSTER, 21*CLUSTER + 100, nbd.CMD_FLAG_REQ_ONE)[0] == (
    CLUSTER - 100, 0)

h.cache(8*CLUSTER, 20*CLUSTER)
# The end of the disk.
write(b"l", h.get_size() - 1, 1)
check()
h.flush()
check()
assert stable(h.get_size(), 0) == shadow
# Nothing is buffered now, so the plugin's answer is the filter's.
assert extents(h, 2*CLUSTER, 20*CLUSTER) == [(CLUSTER, hole), (CLUSTER, 0)]
EOT
stop_nbdkit "$tmpdir/pid"
rm "$sock"

# A disk that ends inside a cluster.
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge \
             .libs/cowmerge-test-plugin.so size=100001
nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
      -c - <<'EOT'
h = connect()
rest = 100001 - CLUSTER
with Counted(writes=1, whole=1):
    h.pwrite(b"a" * 1000, CLUSTER)
    h.pwrite(b"a" * (rest - 1000), CLUSTER + 1000)
assert h.pread(rest, CLUSTER) == b"a" * rest
h.trim(100001, 0)
h.zero(100001, 0)
h.pwrite(b"b", 100000)
h.flush()
assert stable(100001, 0) == bytes(100000) + b"b"
EOT
