# SPDX-License-Identifier: BSD-3-Clause
"""Hammer an NBD server from several connections, against a shadow.

usage: preallocate-hammer.py --uri URI [options]

Requests of all connections are in flight together.  Two that are in
flight never share a byte, but often a block or a cluster, so that a byte
for byte comparison with the shadow is exact.  Most requests are around
the highest offset written so far, and beyond it.  After each round all
connections are closed and opened again, and the whole disk is compared.
"""

import argparse
import random
import re
import sys
import nbd

p = argparse.ArgumentParser()
p.add_argument("--uri", required=True)
p.add_argument("--connections", type=int, default=4)
p.add_argument("--depth", type=int, default=8)
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--requests", type=int, default=2000)
p.add_argument("--max", type=int, default=200000, help="bytes a request")
p.add_argument("--seed", type=int, default=1)
p.add_argument("--final", help="write the shadow to this file at the end")
p.add_argument("--exports", default="",
               help="comma separated names of the same disk")
p.add_argument("--errors", action="store_true",
               help="requests may fail: what they wrote is then unknown")
p.add_argument("--no-start-check", action="store_true",
               help="start from what is on the disk, not from zeroes")
a = p.parse_args()

rnd = random.Random(a.seed)
exports = a.exports.split(",")
failed = 0


def connect(i):
    h = nbd.NBD()
    # A URI without a name means the name "".
    h.connect_uri(re.sub(r"^([a-z+]+://[^/?]*)/?([?]|$)",
                         r"\1/%s\2" % exports[i % len(exports)], a.uri))
    return h


def connect_all():
    return [connect(i) for i in range(a.connections)]


def read_all(h, size):
    out = bytearray()
    while len(out) < size:
        out += h.pread(min(size - len(out), 16 << 20), len(out))
    return out


class Disk:
    def __init__(self, conns):
        self.size = conns[0].get_size()
        self.shadow = bytearray(self.size)
        self.busy = []          # (start, end) in flight
        self.unknown = []       # (start, end) where a request failed
        self.top = 0

    def compare(self, data, off):
        want = self.shadow[off:off + len(data)]
        for start, end in self.unknown:
            start, end = max(start - off, 0), min(end - off, len(data))
            if start < end:
                want[start:end] = data[start:end]
        if data == want:
            return
        i = next(i for i in range(len(data)) if data[i] != want[i])
        sys.exit("seed %d: byte %d is %d, should be %d"
                 % (a.seed, off + i, data[i], want[i]))

    def pick(self):
        """A range that is not in flight, or None."""
        count = rnd.choice((1, 511, 512, 4096, 65536, a.max))
        count = rnd.randint(1, count) if rnd.random() < .5 else count
        kind = rnd.random()
        if kind < .35:
            off = self.top
        elif kind < .7:
            off = self.top + rnd.randint(-(1 << 20), 1 << 20)
        elif kind < .9:
            off = rnd.randrange(self.top + 1)
        else:
            off = min(self.top + rnd.randrange(4 << 20), self.size)
        if rnd.random() < .5:
            off &= ~4095
        off = max(0, min(off, self.size - 1))
        count = min(count, self.size - off)
        if any(s < off + count and off < e for s, e in self.busy):
            return None
        return off, count


def some_data(count):
    # As much that compresses as that does not.
    if rnd.random() < .5:
        return rnd.randbytes(count)
    pattern = rnd.randbytes(rnd.choice((1, 97, 1000)))
    return (pattern * (count // len(pattern) + 1))[:count]


def issue(h, disk):
    """Send one request; returns [cookie, range, what to check] or None."""
    r = disk.pick()
    if r is None:
        return None
    off, count = r
    end = off + count
    what = rnd.random()
    if what < .7:
        data = some_data(count)
        buf = nbd.Buffer.from_bytearray(bytearray(data))
        flags = nbd.CMD_FLAG_FUA if rnd.random() < .05 else 0
        cookie = h.aio_pwrite(buf, off, flags=flags)
        req = [cookie, off, end, data, None]
    elif what < .8:
        flags = nbd.CMD_FLAG_NO_HOLE if rnd.random() < .5 else 0
        cookie = h.aio_zero(count, off, flags=flags)
        req = [cookie, off, end, bytes(count), None]
    else:
        buf = nbd.Buffer(count)
        cookie = h.aio_pread(buf, off)
        req = [cookie, off, end, None, buf]
    disk.busy.append((off, end))
    disk.top = max(disk.top, end if what < .8 else 0)
    if disk.top > disk.size - (1 << 20):
        disk.top = rnd.randrange(disk.size)
    return req


def finish(disk, req, ok):
    global failed
    _, off, end, data, buf = req
    disk.busy.remove((off, end))
    if not ok:
        if not a.errors:
            sys.exit("seed %d: request failed at %d" % (a.seed, off))
        failed += 1
        if data is not None:
            disk.unknown.append((off, end))
        return
    if data is not None:
        disk.shadow[off:end] = data
    else:
        disk.compare(buf.to_bytearray(), off)


def reap(h, disk, pending):
    for req in list(pending):
        try:
            if not h.aio_command_completed(req[0]):
                continue
            ok = True
        except nbd.Error:
            ok = False
        pending.remove(req)
        finish(disk, req, ok)


def run_round(conns, disk):
    pending = [[] for _ in conns]
    left = a.requests
    while left > 0 or any(pending):
        for h, p in zip(conns, pending):
            tries = 0
            while left > 0 and len(p) < a.depth and tries < 4:
                tries += 1
                req = issue(h, disk)
                if req:
                    p.append(req)
                    left -= 1
            if p:
                h.poll(1)
            reap(h, disk, p)


conns = connect_all()
disk = Disk(conns)
if a.no_start_check:
    disk.shadow = read_all(conns[0], disk.size)
else:
    disk.compare(read_all(conns[0], disk.size), 0)
for n in range(a.rounds):
    run_round(conns, disk)
    if conns[0].can_flush() and not a.errors:
        conns[0].flush()
    disk.compare(read_all(conns[-1], disk.size), 0)
    for h in conns:
        h.shutdown()
    conns = connect_all()
    disk.compare(read_all(conns[0], disk.size), 0)
for h in conns:
    h.shutdown()
if a.final:
    with open(a.final, "wb") as f:
        f.write(disk.shadow)
print("hammer: %d requests, %d failed" % (a.rounds * a.requests, failed))
