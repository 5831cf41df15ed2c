#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# How tests are run: exit codes are kept, a hang is a failure, and an
# nbdkit that does not end cleanly fails the test that started it.

source ./functions.sh
set -e
set -x

run="$abs_top_builddir/run"
unset NBDKIT_VALGRIND

exit_code ()
{
    local r=0
    "$@" >"$tmpdir/out" 2>&1 || r=$?
    cat "$tmpdir/out"
    echo "code $r" >> "$tmpdir/out"
}

for code in 0 1 77 99; do
    exit_code "$run" --test sh -c "exit $code"
    grep -x "code $code" "$tmpdir/out"
done

exit_code env TEST_TIMEOUT=1 "$run" --test sleep 60
grep 'still running' "$tmpdir/out"
grep -x 'code 1' "$tmpdir/out"

# Tests in miniature, run in a directory with a functions.sh.
mkdir "$tmpdir/t"
cp functions.sh "$tmpdir/t"
cd "$tmpdir/t"

cat > test-ok.sh <<'EOT'
source ./functions.sh
set -e
start_nbdkit -P "$tmpdir/pid" -U "$sock" null 1M
test "$(nbdkit --version | cut -d' ' -f1)" = nbdkit
stop_nbdkit "$tmpdir/pid"
start_nbdkit -P "$tmpdir/pid" -U "$tmpdir/sock2" null 1M
echo "directory $tmpdir"
EOT
exit_code "$run" --test bash ./test-ok.sh
grep -x 'code 0' "$tmpdir/out"
# Nothing is left.
d="$($SED -n 's/^directory //p' "$tmpdir/out")"
test -n "$d"
test ! -e "$d"

# An nbdkit that fails at its end.
cat > test-end.sh <<'EOT'
source ./functions.sh
set -e
nbdkit ()
{
    pidfile="$3"
    exec bash -c 'trap "exit 3" TERM; echo $$ > "$0"; while :; do sleep 0.1; done' "$pidfile"
}
start_nbdkit -P "$tmpdir/pid" -U "$sock" null 1M
EOT
exit_code bash ./test-end.sh
grep 'ended with code 3' "$tmpdir/out"
grep -x 'code 1' "$tmpdir/out"

cat > test-start.sh <<'EOT'
source ./functions.sh
set -e
start_nbdkit -P "$tmpdir/pid" -U "$sock" null size=none
EOT
exit_code bash ./test-start.sh
grep 'did not start' "$tmpdir/out"
grep -x 'code 1' "$tmpdir/out"

cat > test-kill.sh <<'EOT'
source ./functions.sh
set -e
start_nbdkit -P "$tmpdir/pid" -U "$sock" null 1M
kill_nbdkit "$tmpdir/pid"
expect_fail sh -c 'echo reason >&2; exit 1'
expect_message '^rea'
EOT
exit_code bash ./test-kill.sh
grep -x 'code 0' "$tmpdir/out"

# Skips: a package that is missing is a failure in continuous integration.
cat > test-skip.sh <<'EOT'
source ./functions.sh
set -e
requires no-such-program
EOT
exit_code env CI= bash ./test-skip.sh
grep 'skipped: prerequisite is missing or not working: no-such-program' "$tmpdir/out"
grep -x 'code 77' "$tmpdir/out"
exit_code env CI=true bash ./test-skip.sh
grep -x 'code 1' "$tmpdir/out"
