#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Errors of late write-outs are reported by flush, once at least on every
# connection; the data stays, and goes down when the plugin recovers.

source ./functions.sh
set -e
set -x

requires_nbdsh
requires_filter error

export sock
export bad="$tmpdir/bad"
export log="$tmpdir/log"
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge --filter=error \
             .libs/cowmerge-test-plugin.so cowmerge-max=1M \
             cowmerge-delay=200 \
             error-pwrite=ENOSPC error-pwrite-rate=100% \
             error-pwrite-file="$bad" 2> "$tmpdir/log"

nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
      -c - <<'EOT'
bad = os.environ["bad"]
h = connect()
h2 = connect()
h3 = connect()

# In the background, with nobody to tell: all hear of it at their flush,
# even when it is over.
h.pwrite(b"a" * 4*K, 0)
open(bad, "w").close()
while "tried again" not in open(os.environ["log"]).read():
    time.sleep(0.05)
assert h2.pread(4*K, 0) == b"a" * 4*K
os.unlink(bad)
h4 = connect()                  # came later
for x in (h, h2, h3):
    fails(errno.ENOSPC, x.flush)
for x in (h, h2, h3, h4):
    x.flush()
assert stable(4*K, 0) == b"a" * 4*K

# By the flush itself, again and again until it works.
h.pwrite(b"b" * 4*K, CLUSTER)
open(bad, "w").close()
for x in (h, h, h2, h):
    fails(errno.ENOSPC, x.flush)
os.unlink(bad)
fails(errno.ENOSPC, h3.flush)
h.flush()
assert stable(4*K, CLUSTER) == b"b" * 4*K
for x in (h2, h4):
    try:
        x.flush()
    except nbd.Error:
        pass

# The write that completes a cluster fails; the data stays.
h.pwrite(b"c" * 32*K, 2*CLUSTER)
open(bad, "w").close()
fails(errno.ENOSPC, h.pwrite, b"c" * 32*K, 2*CLUSTER + 32*K)
assert h.pread(32*K, 2*CLUSTER) == b"c" * 32*K
# So does a FUA write, and one over a cluster that is buffered.
fails(errno.ENOSPC, h.pwrite, b"d" * 4*K, 3*CLUSTER, nbd.CMD_FLAG_FUA)
h.pwrite(b"e" * 4*K, 4*CLUSTER)
fails(errno.ENOSPC, h.pwrite, b"f" * CLUSTER, 4*CLUSTER)
assert h.pread(4*K, 4*CLUSTER) == b"e" * 4*K
# All memory is used by what cannot be written: then writes fail, but do
# not hang, and nothing that was acknowledged is lost.
done = []
for i in range(64):
    try:
        h.pwrite(b"g" * 4*K, (10 + i) * CLUSTER)
        done.append(i)
    except nbd.Error as e:
        assert e.errnum == errno.ENOSPC
assert 5 < len(done) < 30, done
for i in done:
    assert h.pread(4*K, (10 + i) * CLUSTER) == b"g" * 4*K
fails(errno.ENOSPC, h.flush)
os.unlink(bad)
h.flush()
for i in done:
    assert stable(4*K, (10 + i) * CLUSTER) == b"g" * 4*K
assert stable(4*K, 4*CLUSTER) == b"e" * 4*K
assert stable(32*K, 2*CLUSTER) == b"c" * 32*K

# At close there is nobody to tell, so there is a message.
for x in (h2, h3, h4):
    x.shutdown()
h.pwrite(b"h" * 4*K, 0, nbd.CMD_FLAG_FUA)
h.pwrite(b"h" * 4*K, 100*CLUSTER)
open(bad, "w").close()
h.shutdown()
EOT
stop_nbdkit "$tmpdir/pid"
cat "$tmpdir/log"
grep "tried again with the next flush" "$tmpdir/log"
grep "could be written out when a connection ended" "$tmpdir/log"
grep "1 clusters with data .* are lost.*No space left" "$tmpdir/log"
# Not one message for each of them.
test "$(grep -c 'writing out the cluster' "$tmpdir/log")" -lt 12
