#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Extended L2: zero and trim of a part of a compressed cluster leave the
# rest of it alone, also where that part reaches to the end of the disk, and
# where the cluster is stored compressed while the request is under way.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img_option extended_l2=on
requires_nbdsh
cd "$tmpdir"

export fill="
S = 65536
def fill ():
    for i in range (8):
        h.pwrite (b'a' * S, i * S)
"

# To the end of the disk; trim may leave the data as it is.
for op in 'h.zero (S // 2, 7 * S + S // 2)' \
          'h.zero (S // 2, 7 * S + S // 2, nbd.CMD_FLAG_NO_HOLE)' \
          'h.trim (S // 2, 7 * S + S // 2)' \
          'h.trim (S + S // 2, 6 * S + S // 2)'; do
    rm -f t.qcow2
    qemu-img create -q -f qcow2 -o extended_l2=on t.qcow2 512k
    nbdkit -U - --filter=compress qcow2 t.qcow2 --run 'nbdsh -u "$uri" \
        -c "$fill" -c "
fill ()
'"$op"'
assert h.pread (6 * S + S // 2, 0) == b\"a\" * (6 * S + S // 2)
assert set (h.pread (S // 2, 7 * S)) <= {0, 97}
if \"zero\" in \"'"$op"'\":
    assert h.pread (S // 2, 7 * S) == b\"a\" * (S // 2)
    assert h.pread (S // 2, 7 * S + S // 2) == bytes (S // 2)
"'
    check_image t.qcow2
done

# Fast zero does not do this, since it means writing data.
nbdkit -U - --filter=compress qcow2 t.qcow2 --run 'nbdsh -u "$uri" \
    -c "$fill" -c "
import errno
fill ()
try:
    h.zero (2048, 3 * S, nbd.CMD_FLAG_FAST_ZERO)
    assert False
except nbd.Error as e:
    assert e.errnum == errno.EOPNOTSUPP, e
h.zero (S, 3 * S, nbd.CMD_FLAG_FAST_ZERO)
"'

# The cluster is stored compressed while its first subcluster is zeroed.
nbdkit -U - --filter=compress qcow2 t.qcow2 --run 'nbdsh -u "$uri" -c "
S = 65536
for i in range (1500):
    data = bytes ([i % 255 + 1]) * S
    off = i % 8 * S
    h.pwrite (b\"z\" * 2048, off)
    buf = nbd.Buffer.from_bytearray (bytearray (data))
    cookies = [h.aio_pwrite (buf, off), h.aio_zero (2048, off)]
    while cookies:
        if h.aio_command_completed (cookies[0]):
            cookies.pop (0)
        else:
            h.poll (-1)
    assert h.pread (S - 2048, off + 2048) == data[2048:], i
"'
check_image t.qcow2
