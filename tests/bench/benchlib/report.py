# SPDX-License-Identifier: BSD-3-Clause
"""What is printed, and the tables in Markdown."""

import io
import os
import statistics

from .servers import QEMU, family


def figure(v, unit):
    if unit == "IOPS" and v < 999.5:
        return "%.0f" % v
    if unit == "IOPS":
        return "%.1fk" % (v / 1e3) if v < 99950 else "%.0fk" % (v / 1e3)
    if unit in ("ms", "MiB"):
        return "%.1f %s" % (v, unit)
    if unit == "s":
        return "%.2f s" % v if v >= .1 else "%.1f ms" % (v * 1e3)
    return "%.0f %s" % (v, unit)


def median(samples):
    return statistics.median(s["value"] for s in samples)


def spread(samples):
    """Half the distance of the quartiles, as a part of the median."""
    values = sorted(s["value"] for s in samples)
    if len(values) < 2:
        return 0.0
    q = statistics.quantiles(values, n=4, method="inclusive")
    return (q[2] - q[0]) / 2 / statistics.median(values)


def ratio(wl, a, b):
    """How many times as good A is as B."""
    if wl["lower_is_better"]:
        a, b = b, a
    return a / b if b else float("inf")


def best_qemu(wl):
    """Name of the qemu server with the best median, or None."""
    names = [n for n in wl["servers"] if n in QEMU]
    if not names:
        return None
    key = lambda n: median(wl["servers"][n])
    return min(names, key=key) if wl["lower_is_better"] else \
        max(names, key=key)


def verdict(wl, target):
    """(what was reached, or None when something is absent, reached?)"""
    servers = wl["servers"]
    if target["server"] not in servers:
        return None, None
    got = median(servers[target["server"]])
    if target["against"] == "limit":
        return got, got <= target["factor"]
    against = best_qemu(wl) if target["against"] == "qemu" else \
        target["against"]
    if against not in servers:
        return None, None
    r = ratio(wl, got, median(servers[against]))
    # Compared as printed: two digits after the point are not noise-free.
    return r, round(r, 2) >= round(target["factor"], 2)


def print_workload(wl):
    unit = wl["unit"]
    print("\n%s [%s]" % (wl["title"], wl["name"]))
    q = best_qemu(wl)
    qm = median(wl["servers"][q]) if q else None
    raw = median(wl["servers"]["raw"]) if "raw" in wl["servers"] else None
    for name, samples in wl["servers"].items():
        m = median(samples)
        line = "  %-18s %12s  +-%4.1f%%" % (name, figure(m, unit),
                                            spread(samples) * 100)
        line += "  %5.2fx qemu" % ratio(wl, m, qm) if qm else ""
        line += "  %5.2f raw" % ratio(wl, m, raw) if raw else ""
        last = samples[-1]
        for key, form in (("cpu_us", "  %.1f us CPU"),
                          ("client_cpu_us", "  %.1f us client")):
            if key in last and last[key] < 1e5:
                line += form % statistics.median(s[key] for s in samples)
        if "foreign" in last:
            line += "  %.0f%% other" % (statistics.median(
                s["foreign"] for s in samples) * 100)
        if last.get("peak"):
            line += "  %.0f MiB" % (max(s["peak"] for s in samples) / 2**20)
        if "size" in last:
            line += "  %d bytes out" % last["size"]
        if "grown" in last:
            line += "  %.1f MiB allocated" % (last["grown"] / 2**20)
        print(line)
    for t in wl["targets"]:
        got, ok = verdict(wl, t)
        if got is None:
            continue
        print("  %-4s %s: %.2f, wanted %s %.2f of %s" %
              ("ok" if ok else "MISS", t["server"], got,
               "at most" if t["against"] == "limit" else "at least",
               t["factor"], t["against"]))
    for error in wl.get("errors", ()):
        print("  FAILED " + error)


def summary(results):
    ok = miss = 0
    misses = []
    for wl in results["workloads"].values():
        for t in wl["targets"]:
            got, reached = verdict(wl, t)
            if reached is None:
                continue
            if reached:
                ok += 1
            else:
                miss += 1
                misses.append("  %s: %s %.2f of %s, wanted %.2f" %
                              (wl["title"], t["server"], got, t["against"],
                               t["factor"]))
    print("\n%d targets reached, %d missed" % (ok, miss))
    for m in misses:
        print(m)
    return miss


def _cell(wl, name, unit):
    if name not in wl["servers"]:
        return "-"
    return figure(median(wl["servers"][name]), unit)


def _target_cell(wl, against):
    """Reached and wanted ratio to AGAINST, of the best of our stacks."""
    out = []
    for t in wl["targets"]:
        if t["against"] != against:
            continue
        got, ok = verdict(wl, t)
        if got is not None:
            form = "%s%.2f%s (%.2f)"
            out.append(form % ("" if ok else "**", got, "" if ok else "**",
                               t["factor"]))
    if out:
        return ", ".join(out)
    name = best_qemu(wl) if against == "qemu" else against
    if against != "ours" and "ours" in wl["servers"] and \
            name in wl["servers"]:
        return "%.2f" % ratio(wl, median(wl["servers"]["ours"]),
                              median(wl["servers"][name]))
    return "-"


def rounds(results):
    """How many rounds there were: "5", or "2 to 15"."""
    n = {len(samples) for wl in results["workloads"].values()
         for samples in wl["servers"].values()} or {0}
    return "%d" % min(n) if len(n) == 1 else "%d to %d" % (min(n), max(n))


def disturbance(results):
    """Part of the machine that others used, by the runs that do not write
    (where it would be the kernel's write-back)."""
    parts = [s["foreign"] for wl in results["workloads"].values()
             if "read" in wl["name"]
             for samples in wl["servers"].values()
             for s in samples if "foreign" in s]
    return statistics.median(parts) if parts else 0


def _group_table(rows, f):
    stacks = []
    for wl in rows:
        stacks += [n for n in wl["servers"]
                   if family(n) == "ours" and n not in stacks]
    others = [n for n in ("null", "convert", "qsd-prealloc")
              if any(n in wl["servers"] for wl in rows)]
    compared = ["qemu", "raw"] + [n for n in others if n != "null"]
    head = ["workload"] + stacks + ["best of qemu", "raw"] + others + \
        ["to %s (target)" % n for n in compared]
    if "ours+preallocate" in stacks or "ours+cowmerge" in stacks:
        compared.append("ours")
        head.append("to plain (target)")
    for against in [t["against"] for wl in rows for t in wl["targets"]]:
        if against not in compared + ["ours", "limit"]:
            compared.append(against)
            head.append("to %s (target)" % against)
    f.write("| " + " | ".join(head) + " |\n")
    f.write("|---" * len(head) + "|\n")
    for wl in rows:
        unit, q = wl["unit"], best_qemu(wl)
        row = [wl["title"]] + [_cell(wl, n, unit) for n in stacks]
        row += ["%s (%s)" % (_cell(wl, q, unit), q) if q else "-",
                _cell(wl, "raw", unit)]
        row += [_cell(wl, n, unit) for n in others]
        row += [_target_cell(wl, n) for n in compared]
        f.write("| " + " | ".join(row) + " |\n")


def markdown(results, f):
    """The tables of docs/performance.md."""
    m = results["machine"]
    f.write("%s; %d cores (%s), %s GiB of memory, Linux %s, %s, %s, %s.  "
            "Both nbdkits: `-t %d`.  Medians of %s rounds.\n" %
            (m["date"], m["cores"], m["cpu"], m["memory_gib"], m["kernel"],
             m["filesystem"], m["nbdkit"], m["qemu"], m["nbdkit_threads"],
             rounds(results)))
    part = disturbance(results)
    if part > .05:
        f.write("Other programs used %.0f %% of the machine meanwhile, so "
                "these are no final figures.\n" % (part * 100))
    groups = {}
    for wl in results["workloads"].values():
        if wl["servers"]:
            groups.setdefault(wl["group"], []).append(wl)
    for group, rows in groups.items():
        f.write("\n### %s\n\n" % group.capitalize())
        _group_table(rows, f)
    if results.get("calls"):
        f.write("\n### Host calls per client request\n\n")
        f.write("| workload | server | calls | which |\n|---|---|---|---|\n")
        for title, servers in results["calls"].items():
            for name, counts in servers.items():
                f.write("| %s | %s | %.2f | %s |\n" % (
                    title, name, sum(counts.values()),
                    ", ".join("%s %.3g" % kv for kv in counts.items())))


BEGIN, END = "<!-- begin: bench -->\n", "<!-- end: bench -->\n"


def update_document(results, path):
    """Write the tables to PATH; only between the marks if it has them."""
    buf = io.StringIO()
    markdown(results, buf)
    text = BEGIN + buf.getvalue() + END
    if os.path.exists(path):
        with open(path) as f:
            old = f.read()
        if BEGIN in old and END in old:
            text = old[:old.index(BEGIN)] + text + \
                old[old.index(END) + len(END):]
    with open(path, "w") as f:
        f.write(text)
