#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Over another plugin, or one of another version, the filter refuses to
# start and says why.  Wrong parameters are refused too.

source ./functions.sh
set -e
set -x

expect_fail nbdkit --filter=cowmerge null
expect_message "needs nbdkit-qcow2-plugin below it"
expect_fail nbdkit --filter=cowmerge --filter=log memory 1M logfile=/dev/null
expect_message "needs nbdkit-qcow2-plugin below it"

plugin=.libs/cowmerge-test-plugin.so
expect_fail nbdkit --filter=cowmerge $plugin version=7
expect_message "different versions .hints 1 and 7."

# In the wrong order nothing would be compressed.
expect_fail nbdkit --filter=compress --filter=cowmerge $plugin
expect_message "put --filter=cowmerge before --filter=compress"
nbdkit -U - --filter=cowmerge --filter=compress $plugin --run true

for arg in cowmerge-max=0 cowmerge-max=x \
           cowmerge-delay=-1 cowmerge-delay=x cowmerge-delay= \
           cowmerge-read-gap=33M cowmerge-read-gap=x; do
    expect_fail nbdkit -U - --filter=cowmerge $plugin $arg --run true
    expect_message "${arg%%=*}|could not parse|empty"
done
nbdkit -U - --filter=cowmerge $plugin cowmerge-max=1G cowmerge-delay=0 \
       cowmerge-read-gap=0 --run true

# Where it cannot work it says so, and passes everything.
requires_nbdsh
check ()
{
    nbdkit -U - --filter=cowmerge "$@" \
           --run 'nbdsh -u "$uri" -c "
h.pwrite(b\"a\" * 10, 100)
h.flush()
assert h.pread(12, 99)[1:11] == b\"a\" * 10
"' 2>&1 | tee "$tmpdir/err"
}
requires_filter multi-conn
requires_filter noextents
check $plugin cowmerge-max=60k
expect_message "writes are not merged: cowmerge-max is too small"
check --filter=multi-conn $plugin multi-conn-mode=disable
expect_message "writes are not merged: .*multi-conn"
check --filter=noextents $plugin
expect_message "writes are not merged: .*no extents"
# But not to those who cannot write.
nbdkit -r -U - --filter=cowmerge $plugin cowmerge-max=60k \
       --run 'nbdsh -u "$uri" -c "h.pread(512, 0)"' 2> "$tmpdir/err"
if grep "not merged" "$tmpdir/err"; then exit 1; fi
