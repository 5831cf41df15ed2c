#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# The matrix of all that changes the write path, each in both directions:
# qemu makes, we change, qemu verifies and changes, we verify; and we make,
# qemu changes, we verify and change, qemu verifies.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh
requires_lib gnutls
requires type -P nbdcopy
source "$abs_top_srcdir/tests/model-functions.sh"
cd "$tmpdir"

size=6M
secret=( --object secret,id=s,data=abc )
model=( "$PYTHON" "$abs_top_srcdir/tests/model.py" --ops $((MODEL_OPS / 3)) )

qemu_makes ()
{
    if [[ "$1" == *encrypt.* ]]; then
        qemu_create_luks "${secret[@]}" -o "$1" t.qcow2 $size
    else
        qemu-img create -q -f qcow2 -o "$1" t.qcow2 $size
    fi
}
we_make ()
{
    nbdkit -U - qcow2 t.qcow2 create=true size=$size "$@" --run true
}
fresh_shadow ()
{
    rm -f t.qcow2 data shadow
    : > shadow
    if [ "$1" = backing ]; then cp base.raw shadow; fi
    truncate -s $size shadow
}
we_change ()
{
    local params=( metadata-cache=2M )
    if [ "$kind" = luks ]; then params+=( passphrase=abc ); fi
    if [ "$kind" = uri ]; then
        truncate -s 12M t.qcow2
        start_nbdkit -P pid -U "$tmpdir/below" file t.qcow2
        params+=( uri="nbd+unix:///?socket=$tmpdir/below" )
    else
        params+=( t.qcow2 )
    fi
    nbdkit -U - $filters qcow2 "${params[@]}" --run "${model[*]} \
        --uri \"\$uri\" --shadow shadow --seed $1 --unit $unit"
    if [ "$kind" = uri ]; then
        stop_nbdkit pid
        rm -f "$tmpdir/below"
    fi
    if [ "$kind" = raw ]; then cmp data shadow; fi
}
verify ()
{
    local params=() args=( -f qcow2 t.qcow2 )
    if [ "$kind" = luks ]; then
        params=( passphrase=abc )
        args=( "${secret[@]}" --image-opts "$luks" )
    fi
    qemu-img check "${args[@]}"
    if [ "$kind" = luks ]; then
        qemu-img compare "${secret[@]}" --image-opts "$luks" \
                 driver=raw,file.filename=shadow
    else
        qemu-img compare -f qcow2 -F raw t.qcow2 shadow
    fi
    model_verify t.qcow2 "${params[@]}"
    own_check t.qcow2
}
luks=driver=qcow2,file.filename=t.qcow2,encrypt.key-secret=s
qemu_changes ()
{
    if [ "$kind" = luks ]; then
        model_qemu_changes "$1" "${secret[@]}" --image-opts "$luks"
    else
        model_qemu_changes "$1" -f qcow2 t.qcow2
    fi
    if [ "$kind" = raw ]; then cmp data shadow; fi
}

make_data base.raw 4000001
seed=1
# kind unit qemu's options|ours|filters
while IFS='|' read -r kind unit theirs ours filters; do
    fresh_shadow "$kind"
    qemu_makes "$theirs"
    we_change $((seed++))
    verify
    qemu_changes $((seed++))
    verify

    fresh_shadow "$kind"
    we_make $ours
    qemu_changes $((seed++))
    verify
    we_change $((seed++))
    verify
done <<EOT
plain|65536|compat=1.1|compat=1.1|
plain|65536|compat=0.10|compat=0.10|
lazy|65536|lazy_refcounts=on|lazy-refcounts=true|
subclusters|2048|extended_l2=on|extended-l2=true|
small|512|cluster_size=512,refcount_bits=1|cluster-size=512 refcount-bits=1|
zstd|4096|compression_type=zstd,cluster_size=4k|compression-type=zstd cluster-size=4k|--filter=compress
zlib|65536|extended_l2=on|extended-l2=true|--filter=cowmerge --filter=compress
backing|65536|backing_file=base.raw,backing_fmt=raw|backing-file=base.raw backing-format=raw|
backing|2048|backing_file=base.raw,backing_fmt=raw,extended_l2=on|backing-file=base.raw backing-format=raw extended-l2=true|--filter=cowmerge
data|65536|data_file=data|data-file=data|
data|2048|data_file=data,extended_l2=on,lazy_refcounts=on|data-file=data extended-l2=true lazy-refcounts=true|
raw|65536|data_file=data,data_file_raw=on|data-file=data data-file-raw=true|
luks|512|encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10|encrypt=luks passphrase=abc encrypt-iter-time=10|
luks|2048|encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10,extended_l2=on,lazy_refcounts=on|encrypt=luks passphrase=abc encrypt-iter-time=10 extended-l2=true lazy-refcounts=true|
luks|4096|encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10,data_file=data|encrypt=luks passphrase=abc encrypt-iter-time=10 data-file=data|
prealloc|65536|preallocation=metadata|preallocation=metadata|--filter=preallocate
EOT
if [ "$have_libnbd" = "yes" ]; then
    kind=uri unit=65536 filters=
    for options in compat=1.1 extended_l2=on; do
        fresh_shadow uri
        qemu_makes $options
        we_change $((seed++))
        verify
        qemu_changes $((seed++))
        verify
    done
fi
