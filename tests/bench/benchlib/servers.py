# SPDX-License-Identifier: BSD-3-Clause
"""The servers that are compared, and how each is started and stopped.

A server's name is BASE[+FILTER...][:OPTION...], where an option is a
parameter of the plugin or of a filter.  Bases:

  ours            nbdkit with this package's plugin
  null            nbdkit's null plugin: what nbdkit's core costs alone
  raw             nbdkit's file plugin, on a raw file of the same content
  qemu-nbd        aio=threads
  qemu-nbd-uring  aio=io_uring
  qsd             qemu-storage-daemon, aio=threads
  qsd-prealloc    the same over its preallocate driver
"""

import os
import re
import signal
import subprocess
import sys
import time

from .context import Failed, Missing

QEMU = ("qemu-nbd", "qemu-nbd-uring", "qsd")
# Its own process group, but not its own session: the scheduler shares the
# machine between sessions, which would favour whoever has more of them.
GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else \
    {"preexec_fn": os.setpgrp}


def family(name):
    """What a server is: ours, raw, null or qemu."""
    if name.startswith("ours"):
        return "ours"
    return name if name in ("raw", "null") else "qemu"


def nbdkit_argv(ctx, name, image, extra, socket, threads=None):
    stack, *options = name.split(":")
    parts = stack.split("+")
    argv = ["nbdkit", "-f", "-U", socket or "-"]
    argv += ["-t", str(threads or ctx.threads)]
    if parts[0] == "null":
        return argv + ["null", "size=%d" % os.path.getsize(image["raw"])]
    if parts[0] == "raw":
        return argv + ["file", image["raw"]]
    for f in parts[1:]:
        argv.append("--filter=" + ctx.filter(f))
    argv += [ctx.plugin(), "file=" + image["qcow2"]] + options + list(extra)
    return argv


def qsd_argv(ctx, name, image, socket):
    argv = ["qemu-storage-daemon", "--blockdev",
            "driver=file,node-name=f,aio=threads,discard=unmap,filename=" +
            image["qcow2"]]
    below = "f"
    if name == "qsd-prealloc":
        argv += ["--blockdev", "driver=preallocate,node-name=p,file=f,"
                 "prealloc-size=134217728,prealloc-align=1048576"]
        below = "p"
    return argv + [
        "--blockdev", "driver=qcow2,node-name=q,discard=unmap,file=" + below,
        "--nbd-server", "addr.type=unix,max-connections=16,addr.path=" +
        socket,
        "--export", "type=nbd,id=e,node-name=q,name=,writable=on"]


def server_argv(ctx, name, image, socket, extra=(), threads=None):
    """The command line of a server, or Missing."""
    base = re.split("[+:]", name)[0]
    if base in ("ours", "raw", "null"):
        ctx.require("nbdkit")
        return nbdkit_argv(ctx, name, image, extra, socket, threads)
    if base.startswith("qemu-nbd"):
        ctx.require("qemu-nbd")
        aio = "io_uring" if base.endswith("uring") else "threads"
        return ["qemu-nbd", "-f", "qcow2", "-k", socket, "-t", "-e", "16",
                "--cache=writeback", "--aio=" + aio, "--discard=unmap",
                image["qcow2"]]
    if base in ("qsd", "qsd-prealloc"):
        ctx.require("qemu-storage-daemon")
        return qsd_argv(ctx, name, image, socket)
    raise Missing("server %s" % name)


def proc_status(pid):
    """Peak memory (bytes) and CPU time (seconds) of a process."""
    peak, cpu = 0, 0.0
    try:
        with open("/proc/%d/status" % pid) as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    peak = int(line.split()[1]) * 1024
        with open("/proc/%d/stat" % pid) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        pass
    return peak, cpu


class Server:
    """A running server; use as a context manager."""

    def __init__(self, ctx, name, image, extra=(), prefix=(), threads=None):
        self.name = name
        self.socket = ctx.path("s.sock")
        self.log = ctx.path("server.log")
        self.argv = list(prefix) + server_argv(ctx, name, image, self.socket,
                                               extra, threads)
        self.proc = None
        self.start_ns = self.peak = self.cpu = self.close_seconds = 0
        if os.path.exists(self.socket):
            os.unlink(self.socket)

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.start_ns = time.monotonic_ns()
            self.proc = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL,
                                         stdout=log, stderr=log, **GROUP)
        return self

    def alive(self):
        return self.proc.poll() is None

    def sample(self):
        """Note peak memory and CPU time so far."""
        self.peak, self.cpu = proc_status(self.proc.pid)
        return self.peak, self.cpu

    def messages(self):
        with open(self.log, errors="replace") as f:
            return f.read().strip()[-600:]

    def __exit__(self, exc_type, exc, tb):
        start = time.monotonic()
        if self.alive():
            # The group, as strace would not pass the signal on.
            os.killpg(self.proc.pid, signal.SIGTERM)
        try:
            self.proc.wait(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(self.proc.pid, signal.SIGKILL)
            self.proc.wait()
            if exc_type is None:
                raise Failed("%s did not end in 120 s" % self.name) from None
        self.close_seconds = time.monotonic() - start
        if exc_type is None and \
                self.proc.returncode not in (0, -signal.SIGTERM):
            raise Failed("%s: exit status %d: %s" %
                         (self.name, self.proc.returncode, self.messages()))
        return False
