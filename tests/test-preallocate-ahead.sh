#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Over the file plugin: space is allocated in large steps, and what was
# not used is given back, so that the file ends up as without the filter.

source ./functions.sh
set -e
set -x

requires_plugin file
requires_filter log
requires_nbdsh

# Sequential, then with gaps, then below the end, then a zero request that
# wants its space to stay.
cat > "$tmpdir/client.py" <<'EOT'
import os
for i in range(400):
    h.pwrite(os.urandom(65536), i * 65536 + 512)
for i in range(50):
    h.pwrite(b"x" * 5000, (40 + i) * 1024 * 1024)
h.pwrite(b"y" * 65536, 1024 * 1024)
h.zero(2 * 1024 * 1024, 95 * 1024 * 1024, nbd.CMD_FLAG_NO_HOLE)
h.flush()
# Before the connection ends.
with open(during, "w") as f:
    f.write(str(os.stat(image).st_blocks))
EOT

for f in no yes; do
    filters=( --filter=log )
    if [ $f = yes ]; then filters=( --filter=preallocate --filter=log ); fi
    truncate -s 1G "$tmpdir/$f.raw"
    nbdkit -f -U - "${filters[@]}" file "$tmpdir/$f.raw" \
           logfile="$tmpdir/$f.log" --run '
        nbdsh -u "$uri" -c "image, during = \"'"$tmpdir/$f.raw"'\", \"'"$tmpdir/$f.during"'\"" \
              -c "exec(open(\"'"$tmpdir/client.py"'\").read())"'
    stat -c %b "$tmpdir/$f.raw" > "$tmpdir/$f.after"
    stat -c %s "$tmpdir/$f.raw"
done

# Steps of 128M: few, whatever the number of writes.  The log has one line
# for each request of at most 32M, and the one that the client sent.
steps="$(grep ' Zero id=' "$tmpdir/yes.log" | grep -c trim=0 || :)"
test "$steps" -ge 5
test "$steps" -le 12

# While it ran there was more than without, and afterwards there is not
# (the file system may need a block more for its own tables).
test "$(cat "$tmpdir/yes.during")" -ge 262144
test "$(cat "$tmpdir/yes.after")" -le $(( $(cat "$tmpdir/no.after") + 64 ))
test "$(stat -c %s "$tmpdir/yes.raw")" -eq 1073741824

# What the client wanted allocated stays allocated.
test "$(cat "$tmpdir/yes.after")" -ge $(( $(cat "$tmpdir/no.after") - 64 ))
