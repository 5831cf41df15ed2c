# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause
"""Let each allocation of a filter fail once, under a short load.

usage: filters-nomem.py NAME FILTER START WORKLOAD nbdkit-arguments...

START is the disk before, copied anew for each server; "@" in the arguments
stands for the copy.  Each is left as NAME.N.img.  tests/no-memory.c, which
$shim names, is preloaded.
"""

import errno
import os
import re
import signal
import subprocess
import sys
import time

import nbd

BLOCK = 512
ALLOWED = (errno.ENOMEM, errno.EIO, errno.ENOSPC)

name, filter_name, start, workload = sys.argv[1:5]
arguments = sys.argv[5:]


class Refused(Exception):
    pass


class Server:
    def __init__(self, n, image):
        self.log = f"{name}.{n}.log"
        for f in ("pid", "s"):
            if os.path.exists(f):
                os.unlink(f)
        env = dict(os.environ, LD_PRELOAD=os.environ["shim"],
                   NO_MEMORY_IN=f"nbdkit-{filter_name}-filter.so",
                   NO_MEMORY_AFTER=str(n))
        # Its end makes a request that hangs fail.
        self.process = subprocess.Popen(
            ["timeout", "-k", "5", "60", "nbdkit", "-f", "-P", "pid", "-U", "s"] +
            [a.replace("@", image) for a in arguments],
            env=env, stderr=open(self.log, "w"), start_new_session=True)

    def serves(self):
        while not (os.path.exists("pid") and os.path.getsize("pid")):
            if self.process.poll() is not None:
                return False
            time.sleep(0.005)
        return True

    def says(self):
        return open(self.log).read()

    def fired(self):
        return "no-memory:" in self.says()


class Disk:
    """What each block may have: now, and on the disk."""

    def __init__(self, content):
        self.size = len(content)
        self.now = [{content[i]} for i in range(0, self.size, BLOCK)]
        self.flushed()

    def flushed(self):
        self.stable = [set(b) for b in self.now]

    def blocks(self, off, count):
        return range(off // BLOCK, (off + count + BLOCK - 1) // BLOCK)

    def may_become(self, off, count, value):
        for i in self.blocks(off, count):
            self.stable[i].add(value)
            self.now[i].add(value)

    def becomes(self, off, count, value, fua):
        for i in self.blocks(off, count):
            self.now[i] = {value}
            if fua:
                self.stable[i] = {value}

    def check(self, data, off, blocks):
        for k, i in enumerate(self.blocks(off, len(data))):
            b = data[k * BLOCK:(k + 1) * BLOCK]
            assert b == b[:1] * len(b), f"block {i} is torn"
            assert b[0] in blocks[i], f"block {i}: {b[0]}, not {blocks[i]}"


class Client:
    def __init__(self, disk, server):
        self.disk = disk
        self.h = nbd.NBD()
        self.h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
        try:
            self.h.connect_unix("s")
        except nbd.Error:
            raise Refused

    def ask(self, f, *args):
        try:
            r = f(*args)
            return True if r is None else r
        except nbd.Error as e:
            if e.errnum not in ALLOWED:
                raise
            return None

    def write(self, off, count, value, fua=False):
        self.disk.may_become(off, count, value)
        flags = nbd.CMD_FLAG_FUA if fua else 0
        if self.ask(self.h.pwrite, bytes([value]) * count, off, flags):
            self.disk.becomes(off, count, value, fua)

    def zero(self, off, count):
        self.disk.may_become(off, count, 0)
        if self.ask(self.h.zero, count, off):
            self.disk.becomes(off, count, 0, False)

    def trim(self, off, count):
        self.disk.may_become(off, count, 0)
        self.ask(self.h.trim, count, off)

    def read(self, off, count):
        data = self.ask(self.h.pread, count, off)
        if data:
            self.disk.check(data, off, self.disk.now)

    def flush(self):
        if self.ask(self.h.flush):
            self.disk.flushed()

    def extents(self):
        self.ask(self.h.block_status, self.disk.size, 0, lambda *args: 0)

    def cache(self, off, count):
        if self.h.can_cache():
            self.ask(self.h.cache, count, off)


K = 1024
C = 64 * K


def requests(a, b):
    """Clusters that the image has not, in part and as a whole."""
    a.write(C + 4*K, 4*K, 101)
    a.write(3*C, 2*C, 102)
    b.write(C + 32*K, 512, 103)
    b.read(0, b.disk.size)
    b.extents()
    a.write(6*C - 8*K, 16*K, 104)
    a.flush()
    b.write(7*C + K, K, 105, fua=True)
    a.write(8*C, 512, 106)
    a.zero(8*C + 2*K, C)
    b.write(9*C + 8*K, 4*K, 107)
    b.trim(9*C, 3*C)
    a.read(0, a.disk.size)
    a.zero(C, C)
    a.cache(0, 2*C)
    b.write(12*C + 512, 2*C, 108, fua=True)
    for i in range(4):          # the background threads help
        a.write(i*C + 60*K, 2*K, 110 + i)
    b.flush()
    a.write(14*C, 4*K, 120)     # what the end of the connection writes
    b.write(a.disk.size - 512, 512, 121)


def many(a, b):
    """More blocks than cowmerge's table has places for."""
    for i in range(a.disk.size // (4*K)):
        (a, b)[i % 2].write(i * 4*K, 512, i % 250 + 1)
    a.read(0, a.disk.size)
    b.flush()
    a.read(0, a.disk.size)


def connect_both(disk, server):
    """Two clients, after how many refusals; the server ends after two."""
    clients = []
    refusals = 0
    while len(clients) < 2 and refusals < 2:
        try:
            clients.append(Client(disk, server))
        except Refused:
            refusals += 1
    return clients, refusals


def serve(n, image, disk):
    """True if an allocation failed."""
    server = Server(n, image)
    try:
        refusals = 2
        if server.serves():
            clients, refusals = connect_both(disk, server)
        if refusals < 2:
            globals()[workload](*clients)
            for c in clients:
                c.h.shutdown()
            server.process.terminate()
        r = server.process.wait()
        assert r == (1 if refusals == 2 else 0), f"the server ended with {r}"
        fired = server.fired()
        assert fired or refusals == 0
        # Who cannot go on says why.
        assert refusals == 0 or re.search("error: .*emory|error: .*malloc",
                                          server.says())
        return fired
    finally:
        # After a failure it would wait for the clients.
        if server.process.poll() is None:
            os.killpg(server.process.pid, signal.SIGKILL)
            server.process.wait()
        sys.stderr.write(server.says())


def content(image):
    with open(image, "rb") as f:
        data = f.read()
    if data[:4] != b"QFI\xfb":
        return data
    h = nbd.NBD()
    h.connect_command(["nbdkit", "-s", "--exit-with-parent", "-r",
                       "qcow2", image])
    data = b"".join(h.pread(min(h.get_size() - off, 1 << 20), off)
                    for off in range(0, h.get_size(), 1 << 20))
    h.shutdown()
    return data


before = content(start)
n = 0
fired = True
while fired:
    image = f"{name}.{n}.img"
    # Holes stay holes: preallocate looks for them.
    subprocess.run(["cp", "--sparse=always", start, image], check=True)
    disk = Disk(before)
    fired = serve(n, image, disk)
    # Without an error, all that was written is there, flushed or not.
    disk.check(content(image), 0, disk.stable if fired else disk.now)
    n += 1
print(f"{name}: {n - 1} allocations failed")
