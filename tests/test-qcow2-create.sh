#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# create=true: the image has the fields and the length that qemu-img gives it;
# wrong options and existing files are refused, and leave nothing behind.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires type -P jq
info () { qemu-img info --output=json "$1" | jq -S 'del(.filename, ."actual-size", .children, ."full-backing-filename")'; }

make_data base.raw 3M
qemu-img convert -f raw -O qcow2 base.raw base.qcow2

# ours|qemu's: options
while IFS='|' read -r ours theirs size; do
    rm -f t.qcow2 q.qcow2 data
    nbdkit -U - qcow2 t.qcow2 create=true size=$size $ours --run true
    mv -f data data.ours 2>/dev/null || :
    qemu-img create -q -f qcow2 -o "$theirs" q.qcow2 $size
    if [ -e data.ours ]; then mv data.ours data; fi
    check_image t.qcow2
    diff <(info t.qcow2) <(info q.qcow2)
    test "$(stat -c %s t.qcow2)" = "$(stat -c %s q.qcow2)"
done <<EOT
|compat=1.1|1G
|compat=1.1|0
compat=0.10|compat=0.10|1G
cluster-size=512|cluster_size=512|100M
cluster-size=2M refcount-bits=1|cluster_size=2M,refcount_bits=1|100M
refcount-bits=64|refcount_bits=64|10G
compression-type=zstd|compression_type=zstd|1G
extended-l2=true|extended_l2=on|1G
lazy-refcounts=true|lazy_refcounts=on|1G
preallocation=metadata|preallocation=metadata|100M
preallocation=falloc|preallocation=falloc|100M
preallocation=full|preallocation=full|20M
backing-file=base.qcow2 backing-format=qcow2|backing_file=base.qcow2,backing_fmt=qcow2|10M
backing-file=base.raw backing-format=raw cluster-size=4k|backing_file=base.raw,backing_fmt=raw,cluster_size=4k|1M
data-file=data|data_file=data|10M
data-file=data data-file-raw=true|data_file=data,data_file_raw=on|10M
EOT

# The size of the backing file is the default.
rm -f t.qcow2
nbdkit -U - qcow2 t.qcow2 create=true backing-file=base.qcow2 \
    backing-format=qcow2 --run 'nbdcopy "$uri" -' | cmp - base.raw

# The same requests give the same bytes.
for i in 1 2; do
    rm -f r$i.qcow2
    nbdkit -t 1 -U - qcow2 r$i.qcow2 create=true size=10M \
        --run 'nbdcopy -C 1 -R 1 base.raw "$uri"'
done
cmp r1.qcow2 r2.qcow2

# Refused.
sum="$(md5sum < base.qcow2)"
expect_fail nbdkit -U - qcow2 base.qcow2 create=true size=1M --run true
expect_message 'exist'
test "$sum" = "$(md5sum < base.qcow2)"
while IFS='|' read -r options message; do
    expect_fail nbdkit -U - qcow2 new.qcow2 create=true $options --run true
    expect_message "$message"
    test ! -e new.qcow2
done <<EOT
|size=
size=1M cluster-size=3k|cluster-size
size=1M cluster-size=256|cluster-size
size=1M cluster-size=4M|cluster-size
size=1M refcount-bits=3|refcount-bits
size=1M refcount-bits=128|refcount-bits
size=1M compat=2.0|compat
size=1M compat=0.10 compression-type=zstd|compression-type|compat
size=1M compat=0.10 extended-l2=true|extended-l2
size=1M compat=0.10 lazy-refcounts=true|lazy-refcounts
size=1M compat=0.10 refcount-bits=8|refcount-bits
size=1M extended-l2=true cluster-size=4k|extended-l2
size=1M compression-type=lzo|compression-type
size=1M preallocation=some|preallocation
size=1000T cluster-size=512|size
size=1M data-file-raw=true|data-file
size=1M backing-file=none.qcow2 backing-format=qcow2|none.qcow2
size=1M backing-file=base.raw|backing-format
size=1M backing-file=base.raw backing-format=vmdk|backing-format
size=1M backing-file=base.raw backing-format=raw external=deny|external=deny
size=1M data-file=d.raw external=deny|external=deny
EOT
expect_fail nbdkit -U - qcow2 base.qcow2 size=1M --run true
expect_message 'create=true'
