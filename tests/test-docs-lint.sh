#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Rules of the house that compilers do not check:
#
# - in a filter, a function that has "int *err" returns -1 only through
#   the helper that sets *err (nbdkit aborts if *err was not set);
# - a variable with a cleanup attribute is initialised where it is
#   declared;
# - a function of the engine that returns an error must have its result
#   used: its declaration says warn_unused_result;
# - no dead code, no notes to self, no lines over 80 columns;
# - each file names its licence;
# - in documents, --run comes with -U -.

source ./functions.sh
set -e

requires "$PYTHON" --version

"$PYTHON" - "$abs_top_srcdir" <<'EOT'
import glob, os, re, sys

top = sys.argv[1]
bad = []

def strip(text):
    """Comments and strings become blanks; lines stay where they are."""
    def blank(m):
        return re.sub(r"[^\n]", " ", m.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text,
                  flags=re.S)

def functions(text):
    """(header, body, line of the body) of each function; nbdkit's style
    has the opening and closing braces in column 0."""
    for m in re.finditer(r"^\{\n.*?^\}", text, flags=re.S | re.M):
        before = text[:m.start()]
        head = before[max(before.rfind("\n}"), before.rfind(";"),
                          before.rfind("\n#")) + 1:]
        yield head, m.group(0), before.count("\n") + 1

def report(path, line, what):
    bad.append("%s:%d: %s" % (os.path.relpath(path, top), line, what))

sources = []
for d in ("common/*", "plugins/*", "filters/*", "tests", "tests/*"):
    sources += glob.glob("%s/%s/*.[ch]" % (top, d))
for path in sorted(sources):
    with open(path) as f:
        raw = f.read()
    text = strip(raw)

    if "SPDX-License-Identifier: BSD-3-Clause" not in raw[:200]:
        report(path, 1, "no SPDX line at the top")
    for n, line in enumerate(raw.splitlines(), 1):
        if len(line) > 80:
            report(path, n, "longer than 80 columns")
        if re.search(r"\b(TODO|FIXME|HACK)\b", line):
            report(path, n, "note to self")
        if re.match(r"\s*#\s*if\s+0\b", line):
            report(path, n, "dead code")
        if line.rstrip() != line:
            report(path, n, "white space at the end of the line")
    for n, line in enumerate(text.splitlines(), 1):
        if "\t" in line:
            report(path, n, "tab")
        # A declaration: "CLEANUP_FREE char *p;" or with the attribute.
        if (re.search(r"^\s+(CLEANUP_\w+|.*__?cleanup(__)?\s*\()", line) and
                re.search(r"[\w\]]\s*;\s*$", line) and "=" not in line and
                not re.match(r"\s*#", line)):
            report(path, n, "cleanup variable is not initialised")

    if "/filters/" not in path:
        continue
    for head, body, line in functions(text):
        if not re.search(r"\bint \*err\b", head):
            continue
        # The helper itself.
        if re.search(r"\b(\w+_)?fail \(int \*err\b", head):
            continue
        for m in re.finditer(r"\breturn\s*\(?\s*-1\b", body):
            n = line + body[:m.start()].count("\n")
            report(path, n, "return -1 in a function that has int *err: "
                   "use the helper that sets it")

# Functions of the engine that return an errno value say so in the header:
# "-errno", "-EIO" and so on in the comment above.
for path in sorted(glob.glob(top + "/common/qcow2/*.h")):
    with open(path) as f:
        raw = f.read()
    for m in re.finditer(r"^extern\s+(?:int|int64_t|ssize_t)\s+(\w+)\s*\("
                         r"[^;]*;", raw, flags=re.M):
        comment = raw[:m.start()].rstrip()
        if not comment.endswith("*/"):
            continue
        comment = comment[comment.rfind("/*"):]
        if not re.search(r"-errno|-E[A-Z]{2,}", comment):
            continue
        if "warn_unused_result" not in m.group(0):
            report(path, raw[:m.start()].count("\n") + 1,
                   "%s returns errors, but not warn_unused_result" %
                   m.group(1))
# Examples with --run have a socket of their own: the port of everybody may
# be that of another server.
for path in (glob.glob(top + "/*.md") + glob.glob(top + "/docs/*.md") +
             glob.glob(top + "/*/*/*.pod")):
    with open(path) as f:
        raw = f.read()
    for m in re.finditer(r"(?:^ +nbdkit .*\\\n)(?:.*\\\n)*.*\n|^ +nbdkit .*\n",
                         raw, flags=re.M):
        if "--run" in m.group(0) and " -U -" not in m.group(0):
            report(path, raw[:m.start()].count("\n") + 1,
                   "--run without -U -")
for b in bad:
    print(b)
sys.exit(1 if bad else 0)
EOT
