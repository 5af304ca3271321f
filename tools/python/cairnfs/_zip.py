# SPDX-License-Identifier: MIT
"""Zip archives as torch.save writes them, made in place around existing bytes, and their
directories read back. Entries are stored, zip64 where needed, data at multiples of 64.

Checksums of data are 0 unless requested, as torch.serialization.set_crc32_options(False) leaves
them: PyTorch does not check them, and cairnfs has its own of the whole file.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from typing import Dict, List, Tuple, Union

from . import _lib

ALIGN = 64
PREFIX = b"archive/"
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")
_UTF8 = 0x0800
_MAX32 = 0xFFFFFFFF
# More than a local header with its name, a zip64 field and the padding can take.
MARGIN = 192

Buffer = Union[bytes, memoryview]


def crc32(data: Buffer) -> int:
    library = _lib.library() if len(data) >= 1 << 16 else None
    if library is None or not isinstance(data, memoryview) or data.readonly:
        return zlib.crc32(data) & _MAX32
    there = (ctypes.c_char * data.nbytes).from_buffer(data)
    return library.crc32(ctypes.addressof(there), data.nbytes)


class Writer:
    """What surrounds entries whose places the caller chooses, front to back. Offsets are relative to
    the archive's first byte."""

    def __init__(self) -> None:
        self._central: List[bytes] = []

    def header(self, name: str, size: int, crc: int, at: int, align: int = 1) -> bytes:
        """The local header at `at`; the data follow it, at a multiple of `align`."""
        raw = PREFIX + name.encode()
        large = size >= _MAX32
        extra = struct.pack("<HHQQ", 1, 16, size, size) if large else b""
        # "FB" is what PyTorch pads with; a field takes 4 bytes at least.
        pad = -(at + _LOCAL.size + len(raw) + len(extra)) % align
        if pad:
            pad += align if pad < 4 else 0
            extra += struct.pack("<2sH", b"FB", pad - 4) + b"\0" * (pad - 4)
        size32 = _MAX32 if large else size
        far = at >= _MAX32
        central_extra = b""
        if large or far:
            fields = ([size, size] if large else []) + ([at] if far else [])
            central_extra = struct.pack(f"<HH{len(fields)}Q", 1, 8 * len(fields), *fields)
        version = 45 if large or far else 20
        self._central.append(_CENTRAL.pack(
            0x02014B50, version, version, _UTF8, 0, 0, 0, crc, size32, size32, len(raw),
            len(central_extra), 0, 0, 0, 0, _MAX32 if far else at) + raw + central_extra)
        return _LOCAL.pack(0x04034B50, version, _UTF8, 0, 0, 0, crc, size32, size32, len(raw),
                           len(extra)) + raw + extra

    def entry(self, name: str, data: bytes, at: int) -> bytes:
        """A whole small entry at `at`."""
        return self.header(name, len(data), crc32(data), at) + data

    def end(self, at: int) -> bytes:
        """The directory, at `at`; the archive ends with it."""
        central = b"".join(self._central)
        n, size = len(self._central), len(central)
        return b"".join([
            central,
            _END64.pack(0x06064B50, _END64.size - 12, 45, 45, 0, 0, n, n, size, at),
            _LOCATOR.pack(0x07064B50, 0, at + size, 1),
            _END.pack(0x06054B50, 0, 0, min(n, 0xFFFF), min(n, 0xFFFF), min(size, _MAX32),
                      min(at, _MAX32), 0),
        ])


class BadZip(ValueError):
    """An archive that this code cannot read; PyTorch may."""


def _find_end(data: memoryview) -> Tuple[int, int, int]:
    """Offset, length and entries of the directory."""
    tail = bytes(data[-(_END.size + _LOCATOR.size + _END64.size + 1024):])
    at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        raise BadZip("no end record")
    _, _, _, _, n, size, start, _ = _END.unpack_from(tail, at)
    if at >= _LOCATOR.size and tail[at - _LOCATOR.size:at - _LOCATOR.size + 4] == b"PK\6\7":
        _, _, end64, _ = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        if end64 > len(data) - _END64.size:
            raise BadZip("the zip64 end record lies outside")
        magic, _, _, _, _, _, _, n, size, start = _END64.unpack_from(data, end64)
        if magic != 0x06064B50:
            raise BadZip("no zip64 end record")
    if start > len(data) or size > len(data) - start:
        raise BadZip("the directory lies outside")
    return start, size, n


def _wide(extra: bytes, size: int, packed: int, local: int) -> Tuple[int, int, int]:
    """The zip64 field, if one of them is too large for 32 bits."""
    values, i, at = [size, packed, local], 0, 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if kind == 1:
            field = extra[at:at + length]
            for j, value in enumerate(values):
                if value == _MAX32:
                    if i + 8 > len(field):
                        raise BadZip("a short zip64 field")
                    values[j] = struct.unpack_from("<Q", field, i)[0]
                    i += 8
            break
        at += length
    return values[0], values[1], values[2]


def read_directory(data: memoryview) -> Dict[str, Tuple[int, int]]:
    """{name without the archive's prefix: (offset of its bytes, length)}. BadZip."""
    start, size, n = _find_end(data)
    central = data[start:start + size]
    found: Dict[str, Tuple[int, int]] = {}
    at = 0
    for _ in range(n):
        if at + _CENTRAL.size > size:
            raise BadZip("the directory is cut off")
        (magic, _, _, flags, method, _, _, _, packed, length, n_name, n_extra, n_comment, _, _, _,
         local) = _CENTRAL.unpack_from(central, at)
        at += _CENTRAL.size
        if magic != 0x02014B50 or method != 0 or flags & 1:
            raise BadZip("no stored entry")
        if at + n_name + n_extra + n_comment > size:
            raise BadZip("the directory is cut off")
        name = bytes(central[at:at + n_name]).decode("utf-8", "replace")
        length, packed, local = _wide(bytes(central[at + n_name:at + n_name + n_extra]), length,
                                      packed, local)
        at += n_name + n_extra + n_comment
        if packed != length or local > start or start - local < _LOCAL.size:
            raise BadZip(f"{name} lies outside")
        header = _LOCAL.unpack_from(data, local)
        where = local + _LOCAL.size + header[9] + header[10]
        if header[0] != 0x04034B50 or where > start or length > start - where:
            raise BadZip(f"{name} lies outside")
        found[name.partition("/")[2]] = (where, length)
    return found
