# SPDX-License-Identifier: BSD-3-Clause
"""What one run of the benchmark has: options, tools, work directory."""

import os
import platform
import shutil
import subprocess
import time

SOURCES = ("nbdload.c", "conn.c", "wire.c", "plan.c")


class Missing(Exception):
    """Something that a workload needs is not on this machine."""


class Failed(Exception):
    """A server or a client failed."""


def run(argv, **kwargs):
    """Run a command to its end; an error carries what it printed."""
    p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, **kwargs)
    if p.returncode != 0:
        raise Failed("%s: exit status %d: %s" %
                     (" ".join(argv), p.returncode,
                      (p.stderr or p.stdout).strip()[-500:]))
    return p.stdout


class Context:
    def __init__(self, opts):
        self.opts = opts
        self.workdir = opts.workdir
        self.seconds = 0.4 if opts.quick else opts.seconds
        self.rounds = opts.rounds or (2 if opts.quick else 5)
        self.threads = opts.threads
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.srcdir = here
        self.build = self._find_build(here)
        self.nbdload = None
        os.makedirs(self.workdir, exist_ok=True)

    def _find_build(self, here):
        """The build tree, or None when the installed plugin is used."""
        candidates = [self.opts.build] if self.opts.build else \
            [os.getcwd(), os.path.join(here, "..", "..")]
        for d in candidates:
            if os.path.exists(os.path.join(
                    d, "plugins/qcow2/.libs/nbdkit-qcow2-plugin.so")):
                return os.path.abspath(d)
        if self.opts.build:
            raise Missing("no plugin was built in %s" % self.opts.build)
        return None

    def path(self, *names):
        return os.path.join(self.workdir, *names)

    def require(self, *programs):
        for p in programs:
            if shutil.which(p) is None:
                raise Missing("program %s" % p)

    def plugin(self):
        """Name or path of our plugin.

        The build tree's plugin is given to nbdkit by its path, since a
        wrapper script would be part of the start-up time.
        """
        if self.build:
            return os.path.join(
                self.build, "plugins/qcow2/.libs/nbdkit-qcow2-plugin.so")
        p = subprocess.run(["nbdkit", "qcow2", "--dump-plugin"],
                           stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        if p.returncode != 0:
            raise Missing("the qcow2 plugin (build it, or give --build)")
        return "qcow2"

    def filter(self, name):
        if self.build:
            so = os.path.join(self.build, "filters", name, ".libs",
                              "nbdkit-%s-filter.so" % name)
            if not os.path.exists(so):
                raise Missing("filter %s" % name)
            return so
        p = subprocess.run(["nbdkit", "--filter=" + name, "null",
                            "--dump-plugin"],
                           stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        if p.returncode != 0:
            raise Missing("filter %s" % name)
        return name

    def build_nbdload(self):
        """Find the load generator in the build tree, or compile it."""
        if self.build:
            for d in ("tests/bench/.libs", "tests/bench"):
                exe = os.path.join(self.build, d, "nbdload")
                if os.path.exists(exe):
                    self.nbdload = exe
                    return
        cc = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
        if not cc:
            raise Missing("a C compiler (for nbdload)")
        self.nbdload = self.path("nbdload")
        run([cc, "-std=gnu11", "-O2", "-o", self.nbdload] +
            [os.path.join(self.srcdir, s) for s in SOURCES] + ["-pthread"])

    def machine(self):
        """What a reader needs to judge the figures."""
        def first(argv):
            try:
                return run(argv).splitlines()[0]
            except (OSError, Failed, IndexError):
                return None
        cpu = ""
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.startswith("model name"):
                    cpu = line.split(":", 1)[1].strip()
                    break
        mem = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        fs = first(["findmnt", "-n", "-o", "FSTYPE", "-T", self.workdir])
        return {
            "date": time.strftime("%Y-%m-%d"),
            "cores": os.cpu_count(),
            "cpu": cpu,
            "memory_gib": round(mem / 2**30, 1),
            "kernel": platform.release().split("-")[0],
            "filesystem": fs,
            "nbdkit": first(["nbdkit", "--version"]),
            "qemu": first(["qemu-nbd", "--version"]),
            "nbdkit_threads": self.threads,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "loadavg": os.getloadavg()[0],
        }
