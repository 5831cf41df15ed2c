# SPDX-License-Identifier: BSD-3-Clause
"""The table of workloads, with what is expected of each.

A target says: the figure of SERVER is at least FACTOR times as good as that
of AGAINST in the same run.  AGAINST is a server's name, or "qemu": the
best of the qemu servers, or "limit": the figure itself is at most FACTOR.
"""

import copy

from . import measure
from .images import GIB
from .servers import QEMU

TIB = 1 << 40
ALL = ("ours", "raw") + QEMU


class Target:
    def __init__(self, factor, against="qemu", server="ours"):
        self.factor, self.against, self.server = factor, against, server


class Workload:
    """One row.

    group       what it is part of, for --only
    image       function of Images: dict of paths "qcow2" and "raw"
    load        arguments for nbdload
    requests    a fixed number of them; otherwise it runs for some seconds
    metric      "iops", "mbps" or "seconds" of nbdload's report
    warm_up     arguments for an nbdload run that is not measured
    fresh       the image is made anew for each run
    rounds      at most so many rounds
    extra       server name prefix -> plugin and filter parameters
    chart       label in the chart, or None
    """

    def __init__(self, name, title, group, image, servers=ALL, targets=(),
                 load=(), metric="iops", func=measure.load, requests=None,
                 fresh=False, rounds=None, extra=None, chart=None,
                 warm_up=(), check=False, grows=False, codec=None,
                 compare=False, threads=None):
        self.name, self.title, self.group = name, title, group
        self.image, self.servers, self.targets = image, servers, targets
        self.load, self.metric, self.func = load, metric, func
        self.requests, self.fresh, self.rounds = requests, fresh, rounds
        self.extra = extra or {}
        self.chart, self.warm_up, self.check = chart, warm_up, check
        self.grows, self.codec, self.compare = grows, codec, compare
        self.threads = threads

    @property
    def unit(self):
        if self.func is measure.open_time:
            return "ms"
        if self.func is measure.memory:
            return "MiB"
        if self.func in (measure.nbdcopy_out, measure.compress_in):
            return "MB/s"
        return {"iops": "IOPS", "mbps": "MB/s", "seconds": "s"}[self.metric]

    @property
    def small_pages(self):
        return self.warm_up is WARM_WRITE

    @property
    def lower_is_better(self):
        return self.unit in ("ms", "MiB", "s")

    def extra_for(self, name):
        return self.extra.get(name, ())

    def with_metric(self, metric):
        w = copy.copy(self)
        w.metric = metric
        return w


def _op(op, bs, depth, connections=1, **more):
    argv = ["--op", op, "--bs", bs, "--depth", str(depth)]
    if connections > 1:
        argv += ["--connections", str(connections)]
    for k, v in more.items():
        argv += ["--" + k.replace("_", "-"), str(v)]
    return argv


# Reads: all pages are in the cache anyway; this fills the server's caches.
WARM_READ = ("--op", "randread", "--bs", "4k", "--depth", "16", "--seed", "9",
             "--requests", "20000")
# The same with large requests: the buffers of nbdkit's core are faster if
# there was a large one before (see docs/performance.md).
WARM_READ_1M = ("--op", "read", "--bs", "1M", "--depth", "16",
                "--requests", "256")
# Overwrites touch the first half of the image, made dirty before: the
# first write to a clean page costs the file system more than the server.
PART = "512M"
WARM_WRITE = ("--op", "write", "--bs", "1M", "--depth", "4", "--size", PART)


def _in_place():
    """Reads and overwrites of an image that has all its clusters."""
    out = []
    for name, title, op, bs, depth, q, r, chart in (
            ("randread-4k-d16", "random 4k read, depth 16",
             "randread", "4k", 16, 2.5, .95, "random 4k read, depth 16"),
            ("randread-4k-d1", "random 4k read, depth 1",
             "randread", "4k", 1, 2.3, .95, "random 4k read, depth 1"),
            ("overwrite-4k-d16", "random 4k overwrite, depth 16",
             "randwrite", "4k", 16, 1.9, .95,
             "random 4k overwrite, depth 16"),
            ("overwrite-4k-d1", "random 4k overwrite, depth 1",
             "randwrite", "4k", 1, 2.1, .95, None),
            ("read-1m", "sequential 1M read, depth 16",
             "read", "1M", 16, 1.7, .97, "sequential 1M read"),
            ("overwrite-1m", "sequential 1M overwrite, depth 16",
             "write", "1M", 16, 1.7, .97, "sequential 1M overwrite")):
        write = "write" in op
        out.append(Workload(
            name, title, "in-place",
            (lambda i: i.full()) if write else (lambda i: i.same_pages()),
            load=_op(op, bs, depth, **({"size": PART} if write else {})),
            metric="mbps" if bs == "1M" else "iops",
            warm_up=WARM_WRITE if write else
            WARM_READ_1M if bs == "1M" else WARM_READ,
            check=write, chart=chart,
            targets=(Target(q), Target(r, "raw"))))
    out.append(Workload(
        "chain10-randread-4k", "chain of 10, random 4k read, depth 16",
        "in-place", lambda i: i.chain(10), load=_op("randread", "4k", 16),
        warm_up=WARM_READ, chart="chain of 10, random 4k read",
        targets=(Target(2.3), Target(.9, "raw"))))
    return out


def _matrix():
    out = []
    for op, word in (("randread", "read"), ("randwrite", "overwrite")):
        for depth in (1, 16, 64):
            for conns in (1, 4):
                out.append(Workload(
                    "matrix-%s-d%d-c%d" % (word, depth, conns),
                    "random 4k %s, depth %d, %d connection%s" %
                    (word, depth, conns, "s" * (conns > 1)),
                    "matrix", (lambda i: i.full()) if word == "overwrite"
                    else (lambda i: i.same_pages()),
                    load=_op(op, "4k", depth, conns, size=PART),
                    warm_up=WARM_WRITE if word == "overwrite" else
                    WARM_READ))
    return out


def _allocating():
    fresh = dict(fresh=True, check=True)
    small = lambda i: i.fresh(16 * GIB)
    out = [
        Workload("alloc-rand-4k", "allocating random 4k, depth 16",
                 "allocating", small, load=_op("randwrite", "4k", 16),
                 requests=20000, chart="allocating random 4k",
                 targets=(Target(2.7), Target(.9, "raw")), **fresh),
        Workload("alloc-seq-16k", "allocating sequential 16k, depth 16",
                 "allocating", small, load=_op("write", "16k", 16),
                 requests=40000, chart="allocating sequential 16k",
                 targets=(Target(1.5), Target(.9, "raw")), **fresh),
        Workload("alloc-seq-1m", "allocating sequential 1M, depth 16",
                 "allocating", small, load=_op("write", "1M", 16),
                 requests=1000, metric="mbps",
                 chart="allocating sequential 1M",
                 targets=(Target(1.45), Target(.95, "raw")), **fresh),
        Workload("alloc-flush-d1", "allocating 4k write + flush, depth 1",
                 "allocating", small, load=_op("randwrite-flush", "4k", 1),
                 requests=1500,
                 servers=("ours", "ours+preallocate", "raw") + QEMU +
                 ("qsd-prealloc",), chart="allocating write + flush",
                 targets=(Target(1.5), Target(1.7, "qemu",
                                              "ours+preallocate"),
                          Target(.95, "raw", "ours+preallocate")), **fresh),
        # As many threads as requests in flight, for both nbdkits: with
        # fewer, fewer flushes come together than the name says.
        Workload("write-flush-d16", "overwrite 4k + flush, depth 16, -t 16",
                 "durable", lambda i: i.full(), check=True, threads=16,
                 load=_op("randwrite-flush", "4k", 16), requests=8000,
                 chart="write + flush, depth 16",
                 targets=(Target(5), Target(1.2, "raw"))),
        Workload("write-flush-d16-t4", "overwrite 4k + flush, depth 16",
                 "durable", lambda i: i.full(), check=True,
                 load=_op("randwrite-flush", "4k", 16), requests=4000),
        Workload("write-flush-d1", "overwrite 4k + flush, depth 1",
                 "durable", lambda i: i.full(), check=True,
                 load=_op("randwrite-flush", "4k", 1), requests=1500,
                 targets=(Target(1.0, "raw"),)),
        Workload("fua-d1", "overwrite 4k FUA, depth 1",
                 "durable", lambda i: i.full(), check=True,
                 load=_op("randfua", "4k", 1), requests=1500,
                 chart="FUA overwrite, depth 1",
                 targets=(Target(1.5), Target(1.0, "raw"))),
    ]
    return out


def _preallocate():
    """Filter preallocate: 10000 requests, depth 64, a fresh 16G image."""
    servers = ("ours", "ours+preallocate", "raw", "qemu-nbd", "qsd",
               "qsd-prealloc")
    out = []
    for name, title, op, bs, more in (
            ("seq-16k", "aligned sequential 16k", "write", "16k", {}),
            ("seq-64k-unaligned", "unaligned sequential 64k", "write", "64k",
             {"align_offset": 1024}),
            ("rand-4k", "random 4k allocating", "randwrite", "4k", {})):
        for sync in (0, 64):
            targets = [Target(.97, "ours", "ours+preallocate")]
            if name == "rand-4k" and not sync:
                targets.append(Target(1.3, "qsd-prealloc",
                                      "ours+preallocate"))
            if sync:
                more = dict(more, flush_every=sync)
            out.append(Workload(
                "prealloc-" + name + ("-sync" if sync else ""),
                title + ", depth 64" +
                (", flush every %d" % sync if sync else ""),
                "preallocate", lambda i: i.fresh(16 * GIB), servers=servers,
                load=_op(op, bs, 64, **more),
                requests=10000, fresh=True, check=True, targets=targets))
    return out


def _overlay():
    """Copy-on-write: 2 GiB overlays over a full backing image."""
    servers = ("ours", "ours+cowmerge", "raw") + QEMU
    out = []
    for label, size, n_rand, seq_q, rand_q in (
            ("", 65536, 8000, 2.5, 1.4), ("-1m-clusters", 1 << 20, 1200, 3,
                                          1.3)):
        words = ", 1M clusters" if label else ""
        overlay = lambda i, size=size: i.fresh_overlay(size)
        merge = "ours+cowmerge"
        seq_targets = [Target(seq_q, "qemu", merge)]
        rand_targets = [Target(rand_q, "qemu", merge),
                        Target(.97, "ours", merge)]
        if not label:
            seq_targets.append(Target(1.0, "raw", merge))
            rand_targets.append(Target(1.4))
        out += [
            Workload("overlay-seq-4k" + label,
                     "overlay, sequential 4k write, depth 16" + words,
                     "overlay", overlay, servers=servers,
                     load=_op("write", "4k", 16), requests=130000,
                     fresh=True, check=True, targets=seq_targets,
                     chart=None if label else
                     "overlay, sequential 4k (cowmerge)"),
            Workload("overlay-rand-4k-d1" + label,
                     "overlay, random 4k write, depth 1" + words,
                     "overlay", overlay, servers=servers,
                     load=_op("randwrite", "4k", 1), requests=n_rand,
                     fresh=True, check=True, targets=rand_targets,
                     chart=None if label else "overlay, random 4k, depth 1"),
        ]
    out.append(Workload(
        "overlay-rand-4k-d16", "overlay, random 4k write, depth 16",
        "overlay", lambda i: i.fresh_overlay(65536), servers=servers,
        load=_op("randwrite", "4k", 16), requests=10000, fresh=True,
        check=True, targets=(Target(1.0, "qemu", "ours+cowmerge"),
                             Target(.97, "ours", "ours+cowmerge"))))
    out.append(Workload(
        "overlay-present-4k-d16", "overlay, 4k write of present clusters",
        "overlay", lambda i: i.present_overlay(), servers=servers,
        load=_op("randwrite", "4k", 16, size=PART), warm_up=WARM_WRITE,
        check=True,
        targets=(Target(.98, "ours", "ours+cowmerge"),)))
    return out


def _compressed():
    out = []
    for codec, rand, seq, whole in (("zlib", 5, 7, 3), ("zstd", 2, 3, 2)):
        image = lambda i, codec=codec: i.compressed(codec)
        out += [
            Workload(codec + "-randread-4k",
                     "%s, random 4k read, depth 16" % codec, "compressed",
                     image, load=_op("randread", "4k", 16), warm_up=WARM_READ,
                     targets=(Target(rand),),
                     chart="%s, random 4k read" % codec),
            Workload(codec + "-read-4k",
                     "%s, sequential 4k read, depth 16" % codec,
                     "compressed", image, load=_op("read", "4k", 16),
                     targets=(Target(seq),),
                     chart="%s, sequential 4k read" % codec),
            Workload(codec + "-copy", "%s, nbdcopy of the image" % codec,
                     "compressed", image, func=measure.nbdcopy_out,
                     rounds=3, targets=(Target(whole),),
                     chart="%s, nbdcopy of the image" % codec),
        ]
    return out


def _compress():
    """Filter compress against qemu-img convert."""
    f = "ours+compress"
    level6 = f + ":compress-level=6"
    common = dict(func=measure.compress_in, check=True, rounds=3)
    out = []
    for codec, against in (("zlib", 5), ("zstd", 1.15)):
        out.append(Workload(
            "compress-" + codec, "write compressed, %s" % codec, "compress",
            lambda i: {"raw": i.data600()}, servers=(f, "convert"),
            codec=codec, targets=(Target(against, "convert", f),),
            compare=True, chart="write compressed, %s" % codec, **common))
    out += [
        Workload("compress-zlib-32k", "write compressed, zlib, 32k window",
                 "compress", lambda i: {"raw": i.data600()},
                 servers=(f, "convert"), codec="zlib",
                 extra={f: ("compress-window=32k",)}, compare=True,
                 targets=(Target(5, "convert", f),), **common),
        Workload("compress-filled", "write compressed, 1000 MB of 0xab",
                 "compress", lambda i: {"raw": i.filled()},
                 servers=(f, "convert"), codec="zlib",
                 targets=(Target(6, "convert", f),), **common),
        Workload("compress-noise", "write compressed, 1000 MB of noise",
                 "compress", lambda i: {"raw": i.noise()},
                 servers=(f, "convert"), codec="zlib",
                 targets=(Target(8, "convert", f),), **common),
        Workload("compress-threads", "write compressed, zlib, level 6",
                 "threads", lambda i: {"raw": i.data600()},
                 servers=(level6 + ":compress-threads=1",
                          level6 + ":compress-threads=2"), codec="zlib",
                 targets=(Target(1.8, level6 + ":compress-threads=1",
                                 level6 + ":compress-threads=2"),), **common),
    ]
    return out


def _open():
    first = ["--op", "read", "--requests", "1"]
    return [
        Workload("open-1t", "open 1 TiB, all metadata allocated", "open",
                 lambda i: i.metadata(TIB, "1T"), func=measure.open_time,
                 load=first, rounds=15, chart="open 1 TiB",
                 targets=(Target(1.0), Target(1 / 1.15, "raw"),
                          Target(50, "limit"))),
        Workload("open-chain10", "open a chain of 10", "open",
                 lambda i: i.chain(10), func=measure.open_time, load=first,
                 rounds=15, chart="open a chain of 10",
                 targets=(Target(1.7), Target(1 / 1.15, "raw"))),
        Workload("zero-1t", "zero 1 TiB of an empty image", "open",
                 lambda i: i.fresh(TIB),
                 load=_op("zero", "1G", 1), requests=1024, metric="seconds",
                 servers=("ours", "qemu-nbd", "qsd"), fresh=True, check=True,
                 rounds=2, grows=True, targets=(Target(100),),
                 chart="zero 1 TiB of an empty image"),
        Workload("memory-1t", "peak memory, random 4k reads over 1 TiB",
                 "memory", lambda i: i.metadata(TIB, "1T"),
                 func=measure.memory, load=_op("randread", "4k", 16),
                 requests=60000, rounds=2,
                 targets=(Target(1 / 1.5), Target(64, "limit"))),
        Workload("memory-copy", "peak memory, sequential 1M reads", "memory",
                 lambda i: i.full(), func=measure.memory,
                 load=_op("read", "1M", 16), requests=1024, rounds=2,
                 targets=(Target(1 / 1.5),)),
        Workload("memory-zlib", "peak memory, random 4k reads of zlib",
                 "memory", lambda i: i.compressed("zlib"),
                 func=measure.memory, load=_op("randread", "4k", 16),
                 requests=10000, rounds=2, targets=(Target(1 / 1.5),)),
    ]


def _core():
    """What nbdkit's core costs, whatever the plugin does."""
    out = []
    for name, title, args in (
            ("read-d1", "random 4k read, depth 1",
             _op("randread", "4k", 1)),
            ("read-d16", "random 4k read, depth 16",
             _op("randread", "4k", 16)),
            ("read-1m", "sequential 1M read, depth 16",
             _op("read", "1M", 16))):
        out.append(Workload(
            "core-" + name, title, "core", lambda i: i.same_pages(), load=args,
            metric="mbps" if "1m" in name else "iops",
            servers=("null", "ours", "raw", "qemu-nbd", "qemu-nbd-uring"),
            warm_up=WARM_READ_1M if "1m" in name else WARM_READ))
    out.append(Workload(
        "core-extents", "block status, 16M at a time, chain of 10", "core",
        lambda i: i.chain(10), load=_op("blockstatus", "16M", 1),
        requests=640, servers=("ours", "qemu-nbd", "qemu-nbd-uring")))
    return out


def _clients():
    """Other clients than nbdload: fio's nbd engine, and libnbd."""
    out = []
    for rw, word in (("randread", "read"), ("randwrite", "overwrite")):
        out.append(Workload(
            "fio-" + word, "fio, random 4k %s, depth 16" % word, "clients",
            lambda i: i.full(), func=measure.fio,
            warm_up=WARM_READ if word == "read" else WARM_WRITE,
            load=("--rw=" + rw, "--bs=4k", "--iodepth=16", "--size=" + PART,
                  "--direct=0", "--norandommap")))
    out.append(Workload(
        "nbdcopy-full", "nbdcopy of an uncompressed image", "clients",
        lambda i: i.full(), func=measure.nbdcopy_out))
    return out


def _scale():
    out = []
    for label, size in (("1G", GIB), ("64G", 64 * GIB), ("1T", TIB),
                        ("16T", 16 * TIB)):
        start = (size - GIB) // 2 if size > GIB else 0
        out.append(Workload(
            "scale-local-" + label, "random 4k read, 1 GiB of " + label,
            "scale", lambda i, s=size, l=label: i.local(s, l),
            servers=("ours", "qemu-nbd"), warm_up=WARM_READ,
            load=_op("randread", "4k", 16, offset=start,
                     size=GIB - 65536)))
    out.append(Workload(
        "scale-uniform-1T", "random 4k read, all of 1T", "scale",
        lambda i: i.metadata(TIB, "1T"), servers=("ours", "qemu-nbd"),
        warm_up=WARM_READ, load=_op("randread", "4k", 16)))
    for n in (1, 10, 50):
        out.append(Workload(
            "scale-chain-%d" % n, "random 4k read, chain of %d" % n, "scale",
            lambda i, n=n: i.chain(n), servers=("ours", "raw", "qemu-nbd"),
            warm_up=WARM_READ, load=_op("randread", "4k", 16)))
    for t in (1, 2, 4, 8, 16):
        out.append(Workload(
            "scale-threads-%d" % t, "random 4k read, nbdkit -t %d" % t,
            "scale", lambda i: i.same_pages(), servers=("ours", "raw"),
            warm_up=WARM_READ, load=_op("randread", "4k", 16), threads=t))
    return out


def all_workloads():
    return (_in_place() + _allocating() + _overlay() + _compressed() +
            _compress() + _open() + _preallocate() + _core() + _clients() +
            _matrix() + _scale())
