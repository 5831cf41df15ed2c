#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Over a plugin with the hints symbol, writes and zero requests carry the
# grow hint, and nothing else does.

source ./functions.sh
set -e
set -x

plugin=./.libs/hints-test-plugin.so
requires test -f $plugin
requires_nbdsh

nbdkit -f -U - --filter=preallocate $plugin log="$tmpdir/log" \
       prealloc-size=10M prealloc-align=64k --run 'nbdsh -u "$uri" -c "
h.pwrite(b\"x\" * 1000, 5000)
assert h.pread(1000, 5000) == b\"x\" * 1000
h.zero(4096, 65536)
h.zero(4096, 65536, nbd.CMD_FLAG_NO_HOLE)
h.pwrite(b\"y\" * 512, 0, nbd.CMD_FLAG_FUA)
h.flush()
assert h.pread(512, 0) == b\"y\" * 512
"'
cat "$tmpdir/log"
diff -u "$tmpdir/log" - <<'EOT'
open compress=0 level=0 window=0
write 5000 1000 fua=0 trim=0 compress=0 level=0 window=0 grow=10485760 align=65536
zero 65536 4096 fua=0 trim=1 compress=0 level=0 window=0 grow=10485760 align=65536
zero 65536 4096 fua=0 trim=0 compress=0 level=0 window=0 grow=10485760 align=65536
write 0 512 fua=1 trim=0 compress=0 level=0 window=0 grow=10485760 align=65536
flush
max-active 0
leaked 0
EOT

# The defaults.
nbdkit -f -U - --filter=preallocate $plugin log="$tmpdir/log" \
       --run 'nbdsh -u "$uri" -c "h.pwrite(b\"x\", 0)"'
grep 'grow=134217728 align=1048576' "$tmpdir/log"

# A plugin with another idea of the hints is refused.
expect_fail nbdkit -f -U - --filter=preallocate $plugin version=7 --run true
expect_message 'not of the same version'

# Parameters.
for p in prealloc-size=0 prealloc-size=2T prealloc-size=x \
         prealloc-align=3M prealloc-align=2G prealloc-align=256; do
    expect_fail nbdkit -f -U - --filter=preallocate $plugin $p --run true
    expect_message "prealloc|size"
done
