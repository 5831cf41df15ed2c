#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# kill -9 under load: what was flushed is there, every other piece is old
# or new, and the image has no errors (leaks are no errors).

source ./functions.sh
set -e
set -x

requires_qemu_img
requires_nbdsh

export sock
export pidfile="$tmpdir/pid"
export img="$tmpdir/overlay.qcow2"
make_data "$tmpdir/base.raw" 16M
export base="$tmpdir/base.raw"

for round in 1 2 3 4; do
    rm -f "$img" "$sock"
    qemu-img create -q -f qcow2 -b "$base" -F raw "$img" 16M
    start_nbdkit -P "$pidfile" -U "$sock" --filter=cowmerge qcow2 "$img" \
                 cowmerge-max=1M cowmerge-delay=20
    nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
          -c - <<'EOT'
import pickle, random
r = random.Random()
old = open(os.environ["base"], "rb").read()
may = {}
h = connect()
end = time.time() + r.uniform(0.3, 1)
while time.time() < end:
    u = r.randrange(4096)
    new = r.randbytes(4096)
    may.setdefault(u, [old[u*4096 : (u+1)*4096]]).append(new)
    h.pwrite(new, u * 4096)
    if r.randrange(100) == 0:
        h.flush()
        may = {k: [v[-1]] for k, v in may.items()}
pickle.dump(may, open(os.environ["img"] + ".may", "wb"))
EOT
    kill_nbdkit "$pidfile"
    rm -f "$sock"
    r=0
    qemu-img check "$img" || r=$?
    test $r -eq 0 || test $r -eq 3      # 3: leaks only
    qemu-img convert -f qcow2 -O raw "$img" "$tmpdir/after.raw"
    after="$tmpdir/after.raw" nbdsh -c - <<'EOT'
import os, pickle
may = pickle.load(open(os.environ["img"] + ".may", "rb"))
old = open(os.environ["base"], "rb").read()
new = open(os.environ["after"], "rb").read()
for u in range(4096):
    got = new[u*4096 : (u+1)*4096]
    assert got in may.get(u, [old[u*4096 : (u+1)*4096]]), u
EOT
done
