#!/usr/bin/python3
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause
"""Images whose tables are named again and again.

  hostile-tables.py IMG one-table         4 million L1 entries, one L2 table
  hostile-tables.py IMG two-tables        the same with two, in turn
  hostile-tables.py IMG snapshots         65535 snapshots, one L1 table
  hostile-tables.py IMG misaligned        an L2 table at each sector
  hostile-tables.py IMG bitmaps           thousands of bitmaps, one table

IMG is from qemu-img create, with a disk of 2P and 64k clusters, so its L1
table is as large as can be; its first cluster has data.  For the last kind
there must be a bitmap (qemu-img bitmap --add -g 1M).  The snapshots have a
copy of the L1 table of the active disk, the bitmaps the table of that one.
"""

import struct
import sys

CLUSTER = 65536
COPIED = 1 << 63
OFFSET = 0x00fffffffffffe00


class Image:
    def __init__(self, path):
        self.f = open(path, "r+b")

    def get(self, fmt, off):
        self.f.seek(off)
        return struct.unpack(">" + fmt, self.f.read(struct.calcsize(fmt)))[0]

    def put(self, off, data):
        self.f.seek(off)
        self.f.write(data)

    def append(self, data):
        """At the next cluster."""
        off = (self.f.seek(0, 2) + CLUSTER - 1) // CLUSTER * CLUSTER
        self.put(off, data + bytes(-len(data) % CLUSTER))
        return off


def entries(*values):
    return struct.pack(">%dQ" % len(values), *values)


def l1_table(image):
    """Offset and entries of the L1 table, offset of the first L2 table."""
    off, nr = image.get("Q", 40), image.get("I", 36)
    l2 = image.get("Q", off) & OFFSET
    # All of the guest's clusters are the first one.
    image.put(l2, entries(image.get("Q", l2)) * (CLUSTER // 8))
    return off, nr, l2


def one_table(image):
    off, nr, l2 = l1_table(image)
    image.put(off, entries(l2 | COPIED) * nr)


def two_tables(image):
    off, nr, l2 = l1_table(image)
    image.f.seek(l2)
    other = image.append(image.f.read(CLUSTER))
    image.put(off, entries(l2 | COPIED, other | COPIED) * (nr // 2))


def snapshots(image):
    off, nr, l2 = l1_table(image)
    off = image.append(entries(l2) + bytes(8 * nr - 8))
    count = 65535
    size = image.get("Q", 24)
    table = []
    for i in range(count):
        name = b"%05d" % i
        entry = struct.pack(">QIHHIIQIIQQ", off, nr, 5, 5, 0, 0, 0, 0, 16, 0,
                            size) + name + name
        table.append(entry + bytes(-len(entry) % 8))
    image.put(64, entries(image.append(b"".join(table))))
    image.put(60, struct.pack(">I", count))


def misaligned(image):
    off, nr, l2 = l1_table(image)
    image.f.truncate(image.f.seek(0, 2) + (256 << 20))
    image.put(off, b"".join(entries(l2 + 512 * i) for i in range(500000)))


def bitmaps(image):
    ext = image.get("I", 100)
    while image.get("I", ext) != 0x23852875:
        ext += 8 + (image.get("I", ext + 4) + 7) // 8 * 8
    count = 60000
    directory = image.get("Q", ext + 24)
    table, size = image.get("Q", directory), image.get("I", directory + 8)
    entry = b"".join(struct.pack(">QIIBBHI", table, size, 0, 1, 20, 5, 0) +
                     b"%05d" % i + bytes(3) for i in range(count))
    image.put(ext + 8, struct.pack(">IIQQ", count, 0, len(entry),
                                   image.append(entry)))


KINDS = {"one-table": one_table, "two-tables": two_tables,
         "snapshots": snapshots, "misaligned": misaligned,
         "bitmaps": bitmaps}


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in KINDS:
        sys.exit(__doc__)
    KINDS[sys.argv[2]](Image(sys.argv[1]))


main()
