#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# How a write is cut, what its pieces carry, and what zeroes and FUA become.

source ./functions.sh
set -e
set -x

plugin=./.libs/hints-test-plugin.so
requires test -f $plugin
requires_nbdsh

# run client args...: leaves what reached the plugin, in order of offsets,
# in $tmpdir/out.
run ()
{
    local _client="$1"
    shift
    nbdkit -f -U - --filter=compress $plugin log="$tmpdir/log" "$@" \
           --run 'nbdsh -u "$uri" -c "'"$_client"'"'
    grep '^leaked 0$' "$tmpdir/log"
    sed 's/ grow=.*//' "$tmpdir/log" | grep -vE '^(open|max|leaked)' |
        sort -k2,2n > "$tmpdir/out"
    cat "$tmpdir/out"
}

c='compress=1 level=5 window=32768'
p='compress=0 level=0 window=0'
args=( compress-level=5 compress-window=32k )

# Head, whole clusters, tail.
run 'h.pwrite(b\"x\" * 200000, 60000)' "${args[@]}"
diff -u "$tmpdir/out" - <<EOT
write 60000 5536 fua=0 trim=0 $p
write 65536 65536 fua=0 trim=0 $c
write 131072 65536 fua=0 trim=0 $c
write 196608 63392 fua=0 trim=0 $p
EOT
grep "^open $c" "$tmpdir/log"

# Parts of clusters only: as it is.
run 'h.pwrite(b\"x\" * 65536, 60000)' "${args[@]}"
diff -u "$tmpdir/out" - <<EOT
write 60000 65536 fua=0 trim=0 $p
EOT

# The short cluster at the end of the disk is whole.
run 'h.pwrite(b\"x\" * (65536 + 1000), 65536)' "${args[@]}" \
    size=$(( 131072 + 1000 ))
diff -u "$tmpdir/out" - <<EOT
write 65536 65536 fua=0 trim=0 $c
write 131072 1000 fua=0 trim=0 $c
EOT

# Zeroes: neighbours join, and parts of clusters do not count.
run 'h.pwrite(b\"x\" * 65536 + bytes(3 * 65536) + b\"x\" + bytes(70000), 0)' \
    "${args[@]}" compress-threads=1
diff -u "$tmpdir/out" - <<EOT
write 0 65536 fua=0 trim=0 $c
zero 65536 196608 fua=0 trim=1 $p
write 262144 65536 fua=0 trim=0 $c
write 327680 4465 fua=0 trim=0 $p
EOT
run 'h.pwrite(bytes(65536), 0)' "${args[@]}" no-zero=true
diff -u "$tmpdir/out" - <<EOT
write 0 65536 fua=0 trim=0 $c
EOT

# FUA: of one cluster as it is; of several, one flush after all of them; and
# on each where the plugin cannot flush.
run 'h.pwrite(b\"x\" * 65536, 0, nbd.CMD_FLAG_FUA)' "${args[@]}"
diff -u "$tmpdir/out" - <<EOT
write 0 65536 fua=1 trim=0 $c
EOT
run 'h.pwrite(b\"x\" * 131072, 0, nbd.CMD_FLAG_FUA)' "${args[@]}"
test "$(grep -c fua=0 "$tmpdir/out")" -eq 2
test "$(grep -vE '^(max|leaked)' "$tmpdir/log" | tail -1)" = flush
run 'h.pwrite(b\"x\" * 131072, 0, nbd.CMD_FLAG_FUA)' "${args[@]}" no-flush=true
test "$(grep -c fua=1 "$tmpdir/out")" -eq 2

# Small clusters go down in batches.
run 'h.pwrite(b\"x\" * 131072, 0)' "${args[@]}" cluster=512
diff -u "$tmpdir/out" - <<EOT
write 0 65536 fua=0 trim=0 $c
write 65536 65536 fua=0 trim=0 $c
EOT
