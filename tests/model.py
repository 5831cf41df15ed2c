#!/usr/bin/python3
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

"""Random operations on an NBD export, against a byte-exact shadow.

Several connections, several requests in flight on each.  Requests that are in
flight together never overlap (their order would be undefined), but they do
share clusters all the time.  Usage:

  model.py --uri URI --shadow FILE [--seed N] [--ops N] [--connections N]
           [--depth N] [--unit N] [--readonly] [--no-trim] [--max-len N]

The shadow file has the content that the export must have at the beginning, and
gets what it must have at the end.  Exit status 1: a difference, which is
printed with the number of the operation.
"""

import argparse
import random
import sys

import nbd


class Model:
    def __init__(self, args):
        self.args = args
        self.rnd = random.Random(args.seed)
        with open(args.shadow, "rb") as f:
            self.shadow = bytearray(f.read())
        self.size = len(self.shadow)
        self.conns = []
        for _ in range(args.connections):
            h = nbd.NBD()
            h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
            h.connect_uri(args.uri)
            self.conns.append(h)
        if self.conns[0].get_size() != self.size:
            sys.exit("size is %d, should be %d" %
                     (self.conns[0].get_size(), self.size))
        self.busy = {}          # cookie number -> (start, end, writes)
        self.failures = 0
        self.count = 0

    def overlaps(self, start, end, writes):
        for s, e, w in self.busy.values():
            if s < end and start < e and (w or writes):
                return True
        return False

    def pick_range(self, max_len):
        """Mostly near a few hot places and near multiples of the unit."""
        unit = self.args.unit
        r = self.rnd.random()
        if r < 0.4:
            base = self.rnd.randrange(0, max(1, self.size // unit + 1)) * unit
            off = base + self.rnd.choice((-513, -1, 0, 0, 0, 1, 512, 4096))
        elif r < 0.8:
            off = self.rnd.randrange(self.size) % max(1, 16 * unit)
        else:
            off = self.rnd.randrange(self.size)
        off = min(max(off, 0), self.size - 1)
        kind = self.rnd.random()
        if kind < 0.5:
            n = self.rnd.randrange(1, 8192)
        elif kind < 0.8:
            n = self.rnd.choice((512, 4096, unit, 2 * unit, 3 * unit))
        else:
            n = self.rnd.randrange(1, max_len)
        n = min(n, max_len, self.size - off)
        if n == 0:
            n = 1
        return off, n

    def fail(self, what):
        print("operation %d: %s" % (self.count, what))
        self.failures += 1

    def compare(self, number, off, data):
        want = self.shadow[off:off + len(data)]
        if data != want:
            i = next(i for i in range(len(data)) if data[i] != want[i])
            print("operation %d: read %d+%d: byte %d is 0x%02x, should be "
                  "0x%02x" % (number, off, len(data), off + i, data[i],
                              want[i]))
            self.failures += 1

    def start(self, h, start, end, writes, issue, done=None):
        """Issue a request; DONE is called with no error."""
        number = self.count
        self.busy[number] = (start, end, writes)

        def completion(error):
            self.busy.pop(number)
            if error.value if hasattr(error, "value") else error:
                print("operation %d failed: errno %s" % (number, error))
                self.failures += 1
            elif done:
                done(number)
            return 1

        issue(completion)

    def op_write(self, h, off, n):
        kind = self.rnd.random()
        if kind < 0.1:
            data = bytes(n)
        elif kind < 0.4:
            data = bytes([self.rnd.randrange(256)]) * n
        else:
            data = self.rnd.randbytes(n)
        flags = nbd.CMD_FLAG_FUA if self.rnd.random() < 0.05 else 0
        self.shadow[off:off + n] = data
        buf = nbd.Buffer.from_bytearray(bytearray(data))
        self.start(h, off, off + n, True,
                   lambda c: h.aio_pwrite(buf, off, c, flags))

    def op_read(self, h, off, n):
        buf = nbd.Buffer(n)
        self.start(h, off, off + n, False,
                   lambda c: h.aio_pread(buf, off, c),
                   lambda number: self.compare(number, off,
                                               buf.to_bytearray()))

    def op_zero(self, h, off, n):
        flags = self.rnd.choice((0, 0, nbd.CMD_FLAG_NO_HOLE))
        if self.rnd.random() < 0.05:
            flags |= nbd.CMD_FLAG_FUA
        self.shadow[off:off + n] = bytes(n)
        self.start(h, off, off + n, True,
                   lambda c: h.aio_zero(n, off, c, flags))

    def op_trim(self, h, off, n):
        """What a trim leaves is read back at once: zeroes, or the old."""
        number = self.count
        self.busy[number] = (off, off + n, True)
        h.trim(n, off)
        data = h.pread(n, off)
        old = self.shadow[off:off + n]
        if any(d not in (0, o) for d, o in zip(data, old)):
            self.fail("trim %d+%d left bytes that are neither zero nor old"
                      % (off, n))
        self.shadow[off:off + n] = data
        del self.busy[number]

    def op_status(self, h, off, n):
        number = self.count
        self.busy[number] = (off, off + n, False)
        pos = off
        entries = []

        def extent(context, offset, e, error):
            if context == nbd.CONTEXT_BASE_ALLOCATION:
                entries.extend(e)
            return 0

        h.block_status(n, off, extent)
        for length, flags in zip(entries[::2], entries[1::2]):
            end = min(pos + length, off + n)
            if flags & nbd.STATE_ZERO and any(self.shadow[pos:end]):
                self.fail("block status says %d+%d is zero" %
                          (pos, end - pos))
            pos = end
        del self.busy[number]

    def op_cache(self, h, off, n):
        self.start(h, off, off + n, False, lambda c: h.aio_cache(n, off, c))

    def op_flush(self, h, off, n):
        self.start(h, 0, 0, False, lambda c: h.aio_flush(c))

    def step(self):
        """One operation, if a range is free."""
        args = self.args
        ops = [(self.op_read, 30)]
        if not args.readonly:
            ops += [(self.op_write, 40), (self.op_zero, 10),
                    (self.op_flush, 2)]
            if not args.no_trim:
                ops += [(self.op_trim, 6)]
        ops += [(self.op_status, 4), (self.op_cache, 1)]
        op = self.rnd.choices([o for o, _ in ops], [w for _, w in ops])[0]
        off, n = self.pick_range(args.max_len)
        writes = op in (self.op_write, self.op_zero, self.op_trim)
        if op != self.op_flush and self.overlaps(off, off + n, writes):
            return
        self.count += 1
        op(self.rnd.choice(self.conns), off, n)

    def poll(self):
        for h in self.conns:
            if h.aio_in_flight() > 0:
                h.poll(0 if len(self.busy) < self.args.depth else 1)

    def run(self):
        while self.count < self.args.ops and self.failures == 0:
            if len(self.busy) < self.args.depth * len(self.conns):
                self.step()
            self.poll()
        while self.busy:
            self.poll()
        for off in range(0, self.size, 1 << 20):
            n = min(1 << 20, self.size - off)
            self.compare(self.count, off, self.conns[0].pread(n, off))
        if not self.args.readonly:
            self.conns[-1].flush()
        for h in self.conns:
            h.shutdown()
        with open(self.args.shadow, "wb") as f:
            f.write(self.shadow)
        return self.failures


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--uri", required=True)
    p.add_argument("--shadow", required=True)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--ops", type=int, default=2000)
    p.add_argument("--connections", type=int, default=3)
    p.add_argument("--depth", type=int, default=4)
    p.add_argument("--unit", type=int, default=65536)
    p.add_argument("--max-len", type=int, default=400000)
    p.add_argument("--readonly", action="store_true")
    p.add_argument("--no-trim", action="store_true")
    args = p.parse_args()
    failures = Model(args).run()
    if failures:
        print("seed %d: %d failures" % (args.seed, failures))
    sys.exit(1 if failures else 0)


main()
