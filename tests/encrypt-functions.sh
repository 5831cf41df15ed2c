# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# For the tests of encrypted images, after functions.sh.

source "$abs_top_srcdir/tests/model-functions.sh"

secret=( --object secret,id=s,data=abc )
luks=encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=50

# check IMAGE RAW: qemu finds no errors, and the content of RAW.  opts IMAGE is
# the test's: it prints QEMU's options of the image.
check ()
{
    qemu-img check "${secret[@]}" --image-opts "$(opts $1)"
    qemu-img compare "${secret[@]}" --image-opts "$(opts $1)" \
             driver=raw,file.filename=$2
}

# model IMAGE SHADOW
model ()
{
    nbdkit -U - qcow2 $1 passphrase=abc --run "$PYTHON \
        $abs_top_srcdir/tests/model.py --uri \"\$uri\" --shadow $2 \
        --ops $((MODEL_OPS / 3)) --unit 512"
}
