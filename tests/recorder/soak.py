#!/usr/bin/env python3
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

"""Many clients for a long time, against a shadow.

    soak.py [--minutes N] [--clients N] [--stack NAME] [--seed N]

Each client is a process with several connections, and has a part of the disk
for itself; the borders of the parts are no borders of clusters.  It writes,
zeroes, trims, flushes, and compares what it reads.  Every second or so one of
them is killed, and another takes over.  Two more clients read a snapshot
and block status all the time.

Four times all clients go away.  The memory that is in use then (as malloc
counts it, see heap.c), the threads and the open files must not become more
from the first time to the last one, except for SLACK bytes: so a block that
is lost with each connection is found after some hundred connections.  How
much memory the process has is printed only: the arenas of the C library keep
what was freed, and with MALLOC_ARENA_MAX=1 it does not grow at all.

In the end: the server ends well, the image is clean, and the disk and the
snapshot are what they should be.

A connection has one request in flight at a time: nbdkit 1.32 itself may
abort if a client with several of them dies.
"""

import argparse
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import nbd

from scenarios import IMAGE, STACKS, image_options, KINDS, qemu_img
from shadow import SECTOR, make_data, parse
from stack import CLEAN, Failure, contents, own_check, qemu_check

NONE = 0xffffffff               # nothing pending
CONNECTIONS = 3
PART = 16384 - 5                # sectors; not a multiple of a cluster
QUARTERS = 4
SLACK = 256 << 10


class Shadow:
    """For each sector the write that it is from, and the one that may have
    replaced it: shared by all processes, each with its own part."""

    def __init__(self, path, sectors):
        with open(path, "ab") as f:
            f.truncate(8 * sectors + 4)
        with open(path, "r+b") as f:
            words = memoryview(mmap.mmap(f.fileno(), 0)).cast("I")
        self.now = words[:sectors]
        self.pending = words[sectors:2 * sectors]
        self.stop = words[2 * sectors:]         # not 0: end, all of you

    def expect(self, first, count, write):
        self.pending[first:first + count] = _words(write, count)

    def happened(self, first, count, write):
        self.now[first:first + count] = _words(write, count)
        self.pending[first:first + count] = _words(NONE, count)

    def compare(self, first, data):
        """Exit if DATA is not what should be there.  What was uncertain is
        known from now on."""
        count = len(data) // SECTOR
        found = parse(data, first)
        if list(self.now[first:first + count]) == found:
            if all(p == NONE for p in self.pending[first:first + count]):
                return
        for s, write in enumerate(found, first):
            if write != self.now[s] and (write != self.pending[s] or
                                         self.pending[s] == NONE):
                sys.exit("sector %d is from write %d, should be %d%s" % (
                    s, write, self.now[s],
                    "" if self.pending[s] == NONE
                    else " or %d" % self.pending[s]))
            self.now[s] = write
        self.pending[first:first + count] = _words(NONE, count)


def _words(value, count):
    return memoryview(value.to_bytes(4, sys.byteorder) * count).cast("I")


class Client:
    """Number NUMBER's part of the disk, until it is told to stop."""

    def __init__(self, uri, shadow, number, seed, first_write):
        self.rnd = random.Random(seed)
        self.shadow = shadow
        self.start = number * PART
        self.write = first_write
        self.busy = {}          # connection -> (first, count)
        self.conns = []
        for _ in range(CONNECTIONS):
            h = nbd.NBD()
            h.connect_uri(uri)
            self.conns.append(h)

    def run(self):
        h = self.conns[0]
        for at in range(0, PART, 4096):         # what a dead one left
            count = min(4096, PART - at)
            self.shadow.compare(self.start + at, h.pread(
                count * SECTOR, (self.start + at) * SECTOR))
        while not self.shadow.stop[0]:
            for c in self.conns:
                if c not in self.busy:
                    self.request(c)
            self.conns[self.rnd.randrange(CONNECTIONS)].poll(1)
        while self.busy:
            for c in list(self.busy):
                c.poll(1)
        for c in self.conns:
            c.shutdown()

    def pick(self):
        count = self.rnd.choice((1, 8, 8, 64, 128, 128, 300))
        count = self.rnd.randrange(1, count + 1)
        at = self.rnd.randrange(PART - count)
        if self.rnd.random() < .5:
            at = at // 128 * 128
        first = self.start + at
        for f, n in self.busy.values():
            if f < first + count and first < f + n:
                return None
        return first, count

    def request(self, h):
        where = self.pick()
        if where is None:
            return
        first, count = where
        off, length = first * SECTOR, count * SECTOR
        kind = self.rnd.random()
        self.write += 1

        def done(error, after):
            del self.busy[h]
            if error.value if hasattr(error, "value") else error:
                sys.exit("a request failed: %s" % error)
            after()
            return 1

        if kind < .02:
            self.busy[h] = (0, 0)
            h.aio_flush(lambda e: done(e, lambda: None))
            return
        self.busy[h] = where
        if kind < .4:
            buf = nbd.Buffer(length)
            h.aio_pread(buf, off, lambda e: done(
                e, lambda: self.shadow.compare(first, buf.to_bytearray())))
        elif kind < .45:
            # What a trim leaves is known after a look.
            self.shadow.expect(first, count, 0)
            h.aio_trim(length, off, lambda e: done(e, lambda: None))
            while h in self.busy:
                h.poll(1)
            self.shadow.compare(first, h.pread(length, off))
        elif kind < .55:
            self.shadow.expect(first, count, 0)
            h.aio_zero(length, off, lambda e: done(
                e, lambda: self.shadow.happened(first, count, 0)))
        else:
            write = self.write
            self.shadow.expect(first, count, write)
            buf = nbd.Buffer.from_bytearray(
                bytearray(make_data(first, count, write)))
            flags = nbd.CMD_FLAG_FUA if self.rnd.random() < .02 else 0
            h.aio_pwrite(buf, off, lambda e: done(
                e, lambda: self.shadow.happened(first, count, write)), flags)


def read_forever(uri, stop, wanted):
    """WANTED: the contents, in a file; None: block status only."""
    h = nbd.NBD()
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.connect_uri(uri)
    rnd = random.Random(1)
    size = h.get_size()
    while not stop[0]:
        off = rnd.randrange(size - 65536)
        if wanted is None:
            h.block_status(min(size - off, 8 << 20), off, lambda *_: 0)
            continue
        with open(wanted, "rb") as f:
            f.seek(off)
            if h.pread(65536, off) != f.read(65536):
                sys.exit("the snapshot differs at %d" % off)
    h.shutdown()


def fork(function, *args):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function(*args)
        code = 0
    except SystemExit as e:
        print(e.code)
    except BaseException as e:
        print(repr(e))
    sys.stdout.flush()
    os._exit(code)


class Soak:
    def __init__(self, options, directory):
        self.options = options
        self.directory = directory
        self.rnd = random.Random(options.seed)
        self.sectors = options.clients * PART
        self.uri = "nbd+unix:///%%s?socket=%s/sock" % directory
        self.clients = {}       # number -> pid
        self.kills = 0
        self.connections = 0
        self.first_write = 10
        self.memory = 0         # the most, in kB
        self.idle = []          # what is left when nobody is there
        self.prepare()

    def prepare(self):
        qemu_img("create", "-q", "-f", "qcow2", IMAGE,
                 str(self.sectors * SECTOR), cwd=self.directory)
        qemu_img("bench", "-w", "-t", "writeback", "-c", "200", "-s", "64k",
                 "-S", "130k", "-f", "qcow2", "--pattern=0", IMAGE,
                 cwd=self.directory)
        qemu_img("snapshot", "-c", "old", IMAGE, cwd=self.directory)
        self.old = os.path.join(self.directory, "old.raw")
        with open(self.old, "wb") as f:
            f.write(contents(self.directory, KINDS["64k"]))
        self.shadow = Shadow(os.path.join(self.directory, "shadow"),
                             self.sectors)
        self.shadow.happened(0, self.sectors, 0)
        filters, parameters = STACKS[self.options.stack]
        pidfile = os.path.join(self.directory, "pid")
        self.heap = os.path.join(self.directory, "heap")
        preload = os.path.join(os.environ["abs_top_builddir"],
                               "tests/recorder/.libs/heap.so")
        self.server = subprocess.Popen(
            ["nbdkit", "-f", "-U", "sock", "-P", pidfile,
             *("--filter=" + f for f in filters), "qcow2", IMAGE,
             "metadata-cache=1M", "cluster-cache=2M", *parameters],
            cwd=self.directory,
            env=dict(os.environ, HEAP_LOG=self.heap, LD_PRELOAD=":".join(
                filter(None, [os.environ.get("LD_PRELOAD"), preload]))))
        while not os.path.exists(pidfile):
            if self.server.poll() is not None:
                raise Failure("the server did not start")
            time.sleep(.01)

    def sockets(self):
        """Of the server, for connections: a dead client's requests have
        ended when its sockets are gone."""
        fds = "/proc/%d/fd" % self.server.pid
        n = 0
        for fd in os.listdir(fds):
            try:
                n += os.readlink(os.path.join(fds, fd)).startswith("socket:")
            except FileNotFoundError:
                pass
        return n

    def start_client(self, number):
        self.first_write += 10000000 // 64
        self.connections += CONNECTIONS
        self.clients[number] = fork(
            lambda: Client(self.uri % "", self.shadow, number,
                           self.rnd.random() + self.first_write,
                           self.first_write).run())

    def replace_client(self):
        number = self.rnd.choice(list(self.clients))
        before = self.sockets()
        pid = self.clients.pop(number)
        os.kill(pid, signal.SIGKILL)
        self.check_end(pid, killed=True)
        end = time.time() + 60
        while self.sockets() > before - CONNECTIONS and time.time() < end:
            time.sleep(.05)
        self.kills += 1
        self.start_client(number)

    def check_end(self, pid, killed=False):
        _, status = os.waitpid(pid, 0)
        if killed and os.WIFSIGNALED(status):
            return
        if status != 0:
            raise Failure("a client has failed")

    def look(self):
        """Is everybody alive?  How large is the server?"""
        if self.server.poll() is not None:
            raise Failure("the server is gone, code %d" %
                          self.server.returncode)
        for pid in self.readers + list(self.clients.values()):
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                raise Failure("a client has failed")
        with open("/proc/%d/status" % self.server.pid) as f:
            for line in f:
                if line.startswith("VmRSS:"):
                    self.memory = max(self.memory, int(line.split()[1]))

    def load(self, end):
        stop = self.shadow.stop
        stop[0] = 0
        for n in range(self.options.clients):
            self.start_client(n)
        self.readers = [fork(read_forever, self.uri % "@old", stop, self.old),
                        fork(read_forever, self.uri % "", stop, None)]
        while time.time() < end:
            time.sleep(self.rnd.uniform(.3, 1))
            self.look()
            self.replace_client()
        stop[0] = 1
        for pid in self.readers + list(self.clients.values()):
            self.check_end(pid)
        self.clients = {}

    def heap_lines(self):
        with open(self.heap) as f:
            return [line.split() for line in f if line.endswith("\n")]

    def other_files(self, fds):
        """Not the image: flushes keep some descriptors of it, up to 16."""
        names = [os.readlink(fds + fd) for fd in os.listdir(fds)]
        of_image = sum(os.path.basename(n) == IMAGE for n in names)
        if of_image > 16:
            raise Failure("%d descriptors of the image" % of_image)
        return len(names) - of_image

    def settle(self, sockets):
        """What the server has when its last client has gone."""
        end = time.time() + 60
        while self.sockets() > sockets and time.time() < end:
            time.sleep(.05)
        time.sleep(1)           # threads end, buffers are written
        lines = len(self.heap_lines())
        while len(self.heap_lines()) < lines + 2 and time.time() < end:
            time.sleep(.1)
        proc = "/proc/%d/" % self.server.pid
        self.idle.append((int(self.heap_lines()[-1][0]),
                          len(os.listdir(proc + "task")),
                          self.other_files(proc + "fd/")))

    def run(self):
        sockets = self.sockets()
        for _ in range(QUARTERS):
            self.load(time.time() + 60 * self.options.minutes / QUARTERS)
            self.settle(sockets)
        self.verify()

    def check_growth(self):
        print("%d clients, %d killed, %d connections; in use without clients: "
              "%s bytes, %s threads, %s files; the process had %d kB" % (
                  self.options.clients, self.kills, self.connections,
                  *(" ".join(map(str, x)) for x in zip(*self.idle)),
                  self.memory))
        first, last = self.idle[0], self.idle[-1]
        if last[0] > first[0] + SLACK:
            raise Failure("memory grows")
        if last[1] > first[1] or last[2] > first[2]:
            raise Failure("threads or files are left over")

    def verify(self):
        self.check_growth()
        self.server.terminate()
        try:
            if self.server.wait(120) != 0:
                raise Failure("the server did not end well")
        except subprocess.TimeoutExpired:
            raise Failure("the server did not end") from None
        kind = KINDS["64k"]
        if (own_check(self.directory, kind) != CLEAN or
                qemu_check(self.directory, kind) != CLEAN):
            raise Failure("the image is not clean")
        self.shadow.compare(0, contents(self.directory, kind))
        with open(self.old, "rb") as f:
            if contents(self.directory, kind, False, "old") != f.read():
                raise Failure("the snapshot has changed")

    def close(self):
        self.server.kill()
        for pid in self.clients.values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--stack", default="all", choices=STACKS)
    p.add_argument("--seed", type=int, default=1)
    options = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak.") as directory:
        soak = Soak(options, directory)
        try:
            soak.run()
        except Failure as e:
            print(e)
            sys.exit(1)
        finally:
            soak.close()


main()
