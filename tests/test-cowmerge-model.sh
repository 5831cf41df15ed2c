#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Small writes from several connections, on all bytes of the same clusters
# at once, against a byte-exact shadow; over the test plugin, which is slow
# now and then.

source ./functions.sh
set -e
set -x

requires_lib libnbd
requires test -x ./cowmerge-model

seconds=4
run ()
{
    local cluster="$1" size="$2"
    shift 2
    start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge \
                 .libs/cowmerge-test-plugin.so size="$size" \
                 cluster="$cluster" "$@"
    ./cowmerge-model "$uri" "${SEED:-0}" $seconds "$cluster" durable trim
    stop_nbdkit "$tmpdir/pid"
    rm "$sock"
}

run 65536 16M cowmerge-max=2M
run 65536 16M cowmerge-max=1M backing=zero grain=2k
run 65536 16M cowmerge-max=4M jitter=300 cowmerge-delay=20 grain=2k
run 4096 7999999 cowmerge-max=400k cowmerge-delay=0 cowmerge-read-gap=0
run 512 3000001 cowmerge-max=100k jitter=50
run 262144 32M cowmerge-max=2M jitter=100 cowmerge-delay=1
# No threads of its own, nor parallel requests.
requires_filter noparallel
run 65536 16M cowmerge-max=2M --filter=noparallel serialize=requests
