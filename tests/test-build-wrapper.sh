#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# The nbdkit that ./run puts first in the PATH gives our modules by path
# and passes everything else on as it is, wherever options stand.

source ./functions.sh
set -e

b="$abs_top_builddir"
q="$b/plugins/qcow2/.libs/nbdkit-qcow2-plugin.so"
f="$b/filters/compress/.libs/nbdkit-compress-filter.so"

# Stands for the real nbdkit, and prints what it was called with.
cat > "$tmpdir/print" <<'EOT'
#!/bin/sh
for a in "$@"; do printf '[%s]' "$a"; done
EOT
chmod +x "$tmpdir/print"
export NBDKIT_PROGRAM="$tmpdir/print"
unset NBDKIT_VALGRIND
if [ "$sanitizers" != "no" ]; then
    skip_if_sanitizers "the shell that is started here is no nbdkit"
fi

check ()
{
    local want="$1" got
    shift
    got="$(nbdkit "$@")"
    if [ "$got" != "$want" ]; then
        echo "nbdkit $*"
        echo "  is    $got"
        echo "  not   $want"
        exit 1
    fi
}

check "[$q][x.qcow2]"                  qcow2 x.qcow2
check "[-fv][$q]"                      -fv qcow2
check "[-U][-][$q][a]"                 -U - qcow2 a
check "[-U-][$q]"                      -U- qcow2
check "[-fvP][qcow2][$q]"              -fvP qcow2 qcow2
check "[-P][qcow2][-r][$q]"            -P qcow2 -r qcow2
check "[-fPqcow2][$q]"                 -fPqcow2 qcow2
check "[-rv][-D][qcow2.x=1][$q]"       -rv -D qcow2.x=1 qcow2
check "[--filter=$f][$q]"              --filter=compress qcow2
check "[--filter][$f][$q]"             --filter compress qcow2
check "[$q][x][--filter=$f]"           qcow2 x --filter=compress
check "[$q][x][--run][a b][-v]"        qcow2 x --run 'a b' -v
check "[--run][qcow2][$q]"             --run qcow2 qcow2
check "[--run=qcow2][$q]"              --run=qcow2 qcow2
check "[--filter=cache][file][qcow2]"  --filter=cache file qcow2
check "[--filter=./compress][$q]"      --filter=./compress qcow2
check "[./qcow2][qcow2]"               ./qcow2 qcow2
check "[--][$q][-v][qcow2]"            -- qcow2 -v qcow2
check "[$q][--][qcow2]"                qcow2 -- qcow2
check "[$q][--help]"                   qcow2 --help
check "[--dump-plugin][$q]"            --dump-plugin qcow2
check "[-i][localhost][-p][1][$q]"     -i localhost -p 1 qcow2
check "[--tls-psk][qcow2][$q]"         --tls-psk qcow2 qcow2
check "[--exit-with-parent][$q]"       --exit-with-parent qcow2
check "[--new-option=1][$q]"           --new-option=1 qcow2
check "[$q][]"                         qcow2 ''

# The exit code is nbdkit's.
printf '#!/bin/sh\nexit 42\n' > "$tmpdir/print"
r=0
nbdkit qcow2 || r=$?
test "$r" -eq 42
