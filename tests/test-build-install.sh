#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# "make install" puts the modules where nbdkit looks for short names, and
# nothing but the modules there; what was installed can be loaded.

source ./functions.sh
set -e
set -x

requires make --version
requires pkg-config --exists nbdkit
skip_if_sanitizers "modules with a sanitizer are not installed"

# The jobserver of the make that runs this test is not for it.
unset MAKEFLAGS MFLAGS MAKELEVEL
make -C "$abs_top_builddir" install DESTDIR="$tmpdir/root" >"$tmpdir/log" 2>&1 || {
    tail -n 30 "$tmpdir/log"
    exit 1
}

# In "make distcheck", and if told so, they go elsewhere.
plugindir="$($SED -n 's/^plugindir = //p' "$abs_top_builddir/Makefile")"
if [[ "$plugindir" != *'${'* ]]; then
    test "$plugindir" = "$(pkg-config --variable=plugindir nbdkit)"
fi

find "$tmpdir/root" -type f -printf '%f\n' | sort > "$tmpdir/files"
cat "$tmpdir/files"
for f in nbdkit-qcow2-plugin.so nbdkit-preallocate-filter.so \
         nbdkit-compress-filter.so nbdkit-cowmerge-filter.so; do
    grep -x "$f" "$tmpdir/files"
done
if grep -E '\.a$|bench|test-' "$tmpdir/files"; then
    echo "$0: these should not be installed"
    exit 1
fi

plugin="$(find "$tmpdir/root" -name nbdkit-qcow2-plugin.so)"
nbdkit --dump-plugin "$plugin" > "$tmpdir/dump"
grep -x 'name=qcow2' "$tmpdir/dump"
grep -x "path=$plugin" "$tmpdir/dump"
for f in preallocate compress cowmerge; do
    so="$(find "$tmpdir/root" -name nbdkit-$f-filter.so)"
    nbdkit --filter="$so" null --version | grep "^$f "
done
