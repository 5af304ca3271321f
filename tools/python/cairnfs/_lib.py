# SPDX-License-Identifier: MIT
"""libcairn.so by ctypes. cairn.h has the contract of each call; it is not repeated here."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import logging
import os
import threading
from typing import Any, Dict, List, Optional

log = logging.getLogger("cairnfs")

NO_CUDA = 0x1
OWN_ONLY = 0x2
EXCL = 0x1
OWN = 0
STAGED = 1

Notice = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)


class Options(ctypes.Structure):
    """struct cairn_options"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("flags", ctypes.c_uint),
        ("device", ctypes.c_int),
        ("idle_bytes", ctypes.c_uint64),
        ("notice", Notice),
        ("notice_arg", ctypes.c_void_p),
    ]


class Stats(ctypes.Structure):
    """struct cairn_stats"""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "shards", "registrations", "buffers", "buffer_bytes", "registered_bytes", "mapped",
        "bytes_device", "bytes_host", "bytes_written", "bytes_loaded", "unregistered", "own")]

    def as_dict(self) -> Dict[str, int]:
        return {field[0]: int(getattr(self, field[0])) for field in self._fields_}


def _tell(_arg: Any, text: bytes) -> None:
    # Called inside a call of the library, which this must not call.
    log.warning("%s", text.decode(errors="replace"))


_notice = Notice(_tell)         # lives as long as any stage


_P = ctypes.c_void_p
_PROTOTYPES = {
    "cairn_version": (ctypes.c_char_p, []),
    "cairn_error": (ctypes.c_char_p, []),
    "cairn_stage_open": (ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(Options),
                                        ctypes.POINTER(_P)]),
    "cairn_stage_close": (ctypes.c_int, [_P]),
    "cairn_stage_trim": (ctypes.c_int, [_P]),
    "cairn_stage_stats": (ctypes.c_int, [_P, ctypes.POINTER(Stats), ctypes.c_size_t]),
    "cairn_stage_mount": (ctypes.c_char_p, [_P]),
    "cairn_shard_create": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint,
                                          ctypes.POINTER(_P)]),
    "cairn_shard_set_path": (ctypes.c_int, [_P, ctypes.c_char_p]),
    "cairn_shard_data": (_P, [_P]),
    "cairn_shard_kind": (ctypes.c_int, [_P]),
    "cairn_shard_device": (ctypes.c_int, [_P, ctypes.c_char_p]),
    "cairn_shard_commit": (ctypes.c_int, [_P, ctypes.c_uint64]),
    "cairn_shard_abort": (ctypes.c_int, [_P]),
    "cairn_wait": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int]),
    "cairn_load": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.c_uint64, _P, ctypes.c_uint64, _P]),
    "cairn_crc32": (ctypes.c_uint32, [ctypes.c_uint32, _P, ctypes.c_size_t]),
    "cairn_device": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]),
}


class Library:
    """The loaded library. call() raises OSError (FileNotFoundError, TimeoutError, ...) for a
    negative result, with libcairn's own text, which says what to do."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._c = ctypes.CDLL(path, use_errno=True)
        for name, (restype, argtypes) in _PROTOTYPES.items():
            function = getattr(self._c, name)
            function.restype = restype
            function.argtypes = argtypes
        self.version = self._c.cairn_version().decode()

    def call(self, name: str, *args: Any) -> int:
        rc = int(getattr(self._c, name)(*args))
        if rc < 0:
            text = self._c.cairn_error().decode(errors="replace")
            raise OSError(-rc, text or os.strerror(-rc))
        return rc

    def data(self, shard: Any) -> int:
        address = self._c.cairn_shard_data(shard)
        if address is None:
            raise OSError(errno.ECHILD, "this shard's stage is the parent process's")
        return int(address)

    def crc32(self, address: int, nbytes: int) -> int:
        return int(self._c.cairn_crc32(0, address, nbytes))

    def mount(self, stage: Any) -> Optional[str]:
        found = self._c.cairn_stage_mount(stage)
        return None if found is None else os.fsdecode(found)

    def notice(self) -> Any:
        return _notice


def _candidates() -> List[str]:
    named = os.environ.get("CAIRN_LIBRARY")
    if named is not None:
        # Empty: none, on purpose.
        return [named] if named else []
    found = ctypes.util.find_library("cairn")
    here = os.path.dirname(os.path.abspath(__file__))
    # Beside a source tree that has been built, when used from there.
    tree = os.path.join(here, "..", "..", "..", "build", "libcairn.so")
    return [path for path in (
        _installed(here), found, "/usr/local/lib/libcairn.so", os.path.normpath(tree),
    ) if path and (os.sep not in path or os.path.exists(path))]


def _installed(here: str) -> Optional[str]:
    """The one that `make install` put next to this package: install.py recorded where."""
    try:
        with open(os.path.join(here, "libcairn.path"), encoding="utf-8") as f:
            return os.path.normpath(os.path.join(here, f.read().rstrip("\n")))
    except OSError:
        return None


_lock = threading.Lock()
_found: Optional[Library] = None
_looked = False


def library() -> Optional[Library]:
    """libcairn, or None if there is none: $CAIRN_LIBRARY (empty: none), the one installed with
    this package, the loader's path, /usr/local/lib, the build of this source tree.
    Searched once."""
    global _found, _looked
    with _lock:
        if not _looked:
            _looked = True
            candidates = _candidates()
            for path in candidates:
                try:
                    _found = Library(path)
                    break
                except (OSError, AttributeError) as e:
                    log.warning("%s cannot be used: %s", path, e)
            if not candidates and os.environ.get("CAIRN_LIBRARY") != "":
                log.warning("libcairn.so is not found: checkpoints are copied once more, on a cairnfs mount, "
                            "too. Install cairnfs (make install) or its wheel (make wheel), or set "
                            "CAIRN_LIBRARY to the library (empty: run without it and without this warning)")
        return _found
