#!/usr/bin/env python3
"""Writes the novels of the R package janeaustenr as OUTPUT/<novel>.txt.   usage: extract_austen.py PACKAGE_DATA_DIR OUTPUT

The package keeps them as an R lazy-load database: Rdata.rdx is a gzip-compressed table {name: [offset, length]} of entries in Rdata.rdb, each a big-endian
uint32 (its size unpacked), then a zlib stream, or the letter 2 or Z and a bzip2 or raw LZMA2 stream. Both files hold R objects in XDR serialization
(R Internals, section 1.8), of which only the types that occur here are read. Standard library only.
"""
import bz2
import gzip
import lzma
import pathlib
import struct
import sys
import zlib

NULL, REFERENCE, SYMBOL, PAIRLIST, STRING, LOGICALS, INTEGERS, STRINGS, LIST = 254, 255, 1, 2, 9, 10, 13, 16, 19
HAS_ATTRIBUTES, HAS_TAG, IS_LATIN1 = 1 << 9, 1 << 10, 1 << 14


class Unserializer:
    """Reads one R object: vectors become lists, named ones and pairlists become dicts."""

    def __init__(self, data):
        if data[:2] != b"X\n":
            raise ValueError("not an R object in XDR serialization")
        self.data = data
        self.position = 2
        self.symbols = []
        version, _writer, _reader = self.integer(), self.integer(), self.integer()
        if version >= 3:
            self.bytes(self.integer())  # the writer's native encoding

    def bytes(self, count):
        self.position += count
        return self.data[self.position - count:self.position]

    def integer(self):
        return struct.unpack(">i", self.bytes(4))[0]

    def object(self):
        flags = self.integer()
        kind = flags & 0xFF
        if kind == NULL:
            return None
        if kind == REFERENCE:
            return self.symbols[(flags >> 8) - 1]
        if kind == SYMBOL:
            self.symbols.append(self.object())
            return self.symbols[-1]
        if kind == STRING:
            length = self.integer()  # -1: not available
            return "" if length < 0 else self.bytes(length).decode("latin-1" if flags & IS_LATIN1 else "utf-8")
        if kind == PAIRLIST:
            return self.pairlist(flags)
        if kind in (LOGICALS, INTEGERS):
            values = [self.integer() for _ in range(self.integer())]
        elif kind in (STRINGS, LIST):
            values = [self.object() for _ in range(self.integer())]
        else:
            raise ValueError(f"unexpected R type {kind} at byte {self.position}")
        attributes = self.object() if flags & HAS_ATTRIBUTES else {}
        return dict(zip(attributes["names"], values)) if "names" in attributes else values

    def pairlist(self, flags):
        pairs = {}
        while flags & 0xFF == PAIRLIST:
            if flags & HAS_ATTRIBUTES:
                self.object()
            tag = self.object() if flags & HAS_TAG else None
            pairs[tag] = self.object()
            flags = self.integer()
        return pairs


def unpack(entry):
    if entry[4:5] == b"Z":
        return lzma.decompress(entry[5:], lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])
    if entry[4:5] == b"2":
        return bz2.decompress(entry[5:])
    return zlib.decompress(entry[4:])


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: extract_austen.py PACKAGE_DATA_DIR OUTPUT")
    source, output = map(pathlib.Path, sys.argv[1:])
    database = (source / "Rdata.rdb").read_bytes()
    table = Unserializer(gzip.decompress((source / "Rdata.rdx").read_bytes())).object()
    for name, (offset, length) in table["variables"].items():
        lines = Unserializer(unpack(database[offset:offset + length])).object()
        (output / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
