#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# docs/internals.md names every file of the engine, and none that is not
# there.  Names are written in backquotes, with or without .c and .h:
# `refcount`, `commit.c`, `codec.h`.

source ./functions.sh
set -e

requires "$PYTHON" --version

"$PYTHON" - "$abs_top_srcdir" <<'EOT'
import glob, os, re, sys

top = sys.argv[1]
with open(top + "/docs/internals.md") as f:
    text = f.read()
# Within backquotes, words are separated by anything else.
words = set()
for quoted in re.findall(r"`([^`\n]+)`", text):
    words.update(re.findall(r"[\w./{},-]+", quoted))

def expand(word):
    """`geometry.{c,h}` stands for both."""
    m = re.match(r"(.*)\{([^}]*)\}(.*)$", word)
    if not m:
        return [word]
    return [m.group(1) + x + m.group(3) for x in m.group(2).split(",")]

named = set()
for w in words:
    named.update(os.path.basename(x.rstrip(".,")) for x in expand(w))
stems = {re.sub(r"\.[ch]$", "", n) for n in named}

files = set()
for d in ("common/include", "common/utils", "common/codec", "common/qcow2",
          "plugins/qcow2", "filters/*", "tests/crash"):
    for p in glob.glob("%s/%s/*.[ch]" % (top, d)):
        files.add(os.path.basename(p))
engine = set()
for d in ("common/codec", "common/qcow2"):
    for p in glob.glob("%s/%s/*.[ch]" % (top, d)):
        if not os.path.basename(p).startswith("test-"):
            engine.add(os.path.basename(p))
bad = []
for e in sorted(engine):
    if e not in named and re.sub(r"\.[ch]$", "", e) not in stems:
        bad.append("docs/internals.md does not name %s" % e)
for n in sorted(named):
    if (re.search(r"\.[ch]$", n) and n not in files and
            n not in ("config.h", "test-log.c")):
        bad.append("docs/internals.md names %s, which is not there" % n)
for b in bad:
    print(b)
sys.exit(1 if bad else 0)
EOT
