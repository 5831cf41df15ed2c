#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# A file of the engine includes only files of its own layer or of lower
# ones; in the metadata layer there is an order within the layer too.
# docs/internals.md says what the layers are.  A new file must be added
# here.

source ./functions.sh
set -e

requires "$PYTHON" --version

"$PYTHON" - "$abs_top_srcdir" <<'EOT'
import glob, os, re, sys

# From bottom to top.  Files of one group may include each other.
LAYERS = [
    ("pure: tools", "locks ondisk epoch byteorder codec codec-internal "
                    "codec-deflate codec-zstd "
                    "deflate-probe qcow2-hints scope-lock "
                    "checked-overflow cleanup log library"),
    ("pure: format", "header geometry entry snapshot-table reference"),
    ("storage", "backend backend-file backend-nbd disk-open image-lock "
                "nbd-library"),
    ("metadata: overlap", "overlap"),
    ("metadata: mcache", "mcache"),
    ("metadata: refcount", "refcount"),
    ("metadata: alloc", "alloc"),
    ("metadata: map", "map"),
    ("metadata: commit", "commit"),
    ("data", "inflight ccache crypt io io-data io-read io-write io-cow "
             "io-discard io-extents backing bitmaps"),
    ("core", "core"),
    ("admin: tools", "admin table-list l1-walk bitmaps-resize"),
    ("admin", "create resize snapshot check repair"),
    ("top", "image"),
]
rank = {}
for n, (name, files) in enumerate(LAYERS):
    for f in files.split():
        rank[f] = n

def stem(path):
    return os.path.basename(path).rsplit(".", 1)[0]

def layer(s):
    """Of crypt-luks.h, say: that of crypt, unless it is listed itself."""
    while s not in rank and "-" in s:
        s = s.rsplit("-", 1)[0]
    return rank.get(s)

top = sys.argv[1]
bad = []
dirs = ("common/include", "common/utils", "common/codec", "common/qcow2")
headers = set()
sources = []
for d in dirs:
    for p in sorted(glob.glob("%s/%s/*.[ch]" % (top, d))):
        if not os.path.basename(p).startswith("test-"):
            sources.append(p)
            headers.add(os.path.basename(p))
if not sources:
    sys.exit("no sources found in " + top)
for p in sources:
    name = os.path.relpath(p, top)
    mine = layer(stem(p))
    if mine is None:
        bad.append("%s: which layer does it belong to?" % name)
        continue
    with open(p) as f:
        for n, line in enumerate(f, 1):
            m = re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', line)
            if not m:
                continue
            h = m.group(1)
            if h == "nbdkit-filter.h":
                bad.append("%s:%d: the engine is no filter" % (name, n))
            if h not in headers:
                continue
            theirs = layer(stem(h))
            if theirs is not None and theirs > mine:
                bad.append("%s:%d: (%s) includes %s (%s)" %
                           (name, n, LAYERS[mine][0], h, LAYERS[theirs][0]))
# Of nbdkit the engine knows the two log functions only.
for p in sources:
    with open(p) as f:
        for n, line in enumerate(f, 1):
            for called in re.findall(r"\bnbdkit_\w+(?= \()", line):
                if called not in ("nbdkit_error", "nbdkit_debug"):
                    bad.append("%s:%d: the engine calls %s" %
                               (os.path.relpath(p, top), n, called))

for b in bad:
    print(b)
sys.exit(1 if bad else 0)
EOT
