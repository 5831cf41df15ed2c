# SPDX-License-Identifier: BSD-3-Clause
"""Host calls per client request, counted with strace.

The server runs under strace with file names; each call on an image, its
backing file or a raw file is counted.  What the server does at start and
at close is measured by a run of one request, and taken off.
"""

import os
import re

from .measure import client, nbdload_argv
from .servers import Server
from .workloads import _op
from .images import GIB

CALLS = ("pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2",
         "fallocate", "ftruncate", "fdatasync", "fsync", "lseek")
LINE = re.compile(r"^(?:\d+ +)?(\w+)\(\d+<([^>]*)>")


def traces():
    """(title, image, servers, load, requests, target for one server)"""
    fresh = lambda i: i.fresh(16 * GIB)
    overlay = lambda i: i.fresh_overlay(65536)
    return [
        ("random 4k read", lambda i: i.full(), ("ours", "qemu-nbd"),
         _op("randread", "4k", 16), 5000, None),
        ("overwrite 4k", lambda i: i.full(), ("ours", "qemu-nbd"),
         _op("randwrite", "4k", 16), 5000, None),
        ("allocating random 4k", fresh,
         ("ours", "ours+preallocate", "qemu-nbd", "qsd-prealloc"),
         _op("randwrite", "4k", 16), 10000, ("ours+preallocate", 1.05)),
        ("allocating 4k + flush", fresh,
         ("ours", "ours+preallocate", "qemu-nbd"),
         _op("randwrite-flush", "4k", 1), 1000, None),
        ("overlay, random 4k", overlay, ("ours", "ours+cowmerge",
                                         "qemu-nbd"),
         _op("randwrite", "4k", 1), 8000, ("ours+cowmerge", 2.0)),
        ("overlay, sequential 4k", overlay, ("ours", "ours+cowmerge",
                                             "qemu-nbd"),
         _op("write", "4k", 16), 16000, ("ours+cowmerge", .07)),
    ]


def count_log(path):
    counts = {}
    with open(path, errors="replace") as f:
        for line in f:
            m = LINE.match(line)
            if not m or m.group(1) not in CALLS:
                continue
            name = os.path.basename(m.group(2))
            if name.endswith(" (deleted)"):
                name = name[:-10]
            if not name.endswith((".qcow2", ".raw")):
                continue
            kind = "image" if name.startswith("fresh") else "backing" \
                if name.startswith("backing") else "image"
            key = (kind, m.group(1))
            counts[key] = counts.get(key, 0) + 1
    return counts


def one_run(ctx, images, image_of, name, load, requests):
    log = ctx.path("strace.log")
    image = image_of(images)
    prefix = ["strace", "-f", "-y", "-s", "0", "-o", log, "-e",
              "trace=" + ",".join(CALLS)]
    with Server(ctx, name, image, prefix=prefix) as server:
        client(ctx, server, nbdload_argv(
            ctx, server.socket, list(load) + ["--requests", str(requests)]))
    counts = count_log(log)
    os.unlink(log)
    images.drop_fresh()
    return counts


def trace(ctx, images, spec, name):
    """Calls per request: {"image pwrite64": 1.02, ...}"""
    _, image_of, _, load, requests, _ = spec
    few = one_run(ctx, images, image_of, name, load, 1)
    many = one_run(ctx, images, image_of, name, load, requests + 1)
    out = {}
    for key in sorted(set(few) | set(many)):
        n = (many.get(key, 0) - few.get(key, 0)) / requests
        if abs(n) >= .001:
            out["%s %s" % key] = round(n, 3)
    return out
