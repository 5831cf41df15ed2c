#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# A plugin that is stuck: writers wait, and memory stays bounded.

source ./functions.sh
set -e
set -x

requires_nbdsh
skip_if_valgrind "memory is measured"
skip_if_sanitizers "memory is measured"

export sock
export stuck="$tmpdir/stuck"
export pidfile="$tmpdir/pid"
start_nbdkit -P "$pidfile" -U "$sock" --filter=cowmerge \
             .libs/cowmerge-test-plugin.so size=64M cowmerge-max=4M \
             stuck="$stuck"

nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
      -c - <<'EOT'
stuck = os.environ["stuck"]
pid = open(os.environ["pidfile"]).read().strip()

def memory():
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * K

conns = [connect() for i in range(4)]
for h in conns:
    h.pread(64 * K, 0)
# Warm up: each buffer and each thread's memory.
for i in range(200):
    conns[i % 4].pwrite(b"x", i * CLUSTER)
conns[0].flush()
before = memory()

open(stuck, "w").close()
finished = []

def on_completion(error):
    assert error.value == 0
    finished.append(1)
    return 1

data = nbd.Buffer.from_bytearray(bytearray(b"y" * 512))
for i in range(800):
    conns[i % 4].aio_pwrite(data, (200 + i) * CLUSTER + 1000, on_completion)

def poll(seconds, enough):
    deadline = time.time() + seconds
    while time.time() < deadline and len(finished) < enough:
        for h in conns:
            h.poll(10)

poll(3, 800)
grown = memory() - before
print("finished while stuck:", len(finished), "memory grown by", grown)
# 4M of 64k clusters with what each costs beside.
assert 40 < len(finished) < 60
assert grown < 3 * K * K

os.unlink(stuck)
poll(60, 800)
assert len(finished) == 800
conns[1].flush()
for i in range(0, 800, 37):
    assert stable(512, (200 + i) * CLUSTER + 1000) == b"y" * 512
EOT
