# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

"""What a client wrote, and what of it must be on the disk.

Each sector says which write it is from: its first eight bytes are its number
and the number of the write, the rest follows from these.  So a look at a
sector tells whether it is whole, in its place, and how old.
"""

import random
import struct

SECTOR = 512
ZERO = bytes(SECTOR)
# Kinds of the client's records in the log.
WROTE, DONE, FLUSH, FLUSHED, CLOSING = 16, 17, 18, 19, 20
# In their flags.
FUA, TRIM = 1, 2

_WORD = struct.Struct("=II")
_POOL = random.Random(1).randbytes(1 << 20)


def _tail(sector, write):
    """Half of all writes compress well, the others not at all."""
    if write & 1:
        return bytes([write % 255 + 1]) * (SECTOR - 8)
    at = (write * 40503 + sector * 509) % (len(_POOL) - SECTOR)
    return _POOL[at:at + SECTOR - 8]


def make_data(first, count, write):
    """COUNT sectors as write number WRITE makes them; 0 = zeroes."""
    if write == 0:
        return bytes(count * SECTOR)
    return b"".join(_WORD.pack(s, write) + _tail(s, write)
                    for s in range(first, first + count))


def parse(data, first=0):
    """The number of the write of each sector; -1 for what is none.  FIRST:
    the number of the first sector."""
    data = bytes(data)
    out = []
    for at in range(0, len(data), SECTOR):
        sector = first + at // SECTOR
        number, write = _WORD.unpack_from(data, at)
        if write == 0:
            good = data[at:at + SECTOR] == ZERO
        else:
            good = (number == sector and
                    data[at + 8:at + SECTOR] == _tail(sector, write))
        out.append(write if good else -1)
    return out


class Shadow:
    """Goes through the client's records up to some time.  ZEROES: numbers of
    the writes that were zero requests.  PROMISED: flushes keep what they
    promise."""

    def __init__(self, initial, client, zeroes, promised=True):
        self.promised = promised
        self.initial = initial
        self.zeroes = zeroes
        self.client = client
        self.pos = 0
        # Sector -> writes that it may be from, oldest first; no entry: the
        # initial one.  A negative number is a trim: zeroes, or no change.
        self.may = {}
        self.ranges = {}        # write -> sectors
        self.done = []          # acknowledged, not covered yet
        self.flushes = {}       # flush -> acknowledged when it began
        self.flushed = 0        # flushes that ended
        self.closing = False

    def advance(self, now):
        """Take in everything before record NOW."""
        while self.pos < len(self.client) and self.client[self.pos][0] < now:
            self._event(*self.client[self.pos][1:])
            self.pos += 1

    def _event(self, kind, flags, ident, off, length):
        if kind == WROTE:
            sectors = range(off // SECTOR, (off + length) // SECTOR)
            self.ranges[ident] = (sectors, flags)
            value = -ident if flags & TRIM else ident
            for s in sectors:
                self.may.setdefault(s, [self.initial[s]]).append(value)
        elif kind == DONE:
            if self.ranges[ident][1] & FUA:
                self._cover(ident)
            else:
                self.done.append(ident)
        elif kind == FLUSH:
            self.flushes[ident] = self.done[:]
        elif kind == FLUSHED:
            self.flushed += 1
            for write in self.flushes.pop(ident):
                if write in self.ranges:
                    self._cover(write)
            self.done = [w for w in self.done if w in self.ranges]
        elif kind == CLOSING:
            self.closing = True

    def _cover(self, write):
        """WRITE is stable: nothing that is older can come back."""
        sectors, flags = self.ranges.pop(write)
        if flags & TRIM or not self.promised:
            return
        for s in sectors:
            may = self.may[s]
            if write in may:
                del may[:may.index(write)]

    def settle(self):
        """A clean end: everything acknowledged is there."""
        self.advance(self.client[-1][0] + 1 if self.client else 0)
        for write in self.done:
            self._cover(write)
        self.done = []

    def allowed(self, sector):
        """Numbers that parse may find in this sector."""
        may = self.may.get(sector)
        if may is None:
            return {self.initial[sector]}
        return {self.number(w) for w in may}

    def number(self, write):
        return 0 if write < 0 or write in self.zeroes else write

    def compare(self, data):
        """The first difference as text, or None."""
        found = parse(data)
        if len(found) != len(self.initial):
            return "%d sectors, should be %d" % (len(found),
                                                 len(self.initial))
        for s, write in enumerate(found):
            may = self.may.get(s)
            if may is None:
                if write == self.initial[s]:
                    continue
            elif write > 0 and write in may:
                continue
            elif write in self.allowed(s):
                continue
            what = "garbage" if write == -1 else "from write %d" % write
            return ("sector %d (offset %d) is %s, should be one of %s"
                    % (s, s * SECTOR, what, sorted(self.allowed(s))))
        return None

    def changed(self, data):
        """Is any sector not the initial one?"""
        return parse(data) != self.initial
