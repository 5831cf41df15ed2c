#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Images on an NBD server: holes ahead of the last cluster get storage if
# the server can do that, the rest comes back at close, nothing changes what
# is read.

source ./functions.sh
set -e
set -x

requires_lib libnbd
requires_plugin file
requires_filter log
requires_filter delay
requires_nbdsh
requires_qemu_img

hammer="$PYTHON $abs_top_srcdir/tests/preallocate-hammer.py"
server="nbd+unix:///?socket=$sock"

# new_disk: an image of 256M in a sparse file of 1G.
new_disk ()
{
    rm -f "$tmpdir/disk" "$tmpdir/t.qcow2" "$tmpdir/log"
    qemu-img create -q -f qcow2 "$tmpdir/t.qcow2" 256M
    truncate -s 1G "$tmpdir/disk"
    dd if="$tmpdir/t.qcow2" of="$tmpdir/disk" conv=notrunc status=none
}

# serve [filter [parameter]]: the server below; stop_nbdkit "$tmpdir/pid"
# ends it.
serve ()
{
    rm -f "$sock"
    start_nbdkit -P "$tmpdir/pid" -U "$sock" $1 --filter=log \
                 file "$tmpdir/disk" logfile="$tmpdir/log" $2
}

# fill args...: write parts of clusters, note the blocks used meanwhile.
fill ()
{
    nbdkit -f -v -U - "$@" qcow2 uri="$server" --run 'nbdsh -u "$uri" -c "
import os
for i in range('"${nr:-300}"'):
    h.pwrite(b\"x\" * 3000, (i * 7919) % 4000 * 65536 + 1000)
h.flush()
print(os.stat(\"'"$tmpdir/disk"'\").st_blocks)
assert h.pread(3000, 1000) == b\"x\" * 3000
assert h.pread(1000, 0) + h.pread(1000, 4000) == bytes(2000)
"' > "$tmpdir/during" 2> "$tmpdir/err"
    cat "$tmpdir/err" | grep -E 'ahead|given back' || :
}

# With and without: the same disk, and in between 128M of storage.
for f in "" --filter=preallocate; do
    new_disk
    serve
    fill $f
    stop_nbdkit "$tmpdir/pid"
    stat -c %b "$tmpdir/disk" > "$tmpdir/after$f"
    check_image "$tmpdir/disk"
    cp --sparse=always "$tmpdir/disk" "$tmpdir/disk$f.copy"
done
qemu-img compare -f qcow2 -F qcow2 "$tmpdir/disk.copy" \
         "$tmpdir/disk--filter=preallocate.copy"
test "$(cat "$tmpdir/during")" -ge 262144
test "$(cat "$tmpdir/after--filter=preallocate")" -le \
     $(( $(cat "$tmpdir/after") + 262144 / 4 ))
test "$(grep ' Zero id=' "$tmpdir/log" | grep -c trim=0)" -le 10
test "$(grep -c ' Trim id=' "$tmpdir/log")" -eq 1

# What the next session finds there, it finds again: nothing new is
# allocated, and the same is given back.
serve
fill --filter=preallocate
stop_nbdkit "$tmpdir/pid"
check_image "$tmpdir/disk"

# Servers that cannot, each in its own way: it works, and says so.
# can_not words [filter [parameter]]
can_not ()
{
    local _words="$1"

    shift
    new_disk
    serve "$@"
    fill --filter=preallocate
    stop_nbdkit "$tmpdir/pid"
    grep "$_words" "$tmpdir/err"
    test "$(cat "$tmpdir/during")" -lt 262144
    if grep 'Trim id=' "$tmpdir/log"; then exit 1; fi
    check_image "$tmpdir/disk"
}
can_not 'no hole at offset' --filter=noextents
can_not 'nothing is allocated ahead from now on' --filter=nozero zeromode=none

# Without trim; and with a disk that is full for large steps: what was
# allocated of them is trimmed at once, and steps get smaller.
cat > "$tmpdir/server" <<EOT
#!$PYTHON
import os, sys
what, args = sys.argv[1], sys.argv[2:]
fd = os.open(os.environ["disk"], os.O_RDWR)
num = [int(a) for a in args[1:3] if a.isdigit()]
if what == "get_size":
    print(os.fstat(fd).st_size)
elif what == "pread":
    sys.stdout.buffer.write(os.pread(fd, num[0], num[1]))
elif what == "pwrite":
    os.pwrite(fd, sys.stdin.buffer.read(), num[1])
elif what == "extents":
    off, end = num[1], num[0] + num[1]
    try:
        data = os.lseek(fd, off, os.SEEK_DATA)
    except OSError:
        data = end
    if data > off:
        print(off, data - off, "hole,zero")
    else:
        print(off, os.lseek(fd, off, os.SEEK_HOLE) - off)
elif what == "zero":
    if num[0] > int(os.environ["max"]):
        sys.exit("ENOSPC full")
    os.posix_fallocate(fd, num[1], num[0])
elif what == "trim":
    open(os.environ["disk"] + ".trim", "a").write("%s\\n" % args[1:])
elif what in ("can_write", "can_zero", "can_extents", "can_flush", "flush"):
    pass
elif what == "can_trim":
    sys.exit(0 if os.environ["trim"] == "yes" else 3)
elif what == "thread_model":
    print("parallel")
else:
    sys.exit(2)
EOT
chmod +x "$tmpdir/server"
requires_plugin sh
export disk="$tmpdir/disk" max trim
for max in 40000000 1000000; do
    for trim in yes no; do
        new_disk
        rm -f "$sock" "$disk.trim"
        start_nbdkit -P "$tmpdir/pid" -U "$sock" sh "$tmpdir/server"
        nr=40 fill --filter=preallocate
        stop_nbdkit "$tmpdir/pid"
        check_image "$tmpdir/disk"
        case $max$trim in
            *no) grep 'the storage cannot give space back' "$tmpdir/err"
                 test "$(cat "$tmpdir/during")" -lt 65536 ;;
            1*) grep 'could not allocate .*: No space' "$tmpdir/err"
                test -s "$disk.trim" ;;
            *) test "$(cat "$tmpdir/during")" -ge 262144
               test -s "$disk.trim" ;;
        esac
    done
done

# Zeroes that are written, not allocated: noticed at the first cluster.
new_disk
serve --filter=nozero zeromode=emulate
fill --filter=preallocate
stop_nbdkit "$tmpdir/pid"
grep 'nothing is allocated ahead from now on' "$tmpdir/err"
test "$(cat "$tmpdir/during")" -lt 65536

# Byte for byte, and clusters that come back meanwhile.
for args in "" "discard=true"; do
    new_disk
    rm -f "$sock"
    start_nbdkit -P "$tmpdir/pid" -U "$sock" --filter=delay \
                 file "$tmpdir/disk" delay-write=1ms
    nbdkit -f -U - --filter=preallocate qcow2 uri="$server" $args \
           prealloc-size=1M prealloc-align=64k --run "$hammer"' \
           --uri "$uri" --rounds 2 --final '"$tmpdir/shadow"
    stop_nbdkit "$tmpdir/pid"
    qemu-img compare -f raw -F qcow2 "$tmpdir/shadow" "$tmpdir/disk"
    check_image "$tmpdir/disk"
done
