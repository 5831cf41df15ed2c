# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

"""Servers under the recorder, and looks at what they left."""

import os
import subprocess
import time

from scenarios import IMAGE, image_options, qemu_img

CLEAN, LEAKS = 0, 3             # exit codes of both checks
PATIENCE = 120                  # seconds, for anything


class Failure(Exception):
    """A promise was broken."""


class NotStarted(Failure):
    """The server said why it cannot serve."""


class Server:
    """nbdkit under the recorder.  RUN: an argument of --run; else it serves
    a socket, self.sock.  FAULT: see RECORDER_FAULT in recorder.c."""

    def __init__(self, directory, args, log, files, run=None, fault=None):
        self.directory = directory
        self.sock = os.path.join(directory, "sock")
        pidfile = os.path.join(directory, "pid")
        for f in (self.sock, pidfile):
            if os.path.exists(f):
                os.unlink(f)
        env = dict(os.environ)
        shim = os.path.join(os.environ["abs_top_builddir"],
                            "tests/recorder/.libs/recorder.so")
        if not os.path.exists(shim):
            raise Failure(shim + " was not built")
        env["LD_PRELOAD"] = ":".join(
            filter(None, [env.get("LD_PRELOAD"), shim]))
        env["RECORDER_LOG"] = log
        env["RECORDER_FILES"] = ":".join(os.path.join(directory, f)
                                         for f in files)
        if fault:
            env["RECORDER_FAULT"] = fault
        with open(log, "wb"):
            pass
        socket = ["-U", "-"] if run else ["-U", self.sock]
        self.process = subprocess.Popen(
            ["nbdkit", "-f", "-P", pidfile, *socket, *args] +
            (["--run", run] if run else []), cwd=directory, env=env)
        if run:
            return
        end = time.time() + PATIENCE
        while not os.path.exists(pidfile) or os.path.getsize(pidfile) == 0:
            if self.process.poll() == 1:
                raise NotStarted("the server did not start")
            if self.process.poll() is not None or time.time() > end:
                self.process.kill()
                raise Failure("the server did not start: code %s" %
                              self.process.wait())
            time.sleep(.005)

    def stop(self):
        """Its exit code after SIGTERM."""
        self.process.terminate()
        return self.wait()

    def wait(self):
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failure("the server did not end") from None


said = []                       # what programs said of the last image


def run(args, directory):
    """The exit code."""
    r = subprocess.run(args, cwd=directory, timeout=PATIENCE,
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT)
    said.append("%s\n%s" % (" ".join(args), r.stdout.decode(errors="replace")))
    return r.returncode


def own_check(directory, kind):
    """The exit code of our check."""
    return run(["nbdkit", "-f", "-U", "-", "qcow2", IMAGE, *kind.parameters,
                "check=true"], directory)


def qemu_check(directory, kind, *how):
    return run(["qemu-img", "check", *how, *image_options(kind, directory)],
               directory)


def own_job(directory, kind, *parameters):
    """Something that the plugin does to an image before it serves."""
    if run(["nbdkit", "-U", "-", "qcow2", IMAGE, *kind.parameters,
            *parameters, "--run", "true"], directory) != 0:
        raise Failure("this failed: " + " ".join(parameters))


def contents(directory, kind, ours=False, snapshot=None):
    """The guest's disk, read by qemu-img or by the plugin."""
    raw = os.path.join(directory, "contents.raw")
    if ours:
        args = ["snapshot=" + snapshot] if snapshot else []
        if run(["nbdkit", "-r", "-U", "-", "qcow2", IMAGE, *kind.parameters,
                *args, "--run", 'nbdcopy "$uri" contents.raw'],
               directory) != 0:
            raise Failure("the plugin cannot read the image")
    else:
        args = ["-l", "snapshot.name=" + snapshot] if snapshot else []
        qemu_img("convert", "-O", "raw", *args,
                 *image_options(kind, directory), raw, cwd=directory)
    with open(raw, "rb") as f:
        data = f.read()
    os.unlink(raw)
    return data


def is_dirty(directory):
    """Does the header say that refcounts may be wrong?"""
    with open(os.path.join(directory, IMAGE), "rb") as f:
        header = f.read(80)
    return header[7] == 2 or header[79] & 1


def repair(directory, kind, ours):
    """As QEMU and the plugin do it when they open a dirty image.  QEMU 7.2
    drops all snapshots when it repairs an image that has bitmaps."""
    if ours or kind.has("bitmaps"):
        own_job(directory, kind, "repair=all")
    else:
        qemu_check(directory, kind, "-r", "all")
