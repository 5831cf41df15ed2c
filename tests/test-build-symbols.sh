#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# The plugin and the filters export only what nbdkit and each other look
# up: nbdkit loads plugins RTLD_GLOBAL, so that any other symbol could
# take the place of one in another module.

source ./functions.sh
set -e

requires nm --version
skip_if_sanitizers "their own symbols are exported too"

r=0
exported ()
{
    nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }' | sort
}

check ()
{
    local so="$1" allowed="$2" needed="$3" syms n

    syms="$(exported "$so")"
    for n in $needed; do
        if ! grep -qx "$n" <<<"$syms"; then
            echo "$so does not export $n"
            r=1
        fi
    done
    # mangle_path is gcov's.
    if grep -vxE "$allowed|mangle_path" <<<"$syms"; then
        echo "$so exports these symbols, which should be hidden"
        r=1
    fi
}

check "$abs_top_builddir/plugins/qcow2/.libs/nbdkit-qcow2-plugin.so" \
      'plugin_init|nbdkit_qcow2_hints|qcow2_debug_[a-z0-9_]+' \
      'plugin_init nbdkit_qcow2_hints'
for f in preallocate compress cowmerge; do
    check "$abs_top_builddir/filters/$f/.libs/nbdkit-$f-filter.so" \
          "filter_init|${f}_debug_[a-z0-9_]+" filter_init
done
exit $r
