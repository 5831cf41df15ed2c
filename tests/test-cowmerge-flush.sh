#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# What is stable after which request, and when buffered data goes down.

source ./functions.sh
set -e
set -x

requires_nbdsh

export sock
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge \
             .libs/cowmerge-test-plugin.so cowmerge-delay=500

nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
      -c - <<'EOT'
h = connect()
h2 = connect()
assert h.can_multi_conn() and h.can_fua() and h.can_flush()

# A flush on one connection covers the writes of all.
h.pwrite(b"a" * 4*K, 4*K)
assert h2.pread(4*K, 4*K) == b"a" * 4*K
assert stable(4*K, 4*K) == backing(4*K, 4*K)
h2.flush()
assert stable(CLUSTER, 0) == (backing(4*K, 0) + b"a" * 4*K +
                              backing(56*K, 8*K))

# FUA covers its own bytes: alone, merged, and over several clusters.
h.pwrite(b"b" * 4*K, CLUSTER, nbd.CMD_FLAG_FUA)
assert stable(4*K, CLUSTER) == b"b" * 4*K
h.pwrite(b"c" * 4*K, 2*CLUSTER)
h2.pwrite(b"d" * 4*K, 2*CLUSTER + 8*K, nbd.CMD_FLAG_FUA)
assert stable(12*K, 2*CLUSTER)[8*K:] == b"d" * 4*K
n = 3*CLUSTER
h.pwrite(b"e" * n, 4*CLUSTER - 777, nbd.CMD_FLAG_FUA)
assert stable(n, 4*CLUSTER - 777) == b"e" * n
h.pwrite(b"f" * 4*K, 10*CLUSTER)
h.zero(CLUSTER, 10*CLUSTER + 2*K, nbd.CMD_FLAG_FUA)
assert stable(CLUSTER, 10*CLUSTER + 2*K) == bytes(CLUSTER)

# After cowmerge-delay it goes down by itself.
def wait_for_write(start):
    for i in range(2000):
        if counts()["writes"] > start:
            return
        time.sleep(0.01)
    raise AssertionError("not written out")

with Counted(reads=1, writes=1, whole=1):
    start = counts()["writes"]
    h.pwrite(b"g" * 4*K, 20*CLUSTER)
    wait_for_write(start)

# When a connection that wrote closes, while others stay.
start = counts()["writes"]
h.pwrite(b"h" * 4*K, 21*CLUSTER)
h.shutdown()
wait_for_write(start)
assert h2.pread(4*K, 21*CLUSTER) == b"h" * 4*K

# Other names of the same disk are the same overlay; other disks are not.
alias = connect("+alias")
other = connect("other")
h2.pwrite(b"i" * 4*K, 22*CLUSTER)
assert alias.pread(4*K, 22*CLUSTER) == b"i" * 4*K
assert other.pread(4*K, 22*CLUSTER) == backing(4*K, 22*CLUSTER)
other.pwrite(b"j" * 4*K, 22*CLUSTER)
alias.flush()
assert stable(4*K, 22*CLUSTER) == b"i" * 4*K
other.flush()
assert stable(4*K, 22*CLUSTER, "other") == b"j" * 4*K
EOT
stop_nbdkit "$tmpdir/pid"
rm "$sock"

# A flush waits for what another thread is just writing out.
export stuck="$tmpdir/stuck"
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge \
             .libs/cowmerge-test-plugin.so cowmerge-delay=20 stuck="$stuck"
nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
      -c - <<'EOT'
h = connect()
h2 = connect()
for i in range(3):
    open(os.environ["stuck"], "w").close()
    h.pwrite(b"a" * 100, i * CLUSTER + 100)
    time.sleep(0.3)             # a background thread is at it
    t = threading.Thread(target=h2.flush)
    t.start()
    t.join(0.3)
    assert t.is_alive()
    assert stable(100, i * CLUSTER + 100) == backing(100, i * CLUSTER + 100)
    os.unlink(os.environ["stuck"])
    t.join()
    assert stable(100, i * CLUSTER + 100) == b"a" * 100
EOT
