#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Only commit.c issues barriers: what orders writes is in one file, and
# can be read there.  The exceptions work on files that nobody else sees
# yet or any more, and are named here.

source ./functions.sh
set -e

cd "$abs_top_srcdir/common/qcow2"

# backend-*.c are where the call ends in the host's fsync; disk-open.c
# syncs the directory in which it made a file; create.c makes a file that
# nobody else has opened.
allowed='^(commit|backend|backend-[a-z-]+|disk-open|create|test-[a-z0-9-]+)\.[ch]:'

if grep -nE '\b(backend_flush|fdatasync|fsync|sync_file_range|syncfs) *\(' *.[ch] |
   grep -vE "$allowed" | grep -vE ':[0-9]+: *(/\*| \*)'; then
    echo "$0: these lines issue a barrier outside commit.c"
    exit 1
fi

# The rule is of use only as long as commit.c does it.
if ! grep -q 'backend_flush *(' commit.c; then
    echo "$0: commit.c does not call backend_flush: adapt this test"
    exit 1
fi
