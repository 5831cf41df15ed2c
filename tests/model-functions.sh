# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# For the test-qcow2-model-*.sh scripts: run model.py over one kind of image,
# then let qemu-img have the last word.

# MODEL_OPS: operations in each run; set it higher for a long run.
: "${MODEL_OPS:=1500}"

# model_image SIZE BACKING_SIZE OPTIONS...
# Make t.qcow2 with qemu-img in the current directory, over a full backing
# file of BACKING_SIZE bytes (0 = none), and `shadow' with its content.
model_image ()
{
    local size="$1" backing="$2" args=()
    shift 2

    rm -f t.qcow2 base.qcow2 shadow
    : > shadow
    if [ "$backing" -gt 0 ]; then
        make_data shadow "$backing"
        qemu-img convert -f raw -O qcow2 shadow base.qcow2
        args=( -b base.qcow2 -F qcow2 )
    fi
    # Also if the backing file is longer.
    truncate -s "$size" shadow
    qemu-img create -q -f qcow2 "${args[@]}" "$@" t.qcow2 "$size"
}

# model_run SEED UNIT [nbdkit options...]
# Hammer t.qcow2 (MODEL_IMAGE), then check and compare.
model_run ()
{
    local seed="$1" unit="$2"
    shift 2

    nbdkit -U - "$@" qcow2 t.qcow2 metadata-cache=2M \
           --run "$PYTHON $abs_top_srcdir/tests/model.py --uri \"\$uri\" \
                  --shadow shadow --seed $seed --ops $MODEL_OPS \
                  --unit $unit $MODEL_ARGS"
    check_image t.qcow2
    if [ "$MODEL_COMPARE" != "no" ]; then
        qemu-img compare -f qcow2 -F raw t.qcow2 shadow
    fi
}

# The cookie that a snapshot or backing file must not lose.
model_checksum ()
{
    qemu-img convert -f qcow2 -O raw "$@" checksum.raw
    md5sum < checksum.raw
    rm checksum.raw
}

# model_qemu_changes SEED QEMU-IO-ARGS...
# Random writes and zeroes by qemu-io, to the image that the arguments
# describe, and to the shadow.
model_qemu_changes ()
{
    local seed="$1" commands=() size i off len
    shift

    size="$(stat -c %s shadow)"
    RANDOM="$seed"
    for i in {1..25}; do
        off=$(( (RANDOM * 32768 + RANDOM) % size ))
        len=$(( (RANDOM % 4 ? 8192 : 300000) * (RANDOM % 100 + 1) / 100 + 1 ))
        if [ $len -gt $((size - off)) ]; then len=$((size - off)); fi
        if [ $((RANDOM % 4)) -eq 0 ]; then
            commands+=( -c "write -z $off $len" )
        else
            commands+=( -c "write -P $((RANDOM % 256)) $off $len" )
        fi
    done
    qemu-io "${commands[@]}" "$@" > qemu-io.log
    qemu-io "${commands[@]}" -f raw shadow > qemu-io.log
}

# model_verify [nbdkit options and parameters...]
# What we serve is what the shadow has.
model_verify ()
{
    nbdkit -r -U - qcow2 "$@" --run 'nbdcopy "$uri" -' | cmp - shadow
}
