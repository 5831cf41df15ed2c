#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# create=true encrypt=luks: the image has the fields and the length that
# qemu-img gives it; overlays, also on demand; an image whose header asks for
# hours of CPU time is refused, and one that takes seconds holds nobody up.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_lib gnutls
requires_nbdsh
requires jq --version
cd "$tmpdir"

secret=( --object secret,id=s,data=abc )
luks=encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10
ours=( encrypt=luks passphrase=abc encrypt-iter-time=10 )
# What is random, or depends on the speed of the CPU, is left out.
info ()
{
    qemu-img info --output=json "$1" | jq -S '
        del(.filename, ."actual-size", .children, ."full-backing-filename",
            ."format-specific".data.encrypt.uuid,
            ."format-specific".data.encrypt."master-key-iters",
            ."format-specific".data.encrypt.slots[0].iters)'
}

make_data base.raw 1M
while IFS='|' read -r options theirs; do
    rm -f t.qcow2 q.qcow2 data
    nbdkit -U - qcow2 t.qcow2 create=true size=3M "${ours[@]}" $options \
           --run 'nbdcopy base.raw "$uri"'
    image=driver=qcow2,file.filename=t.qcow2,encrypt.key-secret=s
    qemu-img check "${secret[@]}" --image-opts $image
    cp base.raw shadow
    truncate -s 3M shadow
    qemu-img compare "${secret[@]}" --image-opts $image \
             driver=raw,file.filename=shadow
    rm -f t.qcow2 data
    nbdkit -U - qcow2 t.qcow2 create=true size=3M "${ours[@]}" $options \
           --run true
    mv -f data data.ours 2>/dev/null || :
    qemu_create_luks "${secret[@]}" -o "$luks$theirs" q.qcow2 3M
    diff <(info t.qcow2) <(info q.qcow2)
done <<EOT
|
compat=0.10|,compat=0.10
cluster-size=512 refcount-bits=8|,cluster_size=512,refcount_bits=8
cluster-size=2M extended-l2=true|,cluster_size=2M,extended_l2=on
preallocation=metadata|,preallocation=metadata
data-file=data|,data_file=data
EOT

# Overlays on demand, encrypted, on an encrypted golden image.
nbdkit -U - qcow2 golden.qcow2 create=true size=1M "${ours[@]}" \
       --run 'nbdcopy base.raw "$uri"'
mkdir jobs
start_nbdkit -P pid -U "$sock" qcow2 dir=jobs create=true "${ours[@]}" \
             backing-file=../golden.qcow2 backing-format=qcow2
for i in 1 2; do
    nbdcopy "nbd+unix:///job$i?socket=$sock" - | cmp - base.raw
    nbdsh -u "nbd+unix:///job$i?socket=$sock" -c 'h.pwrite(b"find me " * 512, 0)'
done

# Opening an image that takes seconds (here and by its last passphrase) does
# not hold up the others.
nbdkit -U - qcow2 jobs/slow create=true size=1M encrypt=luks passphrase=abc \
       encrypt-iter-time=4000 --run true
rm -f slow.done
{ nbdinfo --size "nbd+unix:///slow?socket=$sock"; touch slow.done; } &
sleep 0.3
nbdsh -u "nbd+unix:///job3?socket=$sock" -c 'h.pwrite(b"x" * 512, 0)'
test ! -e slow.done
# A second client of the same image waits for the first one.
nbdinfo --size "nbd+unix:///slow?socket=$sock"
wait $!
test -e slow.done
stop_nbdkit pid
if grep -q 'find me find me' jobs/job1; then exit 1; fi
for i in 1 2 3; do
    qemu-img check "${secret[@]}" --image-opts \
        driver=qcow2,file.filename=jobs/job$i,encrypt.key-secret=s,backing.driver=qcow2,backing.file.filename=golden.qcow2,backing.encrypt.key-secret=s
done

# A header that asks for 2^32 iterations.
cp golden.qcow2 hostile.qcow2
"$PYTHON" - <<'EOT'
with open("hostile.qcow2", "r+b") as f:
    f.seek(f.read().index(b"LUKS\xba\xbe") + 208 + 4)
    f.write(b"\xff\xff\xff\xff")
EOT
expect_fail timeout 30 nbdkit -U - qcow2 hostile.qcow2 passphrase=abc --run true
expect_message 'iterations: .* seconds'

# A create that fails leaves nothing behind, and no data file that it made.
for options in data-file=made "data-file=made ${ours[*]}"; do
    expect_fail bash -c "ulimit -f 4096; exec nbdkit -U - qcow2 new.qcow2 \
        create=true size=1G preallocation=full $options --run true"
    test ! -e new.qcow2
    test ! -e made
done
echo precious > kept
expect_fail bash -c 'ulimit -f 4096; exec nbdkit -U - qcow2 new.qcow2 \
    create=true size=1G preallocation=full data-file=kept --run true'
test ! -e new.qcow2
head -c 9 kept | cmp - <(echo precious)
