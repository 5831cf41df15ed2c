# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# What the scripts of test-cowmerge-*.sh share.  They run in nbdsh, and
# read this first.  $sock is the socket of the server.

import os
import errno
import threading
import time

import nbd

K = 1024
CLUSTER = 64 * K


def connect(name=""):
    h = nbd.NBD()
    h.set_export_name(name)
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.connect_unix(os.environ["sock"])
    return h


def counts(name=""):
    """What cowmerge-test-plugin was asked to do with the image."""
    h = connect(name + ":counts")
    text = h.pread(h.get_size(), 0).rstrip(b"\0").decode()
    h.shutdown()
    return {k: int(v) for k, v in (s.split("=") for s in text.split())}


class Counted:
    """with Counted(writes=1): only one write reached the plugin, and none
    of the other counts that are checked changed."""

    def __init__(self, name="", **expected):
        self.name = name
        self.expected = {"reads": 0, "writes": 0, "whole": 0, "copied": 0}
        self.expected.update(expected)

    def __enter__(self):
        self.before = counts(self.name)

    def __exit__(self, kind, *rest):
        if kind is not None:
            return
        after = counts(self.name)
        got = {k: after[k] - self.before[k] for k in self.expected}
        assert got == self.expected, f"{got} instead of {self.expected}"


def stable(n, off, name=""):
    """What a power loss would leave."""
    h = connect(name + ":stable")
    data = h.pread(n, off)
    h.shutdown()
    return data


def backing(n, off):
    """The backing file of cowmerge-test-plugin."""
    return bytearray((i // 251 + i) % 255 + 1 for i in range(off, off + n))


def fails(code, f, *args):
    """F fails with this error."""
    try:
        f(*args)
    except nbd.Error as e:
        assert e.errnum == code, f"{e} instead of {errno.errorcode[code]}"
    else:
        raise AssertionError(f"{f} should have failed")


def extents(h, n, off, flags=0):
    """The extents as a list of (length, type)."""
    ret = []

    def add(_context, _off, entries, _error):
        ret.extend(zip(entries[0::2], entries[1::2]))

    h.block_status(n, off, add, flags)
    return ret
