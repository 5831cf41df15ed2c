# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

"""The log of recorder.c, and what a power cut leaves of the files.

A call is covered by a sync of its file that began after the call had ended,
and is stable when that sync has ended; a write with RWF_DSYNC when it has
ended itself.  Of everything else that had begun by the time of the cut, any
part may be on the disk: each call is lost or kept for itself, whole or only
some of its 512-byte sectors, or just the growth of the file that came with
it.
"""

import errno
import random
import struct

HEADER = struct.Struct("=IHHIIIIQQQq")
MAGIC = 0x43455251
BEGIN, END, ERROR = 1, 2, 3
WRITE, SYNC, FALLOCATE, TRUNCATE = 1, 2, 3, 4
DSYNC = 1
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
NEVER = 1 << 62
SECTOR = 512


class RecordingError(Exception):
    """The log is of no use."""


class Call:
    """A call that changes a file.  Times are numbers of records."""

    __slots__ = ("op", "flags", "off", "length", "data", "begin", "end",
                 "stable", "failed")

    def __init__(self, op, flags, off, length, data, begin):
        self.op = op
        self.flags = flags
        self.off = off
        self.length = length
        self.data = data
        self.begin = begin
        self.end = self.stable = NEVER
        self.failed = False

    def finish(self, now, result):
        self.end = now
        if result < 0:
            self.failed = True
        elif self.op == WRITE:
            self.data = self.data[:result]
            if self.flags & DSYNC:
                self.stable = now


class File:
    """Calls of one file, in the order in which they began."""

    def __init__(self):
        self.calls = []
        self.ended = []
        self.covered = 0        # this many of self.ended are stable

    def sync_ended(self, covers, now, result):
        """The kernel reports a failure once: no later sync covers what this
        one should have."""
        if result in (-errno.EINTR, -errno.EAGAIN):
            return
        for call in self.ended[self.covered:covers]:
            if result == 0:
                call.stable = min(call.stable, now)
        self.covered = max(self.covered, covers)


class Recording:
    """All of a log.

    .files   a File each
    .client  [(time, kind, flags, id, offset, length)], the client's records
    .length  number of records
    .syncs   times at which syncs ended
    """

    def __init__(self, path, nr_files, lie=0, killed=False):
        """LIE: the probability that a sync does nothing.  KILLED: so the last
        record of the server may be torn; the call did not happen, or its end
        was not seen."""
        with open(path, "rb") as f:
            data = memoryview(f.read())
        self.files = [File() for _ in range(nr_files)]
        self.client = []
        self.syncs = []
        self._open = {}
        self._lie = lie
        self._rnd = random.Random(1)
        self.length = pos = 0
        while pos < len(data):
            size = self._record_size(data, pos)
            next_pos = pos + size if size else 0
            if not size or self._record_size(data, next_pos) is None:
                if not killed:
                    raise RecordingError("no record at byte %d of the log" %
                                         (next_pos or pos))
                killed = False  # there is one such record: this or the next
                resume = self._next_record(data, pos + 1)
                if not size or next_pos > resume:
                    pos = resume
                    continue
                next_pos = resume
            self._add(HEADER.unpack_from(data, pos),
                      data[pos + HEADER.size:pos + size])
            pos = next_pos
            self.length += 1

    @staticmethod
    def _record_size(data, pos):
        """Of the record at POS; 0 at the end, None if there is none."""
        if pos == len(data):
            return 0
        if pos + HEADER.size > len(data):
            return None
        head = HEADER.unpack_from(data, pos)
        return HEADER.size + head[4] if head[0] == MAGIC else None

    def _next_record(self, data, pos):
        """From where on all is records again."""
        raw = bytes(data)
        magic = struct.pack("=I", MAGIC)
        while True:
            pos = raw.find(magic, pos)
            if pos < 0:
                return len(data)
            end = pos
            while end < len(data) and self._record_size(data, end):
                end += self._record_size(data, end)
            if end == len(data):
                return pos
            pos += 1

    def _add(self, head, payload):
        _, kind, op, flags, _, file, pid, ident, off, length, result = head
        now = self.length
        if kind == ERROR:
            raise RecordingError("the server changed a file by: " +
                                 bytes(payload).decode())
        if kind >= 16:
            self.client.append((now, kind, flags, ident, off, length))
        elif kind == BEGIN and op == SYNC:
            self._open[pid, ident] = len(self.files[file].ended)
        elif kind == BEGIN:
            call = Call(op, flags, off, length, payload, now)
            self.files[file].calls.append(call)
            self._open[pid, ident] = call
        elif op == SYNC:
            covers = self._open.pop((pid, ident))
            if self._rnd.random() >= self._lie:
                self.files[file].sync_ended(covers, now, result)
            self.syncs.append(now)
        else:
            call = self._open.pop((pid, ident))
            call.finish(now, result)
            self.files[file].ended.append(call)


class Fate:
    """What becomes of the calls that nothing covers."""

    MODES = ("lost", "kept", "any", "mostly kept", "mostly lost", "torn",
             "small kept", "small lost", "last kept", "first kept")

    def __init__(self, rnd, mode):
        self.rnd = rnd
        self.mode = mode
        self.part = rnd.random()

    def share(self, call, place):
        """The probability that this one is kept; PLACE is 0 for the first of
        them, towards 1 for the last."""
        small = len(call.data) <= 4096
        return {"lost": 0, "kept": 1, "any": .5, "mostly kept": .95,
                "mostly lost": .05, "torn": .5, "small kept": small,
                "small lost": not small, "last kept": place > self.part,
                "first kept": place < self.part}[self.mode]

    def sectors(self, call, place):
        """None: as if the call never was; True: all of it; else a list of
        (start, end) in it, perhaps empty."""
        r = self.rnd.random()
        if self.mode == "torn" and r < .7 and call.op != TRUNCATE:
            return self.torn(call)
        if r < self.share(call, place):
            return True
        if self.mode not in ("lost", "kept") and self.rnd.random() < .1:
            return []
        return None

    def torn(self, call):
        """Some sectors of the disk; a call need not begin with one."""
        end = call.off + (len(call.data) if call.op == WRITE else call.length)
        cuts = []
        pos = call.off
        if self.rnd.random() < .5:      # a few long pieces
            step = max(SECTOR, (end - pos) // 3 // SECTOR * SECTOR)
        else:
            step = max(SECTOR, (end - pos) // 64 // SECTOR * SECTOR)
        while pos < end:
            stop = min(end, (pos // SECTOR) * SECTOR + step)
            if self.rnd.random() < .5:
                cuts.append((pos - call.off, stop - call.off))
            pos = stop
        return cuts


def grow(buf, size):
    if len(buf) < size:
        buf.extend(bytes(size - len(buf)))


def apply_call(buf, call, parts):
    """Do PARTS (see Fate.sectors) of CALL to BUF, the contents of a file."""
    if parts is True:
        parts = [(0, len(call.data) if call.op == WRITE else call.length)]
    if call.op == TRUNCATE:
        del buf[call.off:]
        grow(buf, call.off)
        return
    if call.op == WRITE:
        grow(buf, call.off + len(call.data))
        for start, end in parts:
            buf[call.off + start:call.off + end] = call.data[start:end]
        return
    if call.flags & ~(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE):
        raise RecordingError("fallocate mode %#x" % call.flags)
    if not call.flags & KEEP_SIZE:
        grow(buf, call.off + call.length)
    if call.flags & (PUNCH_HOLE | ZERO_RANGE):
        for start, end in parts:
            start = min(call.off + start, len(buf))
            end = min(call.off + end, len(buf))
            buf[start:end] = bytes(end - start)


class Disk:
    """One file; cuts must be asked for in ascending order of time."""

    def __init__(self, initial, recorded):
        self.base = bytearray(initial)
        self.calls = [c for c in recorded.calls if not c.failed]
        self.done = 0           # so many of them are in self.base

    def cut(self, now, fate):
        """What is there if the power goes just before record NOW."""
        calls = self.calls
        while (self.done < len(calls) and calls[self.done].stable < now):
            apply_call(self.base, calls[self.done], True)
            self.done += 1
        begun = [c for c in calls[self.done:] if c.begin < now]
        buf = bytearray(self.base)
        for i, call in enumerate(begun):
            if call.stable < now:
                apply_call(buf, call, True)
                continue
            parts = fate.sectors(call, i / len(begun))
            if parts is not None:
                apply_call(buf, call, parts)
        return buf
