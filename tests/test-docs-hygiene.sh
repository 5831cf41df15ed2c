#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Nothing in the repository depends on, or speaks of, the machine on which
# it was written: no absolute paths of a home or working directory, no
# addresses of private hosts.  Generated files are not committed, and
# commits that were meant to be squashed are not there.

source ./functions.sh
set -e

cd "$abs_top_srcdir"
requires git --version
if ! git rev-parse --git-dir >/dev/null 2>&1; then
    skip "not in a git repository"
fi

r=0

private='(^|[^A-Za-z0-9_.$}/*-])/(home|root|Users|work|workspace|builds)/[A-Za-z0-9]'
hosts='https?://([0-9]{1,3}\.){3}[0-9]{1,3}|https?://[a-z0-9.-]+\.(internal|local|lan|corp)\b'
# This file has the patterns themselves.
if git grep -nIE -e "$private" -e "$hosts" -- . ':!tests/test-docs-hygiene.sh'
then
    echo "$0: paths or hosts of somebody's machine"
    r=1
fi

if git ls-files | grep -E '(^|/)(Makefile\.in|configure|config\.status|aclocal\.m4|.*\.(o|lo|la|so|log|trs|pyc|orig|rej))$'
then
    echo "$0: generated files are committed"
    r=1
fi

if git log --format='%h %s' | grep -E '^[0-9a-f]+ (fixup!|squash!|amend!|WIP\b|wip\b|tmp\b)'; then
    echo "$0: commits that were not meant to stay"
    r=1
fi
if git log --no-merges --format='%h %s' |
   awk 'length($0) > 100 { print; bad = 1 } END { exit !bad }'; then
    echo "$0: first lines of commit messages that are too long"
    r=1
fi

exit $r
