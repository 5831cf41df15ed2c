#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# The man pages are correct POD and have the sections that nbdkit's have.

source ./functions.sh
set -e

requires type -P podchecker

cd "$abs_top_srcdir"
r=0
for pod in plugins/qcow2/nbdkit-qcow2-plugin.pod \
           filters/preallocate/nbdkit-preallocate-filter.pod \
           filters/compress/nbdkit-compress-filter.pod \
           filters/cowmerge/nbdkit-cowmerge-filter.pod; do
    if ! podchecker -warnings "$pod" 2>"$tmpdir/err" ||
       grep -q WARNING "$tmpdir/err"; then
        cat "$tmpdir/err"
        r=1
    fi
    for section in NAME SYNOPSIS DESCRIPTION EXAMPLES PARAMETERS FILES \
                   VERSION "SEE ALSO" AUTHORS COPYRIGHT; do
        if ! grep -qx "=head1 $section" "$pod"; then
            echo "$pod has no section $section"
            r=1
        fi
    done
    if ! grep -q '^=head2 Limitations' "$pod"; then
        echo "$pod does not speak of limitations"
        r=1
    fi
done
exit $r
