#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# compress-threads is a limit over all requests and connections, and one
# large request reaches it.

source ./functions.sh
set -e
set -x

plugin=./.libs/hints-test-plugin.so
requires test -f $plugin
requires_nbdsh
requires_filter noparallel

# max_active client args...
max_active ()
{
    local _client="$1"
    shift
    nbdkit -f -U - --filter=compress $plugin log="$tmpdir/log" \
           delay-us=2000 "$@" --run 'nbdsh -u "$uri" -c "'"$_client"'"'
    sed -n 's/^max-active //p' "$tmpdir/log"
}

one='h.pwrite(b\"x\" * (16 << 20), 0)'
many='
conns = [nbd.NBD() for i in range(4)]
cookies = []
for c in conns:
    c.connect_uri(\"$uri\")
for n, c in enumerate(conns):
    for i in range(24):
        buf = nbd.Buffer.from_bytearray(bytearray(b\"x\" * 65536 * (1 + i % 3)))
        off = (n * 24 + i) * 4 * 65536
        cookies.append((c, c.aio_pwrite(buf, off)))
for c, cookie in cookies:
    while not c.aio_command_completed(cookie):
        c.poll(-1)
for c in conns:
    c.shutdown()
'

for n in 1 2 7; do
    test "$(max_active "$one" compress-threads=$n)" -eq $n
    test "$(max_active "$many" compress-threads=$n)" -eq $n
done

# The default is one for each processor.
n="$(getconf _NPROCESSORS_ONLN)"
test "$(max_active "$one")" -le "$n"

# Where nbdkit must serialise requests, so must the filter.
test "$(max_active "$one" compress-threads=7 serialize=true)" -eq 1
test "$(max_active "$one" compress-threads=7 --filter=noparallel)" -eq 1
