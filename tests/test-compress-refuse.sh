#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# What cannot be compressed is refused by name, and so are parameters out
# of range.

source ./functions.sh
set -e
set -x

plugin=./.libs/hints-test-plugin.so
requires test -f $plugin
requires_plugin null
requires_nbdsh
requires_qemu_img

expect_fail nbdkit -f -U - --filter=compress null --run true
expect_message 'works only over the qcow2 plugin'
expect_fail nbdkit -f -U - --filter=compress $plugin version=9 --run true
expect_message 'not of the same version'

for p in compress-threads=0 compress-threads=257 compress-threads=x \
         compress-level=0 compress-level=23 compress-level=x \
         compress-window=8k compress-window=x; do
    expect_fail nbdkit -f -U - --filter=compress $plugin $p --run true
    expect_message "${p%=*}|could not parse"
done

# A plugin that opens its image before it serves refuses to start.
expect_fail nbdkit -f -U - --filter=compress $plugin refuse=true --run true
expect_message 'cannot take compressed clusters'

# refused message qcow2-parameters...: at start, on connect, or by the
# first write, but never silently.
refused ()
{
    local _message="$1"
    shift
    expect_fail nbdkit -f -U - --filter=compress qcow2 "$@" \
                --run 'nbdsh -u "$uri" -c "h.pwrite(b\"x\" * 131072, 0)"'
    expect_message "$_message"
}

refused 'level 12 is out of range.*zlib' \
        "$tmpdir/a.qcow2" create=true size=1M compress-level=12
qemu-img create -f qcow2 -o data_file="$tmpdir/data" "$tmpdir/b.qcow2" 1M
refused 'external data file' "$tmpdir/b.qcow2"
# Version 2 knows zlib only: there is no image with zstd to be refused.
refused 'compression-type=zstd needs compat=1.1' \
        "$tmpdir/c.qcow2" create=true size=1M compat=0.10 \
        compression-type=zstd
test ! -e "$tmpdir/c.qcow2"
qemu-img create -f qcow2 -o compat=0.10 "$tmpdir/c.qcow2" 1M
refused 'level 12 is out of range.*zlib' "$tmpdir/c.qcow2" compress-level=12
if [ "$have_gnutls" = "yes" ]; then
    qemu_create_luks --object secret,id=s,data=abc \
             -o encrypt.format=luks,encrypt.key-secret=s \
             -o encrypt.iter-time=10 "$tmpdir/d.qcow2" 1M
    printf abc > "$tmpdir/key"
    refused 'encrypted image' "$tmpdir/d.qcow2" passphrase=+"$tmpdir/key"
fi

# Reading needs no compressing.
nbdkit -f -r -U - --filter=compress qcow2 "$tmpdir/b.qcow2" \
       --run 'nbdsh -u "$uri" -c "assert h.pread(512, 0) == bytes(512)"'
