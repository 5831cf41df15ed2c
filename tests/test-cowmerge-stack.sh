#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# With other filters above and below; and a server that is told to end
# while a client is connected.

source ./functions.sh
set -e
set -x

requires_qemu_img
requires_nbdsh
requires fallocate --version

# Half of the clusters are holes: with an offset there are clusters of which
# a part is zero.
make_data "$tmpdir/base.raw" 8M
for (( i = 64; i < 8192; i += 128 )); do
    fallocate -p -o ${i}k -l 64k "$tmpdir/base.raw"
done
img="$tmpdir/overlay.qcow2"
export sock
export helpers="$abs_top_srcdir/tests/cowmerge-helpers.py"

# Small writes in many places, some of them complete; then compare.
cat > "$tmpdir/client.py" <<'EOT'
exec(open(os.environ["helpers"]).read())
import random, sys
r = random.Random(1)
h = connect()
size = h.get_size()
expect = bytearray(h.pread(size, 0))
for i in range(600):
    off = r.randrange(size - 9000)
    data = r.randbytes(r.choice((512, 4096, 4096, 9000)))
    expect[off : off + len(data)] = data
    h.pwrite(data, off)
for off in range(2 * CLUSTER, 4 * CLUSTER, 4096):
    expect[off : off + 4096] = b"s" * 4096
    h.pwrite(b"s" * 4096, off)
assert h.pread(size, 0) == expect
if os.environ.get("leave") == "open":
    open(os.environ["sock"] + ".expect", "wb").write(expect)
    open(os.environ["sock"] + ".ready", "w").close()
    try:
        while True:
            time.sleep(0.1)
            h.pread(1, 0)       # nbdkit ends a connection when it is used
    except nbd.Error:
        pass
else:
    h.shutdown()
    h2 = connect()
    assert h2.pread(size, 0) == expect
    h2.shutdown()
EOT

run ()
{
    local f
    for f in "${@}"; do
        case "$f" in
            --filter=cowmerge|--filter=compress|--filter=preallocate) ;;
            --filter=*) requires_filter "${f#--filter=}" ;;
        esac
    done
    rm -f "$img" "$sock"
    qemu-img create -q -f qcow2 $create "$img"
    start_nbdkit -P "$tmpdir/pid" -U "$sock" \
                 qcow2 "$img" cowmerge-delay=50 cowmerge-max=1M "$@"
    nbdsh -c 'import os' -c "exec(open('$tmpdir/client.py').read())"
    stop_nbdkit "$tmpdir/pid"
    check_image "$img"
}

create="-b base.raw -F raw"
run --filter=log --filter=stats --filter=cowmerge logfile="$tmpdir/log1" \
    statsfile="$tmpdir/stats1"
run --filter=cowmerge --filter=log --filter=stats logfile="$tmpdir/log2" \
    statsfile="$tmpdir/stats2"
run --filter=cache --filter=cowmerge
run --filter=cowmerge --filter=cacheextents
run --filter=rate --filter=cowmerge rate=1G
run --filter=cowmerge --filter=offset offset=64k
run --filter=cowmerge --filter=offset offset=32k
run --filter=cowmerge --filter=offset offset=1000
run --filter=cowmerge --filter=fua fuamode=emulate
run --filter=cowmerge --filter=nozero
run --filter=cowmerge --filter=preallocate
run --filter=cowmerge --filter=compress
# Without backing file too, parts of clusters become whole ones for compress.
create="-o size=8M"
run --filter=cowmerge --filter=compress --filter=preallocate
qemu-img check "$img" | grep -E ' (9[0-9]|100)\.[0-9]*% compressed'

# SIGTERM while a client is there: what it wrote is there.
rm -f "$img" "$sock"
qemu-img create -q -f qcow2 -b base.raw -F raw "$img"
start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=cowmerge qcow2 "$img" \
             cowmerge-delay=100000
leave=open nbdsh -c 'import os' -c "exec(open('$tmpdir/client.py').read())" &
client=$!
for i in {1..600}; do
    if [ -f "$sock.ready" ]; then break; fi
    sleep 0.1
done
stop_nbdkit "$tmpdir/pid"
wait $client || :
check_image "$img"
qemu-img compare -f raw -F qcow2 "$sock.expect" "$img"
