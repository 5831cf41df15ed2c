# SPDX-License-Identifier: BSD-3-Clause
"""How one workload is measured on one server, once.

Each function returns a sample: a dict whose "value" is the figure that is
compared, beside what else is worth knowing (peak memory, CPU time,
latencies).
"""

import json
import os
import subprocess
import time

from .context import Failed, Missing, run
from .images import remove
from .servers import Server, family, nbdkit_argv


FIRST_READ = ("--op", "read", "--requests", "1")


def nbdload_argv(ctx, socket, args, seconds=None):
    argv = [ctx.nbdload, "--socket", socket, "--wait", "20000", "--json"]
    if seconds:
        argv += ["--seconds", str(seconds)]
    return argv + list(args)


def client(ctx, server, argv):
    """Run a client of SERVER to its end and return what it printed."""
    p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True)
    if p.returncode != 0:
        raise Failed("%s: %s: %s | server: %s" %
                     (server.name, os.path.basename(argv[0]),
                      (p.stdout + p.stderr).strip()[-300:],
                      server.messages()))
    return p.stdout


def check(ctx, name, image):
    """What our server wrote must satisfy qemu-img."""
    if family(name) == "ours":
        run(["qemu-img", "check", "-q", image["qcow2"]])


def busy_seconds():
    """CPU time that the whole machine spent on anything so far."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:]]
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


def allocated(path):
    return os.stat(path).st_blocks * 512


def load(ctx, images, wl, name):
    """nbdload against a server.

    "foreign" is the part of the machine that neither the server nor the
    client used: other programs, and the kernel's write-back.
    """
    image = wl.image(images)
    seconds = None if wl.requests else ctx.seconds
    args = list(wl.load)
    if wl.requests:
        args += ["--requests", str(wl.requests)]
    with Server(ctx, name, image, wl.extra_for(name),
                threads=wl.threads) as server:
        client(ctx, server, nbdload_argv(ctx, server.socket,
                                         wl.warm_up or FIRST_READ))
        before, busy = server.sample()[1], busy_seconds()
        start = time.monotonic()
        r = json.loads(client(ctx, server, nbdload_argv(
            ctx, server.socket, args, seconds)))
        server.sample()
        busy = busy_seconds() - busy - (server.cpu - before) - \
            r["cpu_seconds"]
        foreign = busy / (time.monotonic() - start) / os.cpu_count()
    if wl.check:
        check(ctx, name, image)
    sample = {
        "value": r[wl.metric],
        "peak": server.peak,
        "cpu_us": (server.cpu - before) * 1e6 / max(r["requests"], 1),
        "client_cpu_us": r["cpu_seconds"] * 1e6 / max(r["requests"], 1),
        "latency_us": r["latency_us"],
        "close_seconds": server.close_seconds,
        "foreign": foreign,
    }
    if wl.grows:
        sample["grown"] = allocated(
            image["raw" if family(name) == "raw" else "qcow2"])
    return sample


def fio(ctx, images, wl, name):
    """fio's nbd engine, as a second opinion on nbdload."""
    ctx.require("fio")
    if "nbd" not in run(["fio", "--enghelp"]).split():
        raise Missing("fio's nbd engine")
    image = wl.image(images)
    with Server(ctx, name, image, wl.extra_for(name)) as server:
        client(ctx, server, nbdload_argv(ctx, server.socket,
                                         wl.warm_up or FIRST_READ))
        out = client(ctx, server, [
            "fio", "--output-format=json", "--name=bench", "--ioengine=nbd",
            "--uri=nbd+unix:///?socket=" + server.socket, "--time_based",
            "--runtime=%g" % max(ctx.seconds, 1)] + list(wl.load))
        server.sample()
    job = json.loads(out[out.index("{"):])["jobs"][0]
    return {"value": job["read"]["iops"] + job["write"]["iops"],
            "peak": server.peak}


def memory(ctx, images, wl, name):
    """Peak memory under a load, in MiB."""
    sample = load(ctx, images, wl.with_metric("iops"), name)
    sample["iops"] = sample["value"]
    sample["value"] = sample["peak"] / 2**20
    return sample


def open_time(ctx, images, wl, name):
    """Milliseconds from the start of the server to its first reply."""
    image = wl.image(images)
    sock = ctx.path("s.sock")
    remove(sock)
    # The client is there first, so that its own start is not measured.
    p = subprocess.Popen(nbdload_argv(ctx, sock, wl.load),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True)
    time.sleep(0.05)
    with Server(ctx, name, image, wl.extra_for(name)) as server:
        out, err = p.communicate()
        if p.returncode != 0:
            raise Failed("%s: %s | server: %s" %
                         (name, err.strip(), server.messages()))
        server.sample()
    end_ns = json.loads(out)["end_ns"]
    return {"value": (end_ns - server.start_ns) / 1e6, "peak": server.peak}


def nbdcopy_out(ctx, images, wl, name):
    """nbdcopy of the whole image to nowhere, MB/s."""
    ctx.require("nbdcopy")
    image = wl.image(images)
    with Server(ctx, name, image, wl.extra_for(name)) as server:
        client(ctx, server,
               nbdload_argv(ctx, server.socket,
                            FIRST_READ))
        start = time.monotonic()
        client(ctx, server, ["nbdcopy", "nbd+unix:///?socket=" +
                             server.socket, "null:"])
        seconds = time.monotonic() - start
        server.sample()
    return {"value": os.path.getsize(image["raw"]) / seconds / 1e6,
            "peak": server.peak,
            "cpu_us": server.cpu * 1e6}


def _timed(argv, env=None):
    """Seconds, CPU seconds and peak memory of a command and its children."""
    start = time.monotonic()
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=env) as p:
        out = p.stdout.read()
        _, status, ru = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode != 0:
        raise Failed("%s: exit status %d: %s" %
                     (argv[0], p.returncode,
                      out.decode(errors="replace").strip()[-500:]))
    return time.monotonic() - start, ru.ru_utime + ru.ru_stime, \
        ru.ru_maxrss * 1024


def compress_in(ctx, images, wl, name):
    """A whole disk written compressed, MB/s, the end of the server included.

    The copy of our server is `nbdcopy' through the compress filter; the
    other one is `qemu-img convert -c -W -m 16'.
    """
    ctx.require("qemu-img", "nbdcopy")
    source = wl.image(images)["raw"]
    images.warm(source)
    out = ctx.path("out.qcow2")
    remove(out)
    if name == "convert":
        argv = ["qemu-img", "convert", "-q", "-c", "-W", "-m", "16", "-f",
                "raw", "-O", "qcow2", "-o", "compression_type=" + wl.codec,
                source, out]
    else:
        argv = nbdkit_argv(ctx, name, {"qcow2": out},
                           ["create=true",
                            "size=%d" % os.path.getsize(source),
                            "compression-type=" + wl.codec] +
                           list(wl.extra_for(name)), None)
        argv += ["--run", "nbdcopy %s \"$uri\"" % source]
    seconds, cpu, peak = _timed(argv)
    size = os.path.getsize(out)
    if wl.check:
        run(["qemu-img", "check", "-q", out])
    if wl.compare and name != "convert":
        run(["qemu-img", "compare", "-q", "-f", "raw", "-F", "qcow2", source,
             out])
    remove(out)
    return {"value": os.path.getsize(source) / seconds / 1e6, "size": size,
            "cpu_seconds": cpu, "peak": peak}
