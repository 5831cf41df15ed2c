#!/usr/bin/python3
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

"""A client that misbehaves: bad-client.py SOCKET KIND, KIND 0 to 9."""

import random
import socket
import struct
import sys


def connect ():
    s = socket.socket (socket.AF_UNIX)
    s.connect (sys.argv[1])
    assert s.recv (18, socket.MSG_WAITALL)[:8] == b"NBDMAGIC"
    s.send (struct.pack (">I", 1))
    return s

def option (s, opt, data):
    s.send (b"IHAVEOPT" + struct.pack (">II", opt, len (data)) + data)
    replies = []
    while True:
        _, _, kind, n = struct.unpack (">QIII", s.recv (20, socket.MSG_WAITALL))
        if n:
            s.recv (n, socket.MSG_WAITALL)
        replies.append (kind)
        if kind == 1 or kind >> 31:
            return replies

def go (s):
    info = struct.pack (">I", 0) + struct.pack (">H", 0)
    assert option (s, 6, info)[-1] == 1       # INFO
    assert option (s, 7, info)[-1] == 1       # GO

def request (cmd, off, n, flags=0):
    return struct.pack (">IHHQQI", 0x25609513, flags, cmd, 1, off, n)

def read_to_end (s):
    """The server must close or answer, not wait for ever."""
    s.settimeout (60)
    try:
        while s.recv (65536):
            pass
    except ConnectionError:
        pass

def bad_options (s):
    for data in b"", struct.pack (">I", 0xffffffff), r.randbytes (30):
        for opt in 3, 5, 6, 7, 8, 9, 10, 99:
            if opt == 7 and not data:
                continue
            s.send (b"IHAVEOPT" + struct.pack (">II", opt, len (data)) + data)
    s.send (b"IHAVEOPT" + struct.pack (">II", 7, 0x7fffffff) + b"x" * 100)

kind = int (sys.argv[2])
r = random.Random (kind)
for i in range (10):
    s = connect ()
    if kind == 6:
        s.send (r.randbytes (100))
        s.close ()
        continue
    if kind == 9:                             # options that lie
        bad_options (s)
        s.shutdown (socket.SHUT_WR)
        read_to_end (s)
        s.close ()
        continue
    go (s)
    if kind == 0:                             # half a write
        s.send (request (1, 65536 * i, 65536) + b"x" * 1000)
    elif kind == 1:                           # no interest in the answer
        for j in range (20):
            s.send (request (0, 65536 * j, 65536))
    elif kind == 2:                           # writes, then gone
        for j in range (5):
            s.send (request (1, 65536 * j + 100, 5000) + b"y" * 5000)
    elif kind == 3:                           # garbage
        s.send (r.randbytes (1000))
    elif kind == 4:                           # half closed
        s.send (request (1, 0, 4096) + b"z" * 4096)
        s.shutdown (socket.SHUT_WR)
    elif kind == 7:                           # requests that lie
        for cmd in 0, 3, 4, 5, 6, 7, 8, 99:
            for off, n in (2**64 - 1, 512), (2**63, 2**32 - 1), (1000, 0):
                s.send (request (cmd, off, n, r.randrange (65536)))
        s.shutdown (socket.SHUT_WR)
        read_to_end (s)
    elif kind == 8:                           # half closed, answers wanted
        for j in range (20):
            s.send (request (0, 65536 * j, 65536))
            s.send (request (1, 65536 * j + 512, 4096) + b"w" * 4096)
        s.shutdown (socket.SHUT_WR)
        read_to_end (s)
    else:                                     # half a header
        s.send (request (1, 0, 4096)[:10])
    s.close ()
