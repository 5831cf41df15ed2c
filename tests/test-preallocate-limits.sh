#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# A limit on the size of files, injected errors of each request the filter
# makes: nothing fails that would not have failed without it, and nothing
# hangs.

source ./functions.sh
set -e
set -x

requires_plugin file
requires_filter error
requires_nbdsh

hammer="$PYTHON $abs_top_srcdir/tests/preallocate-hammer.py"
small="prealloc-size=1M prealloc-align=64k"

# 8 MiB, in units of 1k.
fill='
n = 0
try:
    while True:
        h.pwrite(b\"x\" * 65536, n * 65536)
        n += 1
except nbd.Error as e:
    assert e.errno in (\"ENOSPC\", \"EFBIG\"), e.errno
print(n)
h.flush()
'
for f in "" --filter=preallocate; do
    rm -f "$tmpdir/a.qcow2"
    ( ulimit -f 8192
      nbdkit -f -U - $f qcow2 "$tmpdir/a.qcow2" create=true size=1G \
             --run 'nbdsh -u "$uri" -c "'"$fill"'"' ) > "$tmpdir/count$f"
    check_image "$tmpdir/a.qcow2"
done
cmp "$tmpdir/count" "$tmpdir/count--filter=preallocate"

# Requests of the filter fail, those of the client do not: zero requests
# of clients are among them, so those may.
for e in "error-zero=ENOSPC error-zero-rate=10%" \
         "error-zero=EIO error-zero-rate=100%"; do
    truncate -s 0 "$tmpdir/a.raw"
    truncate -s 48M "$tmpdir/a.raw"
    nbdkit -f -U - --filter=preallocate --filter=error \
           file "$tmpdir/a.raw" $small $e \
           --run "$hammer"' --uri "$uri" --rounds 2 --errors'
done
for e in "error-extents=EIO error-extents-rate=30%" \
         "error-trim=EIO error-trim-rate=100%"; do
    truncate -s 0 "$tmpdir/a.raw"
    truncate -s 48M "$tmpdir/a.raw"
    nbdkit -f -U - --filter=preallocate --filter=error \
           file "$tmpdir/a.raw" $small $e \
           --run "$hammer"' --uri "$uri" --rounds 2'
done

# The client's own fail.
truncate -s 0 "$tmpdir/a.raw"
truncate -s 48M "$tmpdir/a.raw"
for errno in ENOSPC EIO; do
    nbdkit -f -U - --filter=preallocate --filter=error \
           file "$tmpdir/a.raw" $small \
           error-pwrite=$errno error-pwrite-rate=5% \
           --run "$hammer"' --uri "$uri" --errors --no-start-check'
done
rm -f "$tmpdir/a.qcow2"
nbdkit -f -U - --filter=preallocate --filter=error \
       qcow2 "$tmpdir/a.qcow2" create=true size=48M $small \
       error-pwrite=EIO error-pwrite-rate=5% \
       --run "$hammer"' --uri "$uri" --errors'
check_image "$tmpdir/a.qcow2"
