# SPDX-License-Identifier: BSD-3-Clause
"""The images that workloads use.

Templates are made once in the work directory and shared: reads and
overwrites of what is allocated do not change their structure.  Workloads
that allocate get a fresh image each time (fresh_*).
"""

import os
import signal
import subprocess

from .context import Failed, run

GIB = 1 << 30
DATA_SIZE = GIB
CHUNK = 4 << 20


def remove(path):
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


class Images:
    def __init__(self, ctx):
        self.ctx = ctx
        self.warmed = set()
        self.small_pages = False

    def new_workload(self, small_pages):
        """Files are to be warmed again: other workloads changed them.

        A 4k write into a large folio costs ext4 more than all else that
        is measured, so overwrites ask for SMALL_PAGES; reads take what
        the kernel does by itself.
        """
        self.warmed.clear()
        self.small_pages = small_pages

    def warm(self, path):
        """Bring a file into the page cache and its dirty pages to disk.

        Once a workload: to clean pages between the runs would make each
        run pay for dirtying them again.  The file leaves the cache first,
        so that its folios do not depend on who brought them there; and
        it is read often enough for its pages to count as active, as
        otherwise the next reader pays for that.
        """
        if path in self.warmed:
            return
        self.warmed.add(path)
        fd = os.open(path, os.O_RDWR)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if self.small_pages:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for _ in range(3):
            self._read_data(fd)
        os.close(fd)

    @staticmethod
    def _read_data(fd):
        off = 0
        while True:
            try:
                start = os.lseek(fd, off, os.SEEK_DATA)
            except OSError:
                return
            end = os.lseek(fd, start, os.SEEK_HOLE)
            off = start
            while off < end:
                n = len(os.pread(fd, min(CHUNK, end - off), off))
                if n == 0:
                    break
                off += n
            off = max(off, end)

    def _make(self, name, maker):
        """The template NAME, made by MAKER (path) unless it is there."""
        path = self.ctx.path(name)
        if not os.path.exists(path):
            tmp = path + ".tmp"
            remove(tmp)
            print("  making %s" % name, flush=True)
            maker(tmp)
            os.rename(tmp, path)
        return path

    # Content

    def data(self):
        """1 GiB of system files, so that compression is realistic."""
        def make(path):
            with open(path, "wb") as f:
                size = 0
                while size < DATA_SIZE:
                    before = size
                    p = subprocess.Popen(
                        ["tar", "-cf", "-", "--ignore-failed-read",
                         "--sort=name", "-C", "/usr", "bin", "lib", "share"],
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                    while size < DATA_SIZE:
                        b = p.stdout.read(min(CHUNK, DATA_SIZE - size))
                        if not b:
                            break
                        f.write(b)
                        size += len(b)
                    p.stdout.close()
                    if p.wait() not in (0, 1, -signal.SIGPIPE) or \
                            size == before:
                        raise Failed("tar of system files failed")
        return self._make("data.raw", make)

    def _slice(self, name, size, repeat=1):
        """The first SIZE bytes of the data, REPEAT times."""
        def make(path):
            with open(path, "wb") as out:
                for _ in range(repeat):
                    with open(self.data(), "rb") as f:
                        left = size
                        while left > 0:
                            b = f.read(min(CHUNK, left))
                            out.write(b)
                            left -= len(b)
        return self._make(name, make)

    def data600(self):
        return self._slice("data600.raw", 600_000_000 // 65536 * 65536)

    def filled(self):
        """1000 MB of byte 0xab."""
        def make(path):
            with open(path, "wb") as f:
                for _ in range(1000):
                    f.write(b"\xab" * 1_048_576)
        return self._make("filled.raw", make)

    def noise(self):
        """1000 MB of random bytes."""
        def make(path):
            with open(path, "wb") as f:
                for _ in range(1000):
                    f.write(os.urandom(1_048_576))
        return self._make("noise.raw", make)

    # Templates

    def _convert(self, name, source, *options):
        return self._make(name, lambda path: run(
            ["qemu-img", "convert", "-q", "-f", "raw", "-O", "qcow2"] +
            list(options) + [source, path]))

    def full(self):
        """Every cluster allocated, and the same as a raw file."""
        image = {
            "raw": self._slice("full.raw", DATA_SIZE),
            "qcow2": self._convert("full.qcow2", self.data(), "-S", "0"),
        }
        for p in image.values():
            self.warm(p)
        return image

    def same_pages(self):
        """The full image for both, to read from.

        To nbdkit's file plugin it is a file like any other.  Where two
        files lie in memory can make a copy twice as slow on a virtual
        machine; so both read the same pages.
        """
        path = self.full()["qcow2"]
        return {"raw": path, "qcow2": path}

    def compressed(self, codec):
        image = {
            "raw": self.full()["raw"],
            "qcow2": self._convert(codec + ".qcow2", self.data(), "-c", "-W",
                                   "-m", "16", "-o",
                                   "compression_type=" + codec),
        }
        self.warm(image["qcow2"])
        return image

    def _fill_layer(self, path, layer, layers, size):
        """Write every LAYERS-th 64k block of a random order."""
        sock = self.ctx.path("fill.sock")
        remove(sock)
        p = subprocess.Popen(["qemu-nbd", "-f", "qcow2", "-k", sock,
                              "--cache=writeback", path])
        try:
            run([self.ctx.nbdload, "--socket", sock, "--wait", "10000",
                 "--op", "randwrite", "--bs", "64k", "--depth", "4",
                 "--seed", str(layer), "--requests",
                 str(size // 65536 // layers)])
        finally:
            if p.wait(timeout=60) != 0:
                raise Failed("qemu-nbd on %s" % path)

    def chain(self, layers):
        """A chain of LAYERS images; each holds its share of the data."""
        base = self._convert("chain-base.qcow2", self.data(), "-S", "0")
        below = base
        self.warm(base)
        for i in range(1, layers):
            name = "chain%d-%d.qcow2" % (layers, i)

            def make(path, below=below, i=i):
                run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2",
                     "-b", os.path.basename(below), path])
                self._fill_layer(path, i, layers, DATA_SIZE)
            below = self._make(name, make)
            self.warm(below)
        raw = self.full()["raw"]
        return {"qcow2": below, "raw": raw}

    def metadata(self, size, label):
        """All metadata allocated, no data: a sparse file."""
        def make(path):
            run(["qemu-img", "create", "-q", "-f", "qcow2", "-o",
                 "preallocation=metadata", path, str(size)])
        image = {
            "qcow2": self._make("metadata-%s.qcow2" % label, make),
            "raw": self._make("sparse-%s.raw" % label,
                              lambda p: self._sparse(p, size)),
        }
        self.warm(image["qcow2"])
        return image

    @staticmethod
    def _sparse(path, size):
        with open(path, "wb") as f:
            f.truncate(size)

    def local(self, size, label):
        """An image of SIZE of which 1 GiB in the middle is written."""
        def make(path):
            run(["qemu-img", "create", "-q", "-f", "qcow2", path, str(size)])
            run(["qemu-io", "-f", "qcow2", "-c", "write -q -P 7 %d %d" %
                 ((size - DATA_SIZE) // 2, DATA_SIZE - 65536), path])
        image = {"qcow2": self._make("local-%s.qcow2" % label, make)}
        self.warm(image["qcow2"])
        return image

    def backing(self, cluster_size):
        """2 GiB full backing image, for overlays; and raw."""
        raw = self._slice("full2.raw", DATA_SIZE, 2)
        name = "backing-%d.qcow2" % cluster_size
        path = self._convert(name, raw, "-S", "0", "-o",
                             "cluster_size=%d" % cluster_size)
        self.warm(path)
        self.warm(raw)
        return {"qcow2": path, "raw": raw}

    # Fresh images

    def fresh(self, size, options=()):
        """An empty image and an empty raw file."""
        image = {"qcow2": self.ctx.path("fresh.qcow2"),
                 "raw": self.ctx.path("fresh.raw")}
        for p in image.values():
            remove(p)
        run(["qemu-img", "create", "-q", "-f", "qcow2"] + list(options) +
            [image["qcow2"], str(size)])
        self._sparse(image["raw"], size)
        return image

    def fresh_overlay(self, cluster_size):
        backing = self.backing(cluster_size)
        path = self.ctx.path("fresh.qcow2")
        remove(path)
        run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-o",
             "cluster_size=%d" % cluster_size, "-b", backing["qcow2"], path])
        return {"qcow2": path, "raw": backing["raw"]}

    def present_overlay(self):
        """An overlay all of whose first GiB is its own."""
        backing = self.backing(65536)

        def make(path):
            run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2",
                 "-b", backing["qcow2"], path])
            run(["qemu-io", "-f", "qcow2", "-c", "write -q -P 7 0 %d" %
                 (DATA_SIZE - 65536), "-c", "write -q -P 8 %d 65536" %
                 (DATA_SIZE - 65536), path])
        path = self._make("present.qcow2", make)
        self.warm(path)
        return {"qcow2": path, "raw": backing["raw"]}

    def drop_fresh(self):
        for name in ("fresh.qcow2", "fresh.raw", "out.qcow2"):
            remove(self.ctx.path(name))
