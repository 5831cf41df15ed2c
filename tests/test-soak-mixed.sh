#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# A short soak: clients that write, read and are killed, a reader of a
# snapshot, and a shadow.  "make -C tests soak" does the same for half an
# hour; see recorder/soak.py.

source ./functions.sh
set -e
set -x

requires_plugin qcow2
requires_qemu_img
requires_nbdsh

"$PYTHON" "$abs_top_srcdir/tests/recorder/soak.py" --minutes 0.3 --clients 4
"$PYTHON" "$abs_top_srcdir/tests/recorder/soak.py" --minutes 0.1 --clients 4 \
          --stack plain
