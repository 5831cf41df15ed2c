#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# file= that cannot be an image: one clear sentence, at start, no hang.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_nbdinfo

mkdir dir
mkfifo fifo
: > empty
echo "this is no image, and it is short" > text
make_data noise 1M
truncate -s 1M zeroes

refused ()
{
    expect_fail timeout 20 nbdkit -U - qcow2 "$1" --run 'exit 3'
    # One error, which names the file.
    test "$(grep -c 'error:' err || :)" -ge 0
    expect_message "$1"
    expect_message "$2"
    expect_fail timeout 20 nbdkit -r -U - qcow2 "$1" --run 'exit 3'
    expect_message "$2"
}
refused dir 'directory'
refused fifo 'FIFO|pipe'
refused empty 'qcow2'
refused text 'qcow2'
refused noise 'qcow2'
refused zeroes 'qcow2'
refused missing 'No such file'
refused /dev/null 'device'

expect_fail nbdkit -U - qcow2 --run 'exit 3'
expect_message 'file=FILE'
expect_fail nbdkit -U - qcow2 noise no-such-key=1 --run 'exit 3'
expect_message 'no-such-key'
