# SPDX-License-Identifier: BSD-3-Clause
"""A bar chart as SVG: each row relative to the better of qemu's servers."""

from xml.sax.saxutils import escape

from .report import best_qemu, median, ratio, rounds

WIDTH, LABEL, BAR, ROW, TOP, BOTTOM = 860, 270, 14, 42, 74, 34
LIMIT = 8.0                     # bars are cut there
COLOURS = {"ours": "#1f6fb5", "raw": "#b9c4cf", "qemu": "#e08e45"}


def rows(results):
    """(label, ours, raw) relative to qemu = 1; raw may be None."""
    out = []
    for wl in results["workloads"].values():
        if not wl.get("chart"):
            continue
        against = best_qemu(wl) or \
            ("convert" if "convert" in wl["servers"] else None)
        # The stack that the row's targets speak of.
        names = [t["server"] for t in wl["targets"]
                 if t["against"] in ("qemu", "convert")] or ["ours"]
        names = [n for n in names if n in wl["servers"]]
        if against is None or not names:
            continue
        base = median(wl["servers"][against])
        ours = max(ratio(wl, median(wl["servers"][n]), base) for n in names)
        raw = ratio(wl, median(wl["servers"]["raw"]), base) \
            if "raw" in wl["servers"] and wl["group"] != "compressed" \
            else None
        out.append((wl["chart"], ours, raw))
    return out


def label(r):
    return "%.0fx" % r if r >= 20 else "%.1fx" % r if r >= 10 else \
        "%.2fx" % r


def _bar(f, y, value, colour, scale, bold):
    cut = value > LIMIT
    w = min(value, LIMIT) * scale
    f.write('<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>\n' %
            (LABEL, y, w, BAR, colour))
    if cut:
        x = LABEL + w - 16
        f.write('<path d="M%.1f %.1f l6 %d l5 0 l-6 %d z" fill="#fff"/>\n' %
                (x, y + BAR + 1, -BAR - 2, BAR + 2))
    # The white outline keeps it readable across the line.
    f.write('<text x="%.1f" y="%.1f" stroke="#fff" stroke-width="3" '
            'paint-order="stroke"%s>%s</text>\n' %
            (LABEL + w + 5, y + BAR - 3,
             ' font-weight="bold"' if bold else ' fill="#667"',
             label(value)))


def write(results, path):
    data = rows(results)
    height = TOP + ROW * len(data) + BOTTOM
    scale = (WIDTH - LABEL - 70) / LIMIT
    m = results["machine"]
    with open(path, "w") as f:
        f.write('<svg xmlns="http://www.w3.org/2000/svg" width="%d" '
                'height="%d" viewBox="0 0 %d %d" font-family="sans-serif" '
                'font-size="12" fill="#222">\n' %
                (WIDTH, height, WIDTH, height))
        f.write('<rect width="100%" height="100%" fill="#fff"/>\n')
        f.write('<text x="14" y="24" font-size="16" font-weight="bold">'
                'Speed relative to the fastest QEMU server (= 1)</text>\n')
        f.write('<text x="14" y="42" fill="#667">%s</text>\n' % escape(
            "%s cores, %s GiB, Linux %s, %s, %s; medians of %s rounds, %s" %
            (m["cores"], m["memory_gib"], m["kernel"],
             m["nbdkit"], (m["qemu"] or "").split(" (")[0], rounds(results),
             m["date"])))
        x = 14
        for key, text in (("ours", "nbdkit qcow2 (this package)"),
                          ("raw", "nbdkit file on a raw image (the limit)"),
                          ("qemu", "QEMU = 1")):
            f.write('<rect x="%d" y="52" width="12" height="12" '
                    'fill="%s"/><text x="%d" y="62">%s</text>\n' %
                    (x, COLOURS[key], x + 17, text))
            x += 40 + 7 * len(text)
        f.write('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s" '
                'stroke-width="2"/>\n' %
                (LABEL + scale, TOP, LABEL + scale, height - BOTTOM,
                 COLOURS["qemu"]))
        for i, (name, ours, raw) in enumerate(data):
            y = TOP + ROW * i + (6 if raw is not None else 6 + BAR / 2)
            f.write('<text x="%d" y="%.1f" text-anchor="end">%s</text>\n' %
                    (LABEL - 8, TOP + ROW * i + 10 + BAR, escape(name)))
            _bar(f, y, ours, COLOURS["ours"], scale, True)
            if raw is not None:
                _bar(f, y + BAR + 2, raw, COLOURS["raw"], scale, False)
        f.write('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s" '
                'stroke-width="1" stroke-dasharray="3 5"/>\n' %
                (LABEL + scale, TOP, LABEL + scale, height - BOTTOM,
                 COLOURS["qemu"]))
        f.write('<text x="14" y="%d" fill="#667">Bars are cut at %dx.  '
                'Longer is better; times and sizes are inverted.</text>\n' %
                (height - 12, LIMIT))
        f.write("</svg>\n")
