#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Requests fail at random below the filter.  Whatever was acknowledged and
# then flushed is there, and every other byte is one that was written.

source ./functions.sh
set -e
set -x

requires_nbdsh
requires_filter error

export sock
export bad="$tmpdir/bad"
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge --filter=error \
             .libs/cowmerge-test-plugin.so size=4M cowmerge-max=600k \
             cowmerge-delay=10 jitter=50 \
             error-pread-rate=10% error-pwrite-rate=20% error-pwrite=ENOSPC \
             error-zero-rate=10% error-extents-rate=30% error-trim-rate=10% \
             error-file="$bad" 2> "$tmpdir/log"

nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
      -c - <<'EOT'
import random
UNIT = 512

class Worker(threading.Thread):
    """Owns every N-th unit.  Remembers for each what it may read as: the
    last acknowledged content, and those of failed requests since."""
    def __init__(self, n, nr):
        super().__init__()
        self.h = connect()
        self.n, self.nr = n, nr
        self.r = random.Random(n)
        self.may = {}           # acknowledged or not, since the last flush
        self.errors = 0
        self.failure = None

    def content(self, u):
        return self.may.get(u, [bytes(backing(UNIT, u * UNIT))])

    def check(self, u, got):
        assert got in self.content(u), f"unit {u} has wrong content"

    def step(self):
        u = self.r.randrange(8192 // self.nr) * self.nr + self.n
        old, off = self.content(u), u * UNIT
        kind = self.r.random()
        try:
            if kind < 0.6:
                new = self.r.randbytes(UNIT)
                self.may[u] = old + [new]       # unless we hear more
                self.h.pwrite(new, off)
                self.may[u] = [new]
            elif kind < 0.7:
                self.may[u] = old + [bytes(UNIT)]
                self.h.zero(UNIT, off)
                self.may[u] = [bytes(UNIT)]
            elif kind < 0.98:
                self.check(u, bytes(self.h.pread(UNIT, off)))
            else:
                self.h.flush()
        except nbd.Error:
            self.errors += 1

    def run(self):
        try:
            for i in range(3000):
                self.step()
        except Exception as e:
            self.failure = e

workers = [Worker(i, 4) for i in range(4)]
h = connect()
open(os.environ["bad"], "w").close()
for w in workers:
    w.start()
for w in workers:
    w.join()
    if w.failure:
        raise w.failure
assert all(w.errors > 50 for w in workers)

# A flush that succeeds has everything stable.
for i in range(1000):
    try:
        h.flush()
        break
    except nbd.Error:
        pass
else:
    raise AssertionError("flush never succeeded")
os.unlink(os.environ["bad"])
data = bytes(stable(h.get_size(), 0))
for w in workers:
    for u in w.may:
        w.check(u, data[u * UNIT : (u + 1) * UNIT])
EOT
