#!/usr/bin/python3
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause
"""Build images that lie: make one with qemu-img, patch named fields.

  image-builder.py IMG create [OPTIONS] SIZE   qemu-img create -f qcow2
  image-builder.py IMG set FIELD=VALUE...      patch, from left to right
  image-builder.py IMG get FIELD...            print, one per line
  image-builder.py IMG list                    print header, extensions,
                                               tables in short

FIELD is one of
  header.NAME                 a field of the header (specification names)
  ext[N], ext[NAME]           header extension number N, or by name
    .type .len .pad .data       (data: bytes)
  bitmaps.NAME crypto.NAME    fields of these extensions
  backing_name                bytes of the backing file name
  l1[I]                       entry of the active L1 table
  l2[I][J]                    entry J of the L2 table of l1[I]
  guest[OFF]                  the L2 entry of the guest cluster at OFF
  reftable[I]                 entry of the refcount table
  refblock[I][J]              entry J of the block of reftable[I]
  refcount[OFF]               the refcount of the host cluster at OFF
  snapshot[I].NAME            a field of the snapshot table
  snapshot[I].l1[J], snapshot[I].l2[J][K]
  bitmap[I].NAME              a field of the bitmap directory
  bitmap[I].table[J]          entry of the bitmap table
  bytes[OFF]                  as many bytes as VALUE has
  u8[OFF] u16[OFF] u32[OFF] u64[OFF]
L1 and L2 entries have parts: .offset .copied .zero .compressed .reserved
.bitmap (extended L2), and for compressed clusters .comp_offset
.comp_sectors.

Other settings: truncate=LEN sets the length of the file; add_ext=TYPE:TEXT
puts an extension in front of the others' end; append=N adds N zero bytes.

VALUE is arithmetic (+ - * << >> | & ~) on numbers, which may end in k, M,
G, T; "end" (length of the file), "cluster" (its size), "cur" (the present
value) and @FIELD are numbers as well.  FIELD+=, |=, &=, ^= work as in C.
Bytes are written hex:0011ff or text:abc.
"""

import ast
import operator
import os
import re
import struct
import subprocess
import sys

HEADER = {
    "magic": (0, 4), "version": (4, 4), "backing_file_offset": (8, 8),
    "backing_file_size": (16, 4), "cluster_bits": (20, 4), "size": (24, 8),
    "crypt_method": (32, 4), "l1_size": (36, 4), "l1_table_offset": (40, 8),
    "refcount_table_offset": (48, 8), "refcount_table_clusters": (56, 4),
    "nb_snapshots": (60, 4), "snapshots_offset": (64, 8),
    "incompatible": (72, 8), "compatible": (80, 8), "autoclear": (88, 8),
    "refcount_order": (96, 4), "header_length": (100, 4),
    "compression_type": (104, 1),
}
EXTENSIONS = {
    "backing_format": 0xe2792aca, "features": 0x6803f857,
    "bitmaps": 0x23852875, "crypto": 0x0537be77, "data_file": 0x44415441,
}
BITMAPS_EXT = {"nb": (0, 4), "reserved": (4, 4), "dir_size": (8, 8),
               "dir_offset": (16, 8)}
CRYPTO_EXT = {"offset": (0, 8), "length": (8, 8)}
SNAPSHOT = {
    "l1_table_offset": (0, 8), "l1_size": (8, 4), "id_len": (12, 2),
    "name_len": (14, 2), "date_sec": (16, 4), "date_nsec": (20, 4),
    "vm_clock_nsec": (24, 8), "vm_state_size": (32, 4),
    "extra_len": (36, 4), "vm_state_size_large": (40, 8),
    "disk_size": (48, 8), "icount": (56, 8),
}
BITMAP = {
    "table_offset": (0, 8), "table_size": (8, 4), "flags": (12, 4),
    "type": (16, 1), "granularity_bits": (17, 1), "name_size": (18, 2),
    "extra_data_size": (20, 4),
}
OFFSET_MASK = 0x00fffffffffffe00


class Field:
    """Where a number is: SIZE bytes at OFF, of which the bits in MASK,
    shifted right by SHIFT.  SIZE None: bytes of any length, LENGTH of them
    to read."""

    def __init__(self, off, size, mask=None, shift=0, length=0):
        self.off, self.size, self.length = off, size, length
        self.mask = (1 << 8 * size) - 1 if mask is None and size else mask
        self.shift = shift

    def part(self, mask, shift=0):
        return Field(self.off, self.size, mask, shift)


class Image:
    def __init__(self, path, mode="r+b"):
        self.f = open(path, mode)

    def read(self, off, n):
        self.f.seek(off)
        data = self.f.read(n)
        return data + bytes(n - len(data))

    def write(self, off, data):
        self.f.seek(off)
        self.f.write(data)
        self.f.flush()

    def length(self):
        return os.fstat(self.f.fileno()).st_size

    def number(self, off, size):
        return int.from_bytes(self.read(off, size), "big")

    def header(self, name):
        off, size = HEADER[name]
        if off >= 72 and self.number(4, 4) < 3:
            return {"refcount_order": 4, "header_length": 72}.get(name, 0)
        return self.number(off, size)

    @property
    def cluster(self):
        return 1 << self.header("cluster_bits")

    @property
    def extended(self):
        return bool(self.header("incompatible") & 16)

    def get(self, field):
        if field.size is None:
            return self.read(field.off, field.length)
        return (self.number(field.off, field.size) & field.mask) \
            >> field.shift

    def set(self, field, value):
        if field.size is None:
            if not isinstance(value, bytes):
                raise ValueError("hex: or text: expected")
            self.write(field.off, value)
            return
        if isinstance(value, bytes):
            raise ValueError("a number expected")
        old = self.number(field.off, field.size)
        new = (old & ~field.mask) | ((value << field.shift) & field.mask)
        self.write(field.off, new.to_bytes(field.size, "big"))

    # Extensions: list of (type, offset of the head, length).
    def extensions(self):
        off = self.header("header_length")
        end = self.header("backing_file_offset") or self.cluster
        found = []
        while off + 8 <= end:
            kind, length = self.number(off, 4), self.number(off + 4, 4)
            found.append((kind, off, length))
            if kind == 0:
                break
            off += 8 + (length + 7) // 8 * 8
        return found

    def extension(self, key):
        exts = self.extensions()
        if key.isdigit():
            return exts[int(key)]
        kind = EXTENSIONS[key] if key in EXTENSIONS else int(key, 0)
        for ext in exts:
            if ext[0] == kind:
                return ext
        raise ValueError("the image has no extension %s" % key)

    def add_extension(self, kind, data):
        """Put an extension in front of END; everything behind moves."""
        off = self.extensions()[-1][1]
        new = struct.pack(">II", kind, len(data)) + data
        new += bytes(-len(new) % 8)
        rest = self.read(off, self.cluster - off)
        if any(rest[len(rest) - len(new):]):
            raise ValueError("no room in the first cluster")
        self.write(off, new + rest[:len(rest) - len(new)])
        backing = Field(*HEADER["backing_file_offset"])
        if self.get(backing):
            self.set(backing, self.get(backing) + len(new))

    # Tables.
    def l2_entry(self, l1_off, i, j):
        table = self.number(l1_off + 8 * i, 8) & OFFSET_MASK
        if table == 0:
            raise ValueError("there is no L2 table %d" % i)
        return Field(table + j * (16 if self.extended else 8), 8)

    def guest_entry(self, off):
        entry = 16 if self.extended else 8
        per_table = self.cluster // entry
        idx = off // self.cluster
        return self.l2_entry(self.header("l1_table_offset"),
                             idx // per_table, idx % per_table)

    def refblock_entry(self, i, j):
        table = self.header("refcount_table_offset")
        block = self.number(table + 8 * i, 8) & ~511
        bits = 1 << self.header("refcount_order")
        if block == 0:
            raise ValueError("there is no refcount block %d" % i)
        if bits >= 8:
            return Field(block + j * bits // 8, bits // 8)
        shift = j * bits % 8
        return Field(block + j * bits // 8, 1, ((1 << bits) - 1) << shift,
                     shift)

    def refcount(self, off):
        idx = off // self.cluster
        per_block = self.cluster * 8 >> self.header("refcount_order")
        return self.refblock_entry(idx // per_block, idx % per_block)

    def snapshot_offset(self, i):
        off = self.header("snapshots_offset")
        for _ in range(i):
            off += 40 + self.number(off + 36, 4) + \
                self.number(off + 12, 2) + self.number(off + 14, 2)
            off = (off + 7) // 8 * 8
        return off

    def bitmap_offset(self, i):
        off = self.number(self.extension("bitmaps")[1] + 8 + 16, 8)
        for _ in range(i):
            off += 24 + self.number(off + 18, 2) + self.number(off + 20, 4)
            off = (off + 7) // 8 * 8
        return off

    def entry_part(self, field, part):
        """Part of an L1 or L2 entry."""
        cluster_bits = self.header("cluster_bits")
        comp_shift = 62 - (cluster_bits - 8)
        parts = {
            "offset": (OFFSET_MASK, 0), "copied": (1 << 63, 63),
            "compressed": (1 << 62, 62), "zero": (1, 0),
            "reserved": (0x3f000000000001fe, 0),
            "comp_offset": ((1 << comp_shift) - 1, 0),
            "comp_sectors": ((1 << 62) - (1 << comp_shift), comp_shift),
        }
        if part == "bitmap":
            return Field(field.off + 8, 8)
        if part not in parts:
            raise ValueError("an entry has no part " + part)
        return field.part(*parts[part])

    def l1_or_l2(self, l1_off, m):
        """MATCH of l1[I] or l2[I][J] in the L1 table at L1_OFF."""
        index = [self.value(x) for x in re.findall(r"\[([^]]*)\]", m[2])]
        if m[1] == "l1":
            field = Field(l1_off + 8 * index[0], 8)
        else:
            field = self.l2_entry(l1_off, *index)
        return self.entry_part(field, m[3][1:]) if m[3] else field

    def member(self, base, table, name):
        if name not in table:
            raise ValueError("no field " + name)
        off, size = table[name]
        return Field(base + off, size)

    def find(self, name):
        """The Field that NAME says."""
        m = re.fullmatch(r"(header|bitmaps|crypto)\.(\w+)", name)
        if m and m[1] == "header":
            return self.member(0, HEADER, m[2])
        if m:
            return self.member(self.extension(m[1])[1] + 8,
                               BITMAPS_EXT if m[1] == "bitmaps"
                               else CRYPTO_EXT, m[2])
        if name == "backing_name":
            return Field(self.header("backing_file_offset"), None,
                         length=self.header("backing_file_size"))
        m = re.fullmatch(r"(l1|l2)((?:\[[^]]*\])+)(\.\w+)?", name)
        if m:
            return self.l1_or_l2(self.header("l1_table_offset"), m)
        kind, index, rest = split_index(name)
        if kind == "ext":
            return self.find_extension(index, rest[1:])
        return self.find_indexed(kind, self.value(index), rest)

    def find_extension(self, key, part):
        kind, off, length = self.extension(key)
        fields = {
            "type": Field(off, 4), "len": Field(off + 4, 4),
            "data": Field(off + 8, None, length=length),
            "pad": Field(off + 8 + length, None, length=-length % 8),
        }
        return fields[part or "data"]

    def find_indexed(self, kind, i, rest):
        if kind in ("u8", "u16", "u32", "u64"):
            return Field(i, int(kind[1:]) // 8)
        if kind == "bytes":
            return Field(i, None, length=16)
        if kind == "guest":
            field = self.guest_entry(i)
            return self.entry_part(field, rest[1:]) if rest else field
        if kind == "reftable":
            return Field(self.header("refcount_table_offset") + 8 * i, 8)
        if kind == "refblock":
            return self.refblock_entry(i, self.value(rest.strip("[]")))
        if kind == "refcount":
            return self.refcount(i)
        if kind == "snapshot":
            off = self.snapshot_offset(i)
            m = re.fullmatch(r"\.(l1|l2)((?:\[[^]]*\])+)(\.\w+)?", rest)
            if m:
                return self.l1_or_l2(self.number(off, 8), m)
            return self.member(off, SNAPSHOT, rest[1:])
        if kind == "bitmap":
            off = self.bitmap_offset(i)
            m = re.fullmatch(r"\.table\[([^]]*)\]", rest)
            if m:
                return Field(self.number(off, 8) + 8 * self.value(m[1]), 8)
            return self.member(off, BITMAP, rest[1:])
        raise ValueError("unknown field " + kind)

    # Values.
    def value(self, text, cur=0):
        if text.startswith("hex:"):
            return bytes.fromhex(text[4:])
        if text.startswith("text:"):
            return text[5:].encode()
        text = re.sub(r"@([\w.]+(?:\[[^]]*\]|\.\w+)*)",
                      lambda m: str(self.get(self.find(m[1]))), text)
        text = re.sub(r"\b(\d+)([kMGT])\b",
                      lambda m: str(int(m[1]) <<
                                    10 * (1 + "kMGT".index(m[2]))), text)
        names = {"end": self.length(), "cluster": self.cluster, "cur": cur}
        return evaluate(ast.parse(text, mode="eval").body, names)

    def assign(self, setting):
        m = re.fullmatch(r"(.+?)([-+|&^]?)=(.*)", setting)
        if not m:
            raise ValueError("FIELD=VALUE expected, not " + setting)
        name, op, text = m.groups()
        if name == "truncate":
            self.f.truncate(self.value(text))
        elif name == "append":
            self.f.truncate(self.length() + self.value(text))
        elif name == "add_ext":
            kind, _, data = text.partition(":")
            kind = EXTENSIONS[kind] if kind in EXTENSIONS else int(kind, 0)
            self.add_extension(kind, data.encode())
        else:
            field = self.find(name)
            cur = self.get(field) if field.size else 0
            value = self.value(text, cur)
            if op:
                value = OPERATORS[op](cur, value)
            self.set(field, value)

    def list(self):
        for name in HEADER:
            print("header.%s = 0x%x" % (name, self.header(name)))
        for i, (kind, off, length) in enumerate(self.extensions()):
            print("ext[%d]: type 0x%08x, %d bytes at 0x%x"
                  % (i, kind, length, off))
        l1 = self.header("l1_table_offset")
        for i in range(min(self.header("l1_size"), 64)):
            print("l1[%d] = 0x%016x" % (i, self.number(l1 + 8 * i, 8)))
        for i in range(self.header("nb_snapshots")):
            off = self.snapshot_offset(i)
            for name, (at, size) in SNAPSHOT.items():
                print("snapshot[%d].%s = 0x%x"
                      % (i, name, self.number(off + at, size)))


OPERATORS = {"+": operator.add, "-": operator.sub, "|": operator.or_,
             "&": operator.and_, "^": operator.xor}
AST_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_, ast.BitXor: operator.xor,
}


def split_index(name):
    """KIND[INDEX]REST, where INDEX may have brackets itself."""
    depth = 0
    start = name.find("[")
    for i, c in enumerate(name):
        depth += (c == "[") - (c == "]")
        if c == "]" and depth == 0 and start > 0:
            return name[:start], name[start + 1:i], name[i + 1:]
    raise ValueError("unknown field " + name)


def evaluate(node, names):
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in AST_OPERATORS:
        return AST_OPERATORS[type(node.op)](evaluate(node.left, names),
                                            evaluate(node.right, names))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~evaluate(node.operand, names)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -evaluate(node.operand, names)
    raise ValueError("cannot evaluate " + ast.dump(node))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    path, command, args = sys.argv[1], sys.argv[2], sys.argv[3:]
    if command == "create":
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2"] +
                       args[:-1] + [path, args[-1]], check=True)
        return
    image = Image(path, "r+b" if command == "set" else "rb")
    for arg in args:
        try:
            if command == "set":
                image.assign(arg)
            elif command == "get":
                value = image.get(image.find(arg))
                print(value if isinstance(value, int) else value.hex())
        except (ValueError, KeyError, IndexError, SyntaxError) as e:
            sys.exit("image-builder.py: %s: %s" % (arg, e))
    if command == "list":
        image.list()
    elif command not in ("set", "get"):
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
