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
requires_nbdsh
requires test -x ./cowmerge-model

export sock
merges='
cluster = int(os.environ["cluster"])
h = connect()
h.zero(2 * cluster, 0)
with Counted(writes=1, whole=1):
    for off in range(0, cluster, cluster // 16):
        h.pwrite(b"m" * (cluster // 16), cluster + off)
'
seconds=4
run ()
{
    local size="$2"
    export cluster="$1"
    shift 2
    start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge \
                 .libs/cowmerge-test-plugin.so size="$size" \
                 cluster="$cluster" "$@"
    ./cowmerge-model "$uri" "${SEED:-0}" $seconds "$cluster" durable trim
    # Nothing was left behind that takes memory: this would not be merged.
    case "$*" in *delay*) ;; *)
    nbdsh -c "exec(open('$abs_top_srcdir/tests/cowmerge-helpers.py').read())" \
          -c "$merges"
    esac
    stop_nbdkit "$tmpdir/pid"
    rm "$sock"
}

run 65536 16M cowmerge-max=2M
run 65536 16M cowmerge-max=1M backing=zero grain=2k
run 65536 16M cowmerge-max=1M jitter=300 grain=2k
run 4096 7999999 cowmerge-max=400k cowmerge-delay=0 cowmerge-read-gap=0
run 512 3000001 cowmerge-max=100k jitter=50
run 262144 32M cowmerge-max=2M jitter=100 cowmerge-delay=1
# No threads of its own, nor parallel requests.
requires_filter noparallel
run 65536 16M cowmerge-max=2M --filter=noparallel serialize=requests
