# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

"""A client that keeps a server busy, and notes in the recorder's log what it
asked for and what was acknowledged.

Requests that are in flight together do not overlap, so that it is known
which of two writes is the newer one; they share clusters all the time.
"""

import os
import random
import time

import nbd

from recording import HEADER, MAGIC
from shadow import (CLOSING, DONE, FLUSH, FLUSHED, FUA, SECTOR, TRIM, WROTE,
                    make_data)


class Client:
    """Numbers of writes and flushes start at FIRST."""

    def __init__(self, uri, log, seed, first, unit):
        self.rnd = random.Random(seed)
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self.next_id = first
        self.unit = unit
        self.conns = []
        for _ in range(3):
            h = nbd.NBD()
            h.connect_uri(uri)
            self.conns.append(h)
        self.size = self.conns[0].get_size()
        self.busy = {}          # id -> (start, end)
        self.zeroes = set()     # ids of zero requests
        self.failed = 0         # requests that the server refused
        self.acknowledged = 0
        self.deadline = 0

    def note(self, kind, flags, ident, off=0, length=0):
        os.write(self.log, HEADER.pack(MAGIC, kind, 0, flags, 0, 0,
                                       os.getpid(), ident, off, length, 0))

    def pick(self):
        """A range of whole sectors that is not in flight, or None."""
        rnd = self.rnd
        unit = self.unit
        kind = rnd.random()
        if kind < .3:           # small
            length = rnd.randrange(1, 17) * SECTOR
        elif kind < .6:
            length = rnd.randrange(1, 1 + max(8, unit // SECTOR)) * SECTOR
        elif kind < .9:
            length = unit * rnd.randrange(1, 4)
        else:
            length = rnd.randrange(1, 257) * SECTOR
        off = rnd.randrange(self.size) // SECTOR * SECTOR
        if rnd.random() < .5:
            off = off % (16 * unit)
        if rnd.random() < .5:
            off = off // unit * unit
        off = min(off, self.size - SECTOR)
        end = min(off + length, self.size)
        if any(s < end and off < e for s, e in self.busy.values()):
            return None
        return off, end - off

    def completion(self, ident, kind):
        def done(error):
            del self.busy[ident]
            if error.value if hasattr(error, "value") else error:
                self.failed += 1
            else:
                self.acknowledged += 1
                self.note(kind, 0, ident)
            return 1
        return done

    def flush(self):
        ident = self.next_id
        self.next_id += 1
        self.busy[ident] = (0, 0)
        self.note(FLUSH, 0, ident)
        self.rnd.choice(self.conns).aio_flush(self.completion(ident, FLUSHED))

    def change(self, flush_share):
        """One request, if the range is free."""
        where = self.pick()
        if where is None:
            return
        off, length = where
        if self.rnd.random() < flush_share:
            self.flush()
            return
        ident = self.next_id
        self.next_id += 1
        self.busy[ident] = (off, off + length)
        h = self.rnd.choice(self.conns)
        done = self.completion(ident, DONE)
        flags = nbd.CMD_FLAG_FUA if self.rnd.random() < .05 else 0
        note = FUA if flags else 0
        kind = self.rnd.random()
        if kind < .75:
            self.note(WROTE, note, ident, off, length)
            data = make_data(off // SECTOR, length // SECTOR, ident)
            buf = nbd.Buffer.from_bytearray(bytearray(data))
            h.aio_pwrite(buf, off, done, flags)
        elif kind < .9:
            self.zeroes.add(ident)
            self.note(WROTE, note, ident, off, length)
            h.aio_zero(length, off, done,
                       flags | self.rnd.choice((0, nbd.CMD_FLAG_NO_HOLE)))
        else:
            self.note(WROTE, note | TRIM, ident, off, length)
            h.aio_trim(length, off, done, flags)

    def poll(self, timeout):
        if time.time() > self.deadline:
            raise RuntimeError("requests without an answer")
        for h in self.conns:
            if h.aio_in_flight() > 0:
                h.poll(timeout)

    def run(self, requests, depth=12):
        """Until so many requests were sent.  False: the server went away."""
        end = self.next_id + requests
        self.deadline = time.time() + 200
        flush_share = self.rnd.choice((.01, .03, .1))
        try:
            while self.next_id < end:
                while len(self.busy) >= depth:
                    self.poll(1)
                self.change(flush_share)
                self.poll(0)
            while self.busy:
                self.poll(1)
        except nbd.Error:
            return False
        return True

    def close(self, flush):
        """End as a client does; with a last flush or without."""
        try:
            if flush:
                self.flush()
                while self.busy:
                    self.poll(1)
            self.note(CLOSING, 0, 0)
            for h in self.conns:
                h.shutdown()
        except nbd.Error:
            pass

    def abandon(self):
        """Let go of a server that is no more."""
        self.conns = []
        os.close(self.log)
