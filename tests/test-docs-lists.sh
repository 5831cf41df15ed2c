#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Every source file, test and man page is in a list of its Makefile.am, so
# that it is built, run and part of "make dist".

source ./functions.sh
set -e

cd "$abs_top_srcdir"
r=0
for mk in */Makefile.am */*/Makefile.am; do
    d="${mk%/Makefile.am}"
    for f in "$d"/*.[ch] "$d"/*.sh "$d"/*.pod "$d"/*.syms; do
        if [ ! -f "$f" ]; then continue; fi
        name="${f##*/}"
        # A test of one file may be listed as a program only.
        stem="${name%.c}"
        man="${name%.pod}.1"
        if ! grep -qE "(^|[[:space:]=/])($name|$stem|$man)([[:space:]]|\$)" "$mk"
        then
            echo "$f is not in $mk"
            r=1
        fi
    done
done
for f in docs/*; do
    if ! grep -q "[[:space:]]$f " Makefile.am; then
        echo "$f is not in Makefile.am"
        r=1
    fi
done
for f in $(find common plugins filters tests -name '*.c'); do
    if [ ! -f "$(dirname "$f")/Makefile.am" ]; then
        echo "$(dirname "$f") has no Makefile.am"
        r=1
    fi
done
for f in tests/test-*.sh tests/bench/bench scripts/* .ci/run; do
    if [ -f "$f" ] && [ ! -x "$f" ]; then
        echo "$f is not executable"
        r=1
    fi
done
exit $r
