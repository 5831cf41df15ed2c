#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Where the plugin lacks something, and with -r, the filter sends nothing
# of its own.

source ./functions.sh
set -e
set -x

requires_plugin file
requires_filter log
requires_filter nozero
requires_filter noextents
requires_nbdsh

truncate -s 1G "$tmpdir/a.raw"

# check what filters...
check ()
{
    local _what="$1"
    shift
    rm -f "$tmpdir/log"
    nbdkit -f -v -U - --filter=preallocate "$@" --filter=log \
           file "$tmpdir/a.raw" logfile="$tmpdir/log" --run '
        nbdsh -u "$uri" -c "
assert h.pread(5, 0) in (b\"hello\", bytes(5))
if not h.is_read_only():
    h.pwrite(b\"hello\", 0)
    h.pwrite(b\"hello\", 500 * 1024 * 1024)
"' 2> "$tmpdir/err"
    grep "$_what" "$tmpdir/err"
    if grep -E 'Zero|Trim|Extents' "$tmpdir/log"; then exit 1; fi
}

check 'it is read-only' -r
check 'no efficient zero request' --filter=nozero
check 'where its holes are' --filter=noextents

requires_plugin sh
cat > "$tmpdir/notrim.sh" <<'EOT'
case "$1" in
    get_size) echo 1M ;;
    can_write|can_zero|can_extents) exit 0 ;;
    pread) head -c $3 /dev/zero ;;
    pwrite) cat > /dev/null ;;
    zero|extents) touch "$tmpdir/called" ;;
    *) exit 2 ;;
esac
EOT
chmod +x "$tmpdir/notrim.sh"
export tmpdir
nbdkit -f -v -U - --filter=preallocate sh "$tmpdir/notrim.sh" \
       --run 'nbdsh -u "$uri" -c "h.pwrite(b\"hello\", 0)"' 2> "$tmpdir/err"
grep 'cannot give back space' "$tmpdir/err"
test ! -e "$tmpdir/called"

# A plugin whose zero request turns out to write: one small one, no more.
cat > "$tmpdir/slow.py" <<'EOT'
import nbdkit
disk = bytearray(1 << 20)
data = set()
API_VERSION = 2
def open(readonly): return 1
def get_size(h): return len(disk)
def pread(h, buf, offset, flags): buf[:] = disk[offset:offset+len(buf)]
def pwrite(h, buf, offset, flags):
    nbdkit.debug("WRITE %d %d" % (len(buf), offset))
    disk[offset:offset+len(buf)] = buf
    data.update(range(offset // 4096, (offset + len(buf) + 4095) // 4096))
def zero(h, count, offset, flags): pwrite(h, bytes(count), offset, 0)
def trim(h, count, offset, flags): pass
def can_extents(h): return True
def extents(h, count, offset, flags):
    return [(b * 4096, 4096, 0 if b in data else 3)
            for b in range(offset // 4096, (offset + count + 4095) // 4096)]
EOT
if nbdkit python --version; then
    nbdkit -f -v -U - --filter=preallocate python "$tmpdir/slow.py" --run '
        nbdsh -u "$uri" -c "
for i in range(50): h.pwrite(b\"x\" * 4096, i * 8192)"' 2> "$tmpdir/err"
    grep 'zeroes are written here' "$tmpdir/err"
    test "$(grep -c WRITE "$tmpdir/err")" -eq 51
fi
