#!/usr/bin/env bash
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Each parameter that the plugin and the filters accept is in their man
# page and in their --help, and these name no other.

source ./functions.sh
set -e

requires "$PYTHON" --version

nbdkit --help qcow2 > "$tmpdir/qcow2.help"
for f in preallocate compress cowmerge; do
    nbdkit --help --filter=$f null > "$tmpdir/$f.help"
done
cd "$abs_top_srcdir"

"$PYTHON" - "$tmpdir" <<'EOT'
import glob, re, sys

bad = []
for kind, name in (("plugin", "qcow2"), ("filter", "preallocate"),
                   ("filter", "compress"), ("filter", "cowmerge")):
    d = "%ss/%s" % (kind, name)
    source = ""
    for p in sorted(glob.glob(d + "/*.c")):
        with open(p) as f:
            source += f.read()
    # Rows of a table { "key", KIND, ... }, and comparisons.
    keys = set(re.findall(r'\{\s*"([a-z][a-z-]*)",\s*[A-Z_]+,', source))
    keys |= set(re.findall(r'strcmp \(key, "([a-z][a-z-]*)"\)', source))
    if not keys:
        bad.append("%s: no parameters found, adapt this test" % d)
    pod_name = "%s/nbdkit-%s-%s.pod" % (d, name, kind)
    with open(pod_name) as f:
        pod = f.read()
    with open("%s/%s.help" % (sys.argv[1], name)) as f:
        help_text = f.read()
    for k in sorted(keys):
        if not re.search(r"(?<![a-z-])B<(\[)?%s=" % k, pod):
            bad.append("%s does not have B<%s=...>" % (pod_name, k))
        if not re.search(r"(?<![a-z-])%s=" % k, help_text):
            bad.append("nbdkit --help: %s does not say %s=" % (name, k))
    for k in re.findall(r"^=item B<(?:\[)?([a-z][a-z-]*)=", pod, flags=re.M):
        if k not in keys:
            bad.append("%s: %s= is no parameter" % (pod_name, k))
for b in bad:
    print(b)
sys.exit(1 if bad else 0)
EOT
