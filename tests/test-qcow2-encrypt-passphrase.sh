#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Passphrases directly, asked for, from a file, from a file descriptor; wrong
# ones; none.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
cd "$tmpdir"

requires_lib gnutls
requires_nbdsh

make_data shadow 1M
nbdkit -U - qcow2 t.qcow2 create=true size=1M encrypt=luks passphrase=abc \
       encrypt-iter-time=10 --run 'nbdcopy shadow "$uri"'
echo abc > pw
nbdkit -r -U - qcow2 t.qcow2 passphrase=+pw --run 'nbdcopy "$uri" -' |
    cmp - shadow
nbdkit -r -U - qcow2 t.qcow2 passphrase=-5 --run 'nbdcopy "$uri" -' 5<pw |
    cmp - shadow
rm -f out
"$PYTHON" - <<'EOT'
import os, pty
pid, fd = pty.fork ()
if pid == 0:
    os.execlp ("nbdkit", "nbdkit", "-r", "-U", "-", "qcow2", "t.qcow2",
               "passphrase=-", "--run", "nbdcopy \"$uri\" out")
prompt = b""
while b":" not in prompt:
    prompt += os.read (fd, 1000)
os.write (fd, b"abc\n")
try:
    while os.read (fd, 1000):
        pass
except OSError:                 # the other end is closed
    pass
assert os.waitpid (pid, 0)[1] == 0
EOT
cmp out shadow
expect_fail nbdkit -U - qcow2 t.qcow2 passphrase=abd --run 'exit 3'
expect_message 'passphrase'
expect_fail nbdkit -U - qcow2 t.qcow2 --run 'exit 3'
expect_message 'passphrase='
