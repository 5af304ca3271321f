# SPDX-License-Identifier: MIT
"""Memory that becomes a file.

A *memory* makes blocks; a block is memory for one file that has no name yet. LibraryMemory is
libcairn's (staged files of a mount, registered with CUDA once); PlainMemory is torch's, written
with ordinary writes. Other modules do not depend on which of the two it is.

Tensors on a block keep its address range mapped: a memory is closed, and trimmed, only when
none of them exists. Their contents are valid until the block is committed or aborted; then the
memory is used for the next block.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, List, Optional

import torch

from . import _lib

PAGE = 4096
DEVICE_XATTR = "user.cairn.device"


class Block(ABC):
    """Memory of `size` bytes at `address`. Ended once, by commit() or abort()."""

    def __init__(self, memory: "Memory", address: int, size: int) -> None:
        self.memory = memory
        self.address = address
        self.size = size
        self._ended = False
        self._lock = threading.Lock()
        self._on_unused: Optional[Callable[[], None]] = None
        self._pid = os.getpid()
        # Only the storages keep this object alive for long: it ends with them.
        self._buffer: Optional[Any] = None
        if size:
            self._buffer = (ctypes.c_ubyte * size).from_address(address)
        self._weak: Optional[Any] = None
        if self._buffer is not None:
            self._weak = weakref.ref(self._buffer)
            memory._used(1)
            f = weakref.finalize(self._buffer, self._unused)
            f.atexit = False

    def _unused(self) -> None:
        # The block ends first: then its memory can be trimmed.
        if self._on_unused is not None:
            self._on_unused()
        self.memory._used(-1)

    def release(self, on_unused: Optional[Callable[[], None]] = None) -> None:
        """No more storages are made. on_unused is called when the last of them is gone, perhaps
        at once, by any thread; it must not block."""
        self._on_unused = on_unused
        if self._buffer is None:
            if on_unused is not None:
                on_unused()
            return
        self._buffer = None

    def reacquire(self) -> bool:
        """More storages are made, until release() again. False: the last one is gone."""
        with self._lock:
            self._buffer = None if self._ended or self._weak is None else self._weak()
            return self._buffer is not None

    def unhold(self) -> None:
        """After reacquire(): the storages keep it alive again, as after release()."""
        self._buffer = None

    def storage(self, offset: int, nbytes: int) -> torch.UntypedStorage:
        """A storage over a part of it."""
        if nbytes == 0:
            return torch.UntypedStorage(0)
        assert self._buffer is not None and offset + nbytes <= self.size
        return torch.frombuffer(self._buffer, dtype=torch.uint8, count=nbytes,
                                offset=offset).untyped_storage()

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Its bytes, writable; to be dropped before the block ends."""
        assert offset + nbytes <= self.size
        if nbytes == 0:
            return memoryview(bytearray())
        return memoryview((ctypes.c_ubyte * nbytes).from_address(self.address + offset)).cast("B")

    def write(self, offset: int, data: bytes) -> None:
        """Puts bytes there."""
        assert offset + len(data) <= self.size
        ctypes.memmove(self.address + offset, data, len(data))

    def _end(self) -> bool:
        """Is the caller the one that ends it?"""
        with self._lock:
            ended, self._ended = self._ended, True
            self._buffer = None
        return not ended and self._pid == os.getpid()

    def commit(self, path: str, size: int, device: str = "", exclusive: bool = False) -> None:
        """Gives the first `size` bytes the name `path`, replacing an existing file: at once, whole.
        device becomes user.cairn.device. Ends the block, also after an error."""
        if not self._end():
            raise RuntimeError("this block has ended already")
        self._commit(path, size, device, exclusive)

    def abort(self) -> None:
        """Ends it without a file; nothing when it has ended."""
        if self._end():
            self._abort()

    @abstractmethod
    def _commit(self, path: str, size: int, device: str, exclusive: bool) -> None: ...

    @abstractmethod
    def _abort(self) -> None: ...


class Memory(ABC):
    """Makes blocks. Any thread may call it."""

    def __init__(self) -> None:
        self._users = 0         # blocks with a storage that lives
        self._users_lock = threading.RLock()    # a finalizer may run inside
        self._close_wanted = False
        self._trim_wanted = False

    def _used(self, change: int) -> None:
        with self._users_lock:
            self._users += change
            if self._users:
                return
            close, trim = self._close_wanted, self._trim_wanted
            self._trim_wanted = False
        if close:
            self._close()
        elif trim:
            self._trim()

    @property
    def mount(self) -> Optional[str]:
        """The cairnfs mount that gives the memory, if one does."""
        return None

    @abstractmethod
    def create(self, size: int, use: str = "") -> Block:
        """A block of `size` bytes with arbitrary contents. use: the same each time that a later step's
        block replaces this one; shows libcairn where a step begins."""

    def trim(self) -> None:
        """Gives back what no block uses, as soon as no tensor is on it."""
        with self._users_lock:
            self._trim_wanted = self._users > 0
            if self._trim_wanted:
                return
        self._trim()

    def close(self) -> None:
        """No more blocks; the memory is freed when no tensor is on it any more."""
        with self._users_lock:
            self._close_wanted = True
            if self._users:
                return
        self._close()

    @abstractmethod
    def stats(self) -> Dict[str, int]:
        """Totals, by the names of struct cairn_stats as far as they apply."""

    @abstractmethod
    def load(self, path: str, offset: int, address: int, nbytes: int, stream: int,
             on_device: bool) -> bool:
        """Reads a part of a file to an address. False: not possible for this address."""

    @abstractmethod
    def _trim(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


# --- torch's own memory ------------------------------------------------------------------------


def directory_fsync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: memoryview) -> None:
    """write(2) until all is written."""
    while data:
        data = data[os.write(fd, data[:1 << 30]):]


_serial = itertools.count()


def temporary_name(path: str) -> str:
    """Beside path, and no other process's."""
    where, name = os.path.split(path)
    short = os.fsdecode(os.fsencode(name)[:200])
    return os.path.join(where, f".{short}.{os.getpid()}.{next(_serial)}.tmp")


RENAME_NOREPLACE = 1
AT_FDCWD = -100


def name_new(temporary: str, path: str) -> None:
    """Renames it to path, which must not exist: FileExistsError if it does, in one step. A link where
    the filesystem has no such rename (NFS)."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    error = errno.ENOSYS
    if rename is not None:
        if rename(AT_FDCWD, os.fsencode(temporary), AT_FDCWD, os.fsencode(path), RENAME_NOREPLACE) == 0:
            return
        error = ctypes.get_errno()
    if error not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(error, os.strerror(error), path)
    os.link(temporary, path)
    os.unlink(temporary)


class PlainBlock(Block):
    """Torch's memory, pinned where there is a GPU."""

    def __init__(self, memory: "PlainMemory", tensor: torch.Tensor) -> None:
        self._tensor: Optional[torch.Tensor] = tensor
        super().__init__(memory, tensor.data_ptr(), tensor.numel())
        if self._buffer is not None:
            self._buffer.owner = tensor         # for as long as a storage lies on it

    def _commit(self, path: str, size: int, device: str, exclusive: bool) -> None:
        temporary = temporary_name(path)
        try:
            self._write(temporary, size, device)
            if exclusive:
                name_new(temporary, path)
            else:
                os.rename(temporary, path)
        except BaseException:
            try:
                os.unlink(temporary)
            except OSError:
                pass
            raise
        else:
            self._count()
        finally:
            self._back()

    def _write(self, temporary: str, size: int, device: str) -> None:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            write_all(fd, self.view(0, size))
            if device:
                try:
                    os.setxattr(fd, DEVICE_XATTR, device.encode()[:255])
                except OSError:
                    pass            # as in libcairn: a filesystem without them loses it
        finally:
            os.close(fd)

    def _abort(self) -> None:
        self._back()

    def _count(self) -> None:
        assert isinstance(self.memory, PlainMemory)
        with self.memory._lock:
            self.memory._stats["shards"] += 1

    def _back(self) -> None:
        tensor, self._tensor = self._tensor, None
        assert isinstance(self.memory, PlainMemory) and tensor is not None
        self.memory._give_back(tensor)


class PlainMemory(Memory):
    """Torch's memory. Memory of ended blocks is kept for blocks of the same size."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._idle: List[torch.Tensor] = []
        self._stats = {"shards": 0, "buffers": 0, "buffer_bytes": 0, "mapped": 0}
        self._closed = False

    def create(self, size: int, use: str = "") -> Block:
        capacity = -(-max(size, 1) // PAGE) * PAGE
        with self._lock:
            for i, tensor in enumerate(self._idle):
                if tensor.numel() == capacity:
                    del self._idle[i]
                    return PlainBlock(self, tensor)
        tensor = torch.empty(capacity, dtype=torch.uint8, device="cpu",
                             pin_memory=torch.cuda.is_available())
        with self._lock:
            self._stats["mapped"] += 1
            self._stats["buffers"] += 1
            self._stats["buffer_bytes"] += capacity
        return PlainBlock(self, tensor)

    def _give_back(self, tensor: torch.Tensor) -> None:
        with self._lock:
            if self._closed:
                self._drop(tensor)
            else:
                self._idle.append(tensor)

    def _drop(self, tensor: torch.Tensor) -> None:
        self._stats["buffers"] -= 1
        self._stats["buffer_bytes"] -= tensor.numel()

    def stats(self) -> Dict[str, int]:
        with self._lock:
            return dict(self._stats)

    def load(self, path: str, offset: int, address: int, nbytes: int, stream: int,
             on_device: bool) -> bool:
        if on_device:
            return False
        into = memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while into:
                n = os.preadv(fd, [into[:1 << 30]], offset)
                if n == 0:
                    raise OSError(errno.ENODATA, "the file is shorter than its metadata says", path)
                offset += n
                into = into[n:]
        finally:
            os.close(fd)
        return True

    def _trim(self) -> None:
        with self._lock:
            while self._idle:
                self._drop(self._idle.pop())

    def _close(self) -> None:
        self._closed = True
        self._trim()


# --- libcairn's --------------------------------------------------------------------------------


class LibraryBlock(Block):
    """A shard of libcairn."""

    def __init__(self, memory: "LibraryMemory", shard: ctypes.c_void_p, size: int) -> None:
        self._shard = shard
        self._lib = memory.lib
        super().__init__(memory, self._lib.data(shard) if size else 0, size)
        if self._buffer is not None:
            self._buffer.owner = memory         # not closed while a storage lies on it

    def _commit(self, path: str, size: int, device: str, exclusive: bool) -> None:
        # CAIRN_EXCL is given when the shard is created, before a path is known: the file gets a hidden
        # name first. Without the check a file that is there is only found after the bytes' way.
        if exclusive and os.path.lexists(path):
            self._lib.call("cairn_shard_abort", self._shard)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        first = temporary_name(path) if exclusive else path
        try:
            self._lib.call("cairn_shard_set_path", self._shard, os.fsencode(first))
            self._lib.call("cairn_shard_device", self._shard, device.encode()[:255])
        except BaseException:
            self._lib.call("cairn_shard_abort", self._shard)
            raise
        self._lib.call("cairn_shard_commit", self._shard, size)
        if not exclusive:
            return
        try:
            name_new(first, path)
        except BaseException:
            os.unlink(first)
            raise

    def _abort(self) -> None:
        self._lib.call("cairn_shard_abort", self._shard)


class LibraryMemory(Memory):
    """A stage of libcairn for the filesystem that `directory` is on."""

    def __init__(self, lib: _lib.Library, directory: str) -> None:
        super().__init__()
        self.lib = lib
        self._directory = directory
        self._pid = os.getpid()
        self._stage: Optional[ctypes.c_void_p] = ctypes.c_void_p()
        options = _lib.Options(size=ctypes.sizeof(_lib.Options), idle_bytes=2**64 - 1,
                               notice=lib.notice())
        if torch.cuda.is_available():
            options.device = 1 + torch.cuda.current_device()
        lib.call("cairn_stage_open", os.fsencode(directory), ctypes.byref(options),
                 ctypes.byref(self._stage))
        # No block and no tensor is left when this object is freed: they keep it alive.
        self._finalizer = weakref.finalize(self, self._close_stage, lib, self._stage, os.getpid())
        self._finalizer.atexit = False

    @staticmethod
    def _close_stage(lib: _lib.Library, stage: ctypes.c_void_p, pid: int) -> None:
        if pid == os.getpid():
            lib.call("cairn_stage_close", stage)

    def _handle(self) -> ctypes.c_void_p:
        if self._stage is None:
            raise ValueError("this memory is closed")
        return self._stage

    @property
    def mount(self) -> Optional[str]:
        return self.lib.mount(self._handle())

    def create(self, size: int, use: str = "") -> Block:
        shard = ctypes.c_void_p()
        # A name that no file will have: the path is set later. The directory may have been that of
        # a checkpoint that was removed since.
        name = os.path.join(existing_directory(self._directory), f".cairn-stage.{use}")
        self.lib.call("cairn_shard_create", self._handle(), os.fsencode(name), size, 0,
                      ctypes.byref(shard))
        return LibraryBlock(self, shard, size)

    def stats(self) -> Dict[str, int]:
        found = _lib.Stats()
        self.lib.call("cairn_stage_stats", self._handle(), ctypes.byref(found),
                      ctypes.sizeof(found))
        return found.as_dict()

    def load(self, path: str, offset: int, address: int, nbytes: int, stream: int,
             on_device: bool) -> bool:
        self.lib.call("cairn_load", self._handle(), os.fsencode(path), offset, address, nbytes,
                      stream or None)
        return True

    def _trim(self) -> None:
        if self._stage is not None and self._pid == os.getpid():
            self.lib.call("cairn_stage_trim", self._stage)

    def _close(self) -> None:
        self._stage = None
        self._finalizer()


# --- which -------------------------------------------------------------------------------------


def existing_directory(path: str) -> str:
    """path, or its nearest existing parent directory."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def memory_for(path: Optional[str]) -> Memory:
    """libcairn's memory for files at or below path, or torch's if libcairn is not found or no
    path is known."""
    lib = _lib.library()
    if lib is None or path is None:
        return PlainMemory()
    return LibraryMemory(lib, existing_directory(path))


def _sync(path: str) -> None:
    """As cairn_wait does on any other filesystem."""
    if os.path.isdir(path):
        for top, _, names in os.walk(path):
            for name in names:
                _sync_file(os.path.join(top, name))
            directory_fsync(top)
        directory_fsync(os.path.dirname(os.path.abspath(path)))
        return
    _sync_file(path)
    directory_fsync(os.path.dirname(os.path.abspath(path)))


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def wait(path: "os.PathLike[str] | str", timeout: Optional[float] = None) -> None:
    """Returns when path, a file or a directory with all below it, is on stable storage: on a
    cairnfs mount when it is durable in the store, elsewhere after an fsync.

    timeout: seconds; None: for ever. TimeoutError: not yet. OSError: it failed.
    """
    name = os.path.abspath(os.fspath(path))
    lib = _lib.library()
    if lib is None:
        _wait_without_library(name, timeout)
        return
    lib.call("cairn_wait", os.fsencode(name),
             -1 if timeout is None else max(0, int(timeout * 1000)))


def _wait_without_library(path: str, timeout: Optional[float]) -> None:
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        state = _xattr(path, "user.cairn.state")
        if state is None:
            _sync(path)
            return
        if state == b"durable" and _xattr(path, "user.cairn.pending") in (None, b"0"):
            return
        if state == b"failed":
            raise OSError(errno.EIO, "not durable: see user.cairn.error", path)
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(errno.ETIMEDOUT, "not durable yet", path)
        time.sleep(0.01)


def _xattr(path: str, name: str) -> Optional[bytes]:
    """None if it has none, as for any path outside of mounts."""
    try:
        return os.getxattr(path, name)
    except OSError as e:
        if e.errno in (errno.ENODATA, errno.ENOTSUP):
            return None
        raise


def device_of(path: "os.PathLike[str] | str") -> Optional[str]:
    """user.cairn.device of a file: the devices its tensors came from, such as "cuda:0,cuda:1";
    None where none is recorded."""
    found = _xattr(os.fspath(path), DEVICE_XATTR)
    return None if found is None else found.decode()
