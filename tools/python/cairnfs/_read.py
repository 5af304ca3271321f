# SPDX-License-Identifier: MIT
"""Reading files back: directly to their destination, on the device they came from.

Input is untrusted: names of classes are looked up in lists, offsets are checked.
"""

from __future__ import annotations

import inspect
import io
import mmap
import os
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple, Union

import torch

from . import _zip
from ._memory import Memory, PlainMemory, memory_for

PathLike = Union[str, "os.PathLike[str]"]
MapLocation = Optional[Union[str, torch.device, Callable[[str], Any], Dict[str, str]]]
_plain = PlainMemory()


def available(location: str) -> torch.device:
    """The device a location names, or the CPU where this machine has no such device."""
    try:
        device = torch.device(location)
    except RuntimeError:
        return torch.device("cpu")
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda" and torch.cuda.is_available():
        if device.index is None or device.index < torch.cuda.device_count():
            return device
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def target_device(location: str, map_location: MapLocation) -> torch.device:
    if map_location is None:
        return available(location)
    if isinstance(map_location, dict):
        return available(map_location.get(location, location))
    if isinstance(map_location, (str, torch.device)):
        return torch.device(map_location)
    found = map_location(location)
    return available(location) if found is None else torch.device(found)


class MappedFile:
    """A file, mapped for random access; copy on write, as torch.load maps."""

    def __init__(self, path: str) -> None:
        self.path = path
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(fd).st_size
            self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) if self.size else None
        finally:
            os.close(fd)

    def view(self, offset: int, length: int) -> memoryview:
        if offset < 0 or length < 0 or offset > self.size or length > self.size - offset:
            raise ValueError(f"{self.path}: {length} bytes at {offset} are beyond its end")
        whole = memoryview(self._map) if self._map is not None else memoryview(b"")
        return whole[offset:offset + length]

    def tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes as a tensor over the mapping, which lives as long."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        self.view(offset, nbytes)
        return torch.frombuffer(self._map, dtype=torch.uint8, count=nbytes, offset=offset)


# --- one tensor as DCP stores it ---------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """Where a stored tensor's bytes are, and what they are."""

    dtype: torch.dtype
    size: Tuple[int, ...]
    stride: Tuple[int, ...]
    storage_offset: int         # in elements
    at: int                     # of the storage's bytes, from the item's start
    nbytes: int


class Unknown(ValueError):
    """An item that only torch.load can read."""


@dataclass(frozen=True)
class _Storage:
    dtype: torch.dtype
    key: str


def _rebuild_v2(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Any:
    if len(_) > 2 and _[2]:
        raise Unknown("a conjugated or negated tensor")
    return storage, storage.dtype, offset, tuple(size), tuple(stride)


def _rebuild_v3(storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any,
                dtype: Any, *metadata: Any) -> Any:
    if metadata and metadata[0]:
        raise Unknown("a conjugated or negated tensor")
    return storage, dtype, offset, tuple(size), tuple(stride)


def _dtype_of(kind: Any) -> Any:
    """The type of a class such as torch.FloatStorage, whose `dtype` warns that it is deprecated."""
    return getattr(kind, "_dtype", None)


class _TensorUnpickler(pickle.Unpickler):
    """data.pkl of one plain tensor; of anything else Unknown."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return _rebuild_v2
        if module == "torch._utils" and name == "_rebuild_tensor_v3":
            return _rebuild_v3
        if module == "collections" and name == "OrderedDict":
            return OrderedDict
        if module in ("torch", "torch.storage") and name == "UntypedStorage":
            return torch.uint8
        if module == "torch":
            found = getattr(torch, name, None)
            if isinstance(found, torch.dtype):
                return found
            if name.endswith("Storage") and isinstance(_dtype_of(found), torch.dtype):
                return _dtype_of(found)
        raise Unknown(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
            raise Unknown("no storage")
        if not isinstance(pid[1], torch.dtype) or not isinstance(pid[2], str):
            raise Unknown("no storage")
        return _Storage(pid[1], pid[2])


def _whole(numbers: Any) -> bool:
    return all(isinstance(n, int) and 0 <= n < 1 << 62 for n in numbers)


def stored_tensor(item: memoryview) -> Stored:
    """The contents of an item of a .distcp file. Unknown, _zip.BadZip."""
    entries = _zip.read_directory(item)
    order = entries.get("byteorder")
    if order is not None and bytes(item[order[0]:order[0] + order[1]]) != b"little":
        raise Unknown("another byte order")
    if "data.pkl" not in entries:
        raise Unknown("no data.pkl")
    at, length = entries["data.pkl"]
    try:
        found = _TensorUnpickler(io.BytesIO(item[at:at + length])).load()
        storage, dtype, offset, size, stride = found
    except Unknown:
        raise
    except Exception as e:      # pickle raises anything on invalid bytes
        raise Unknown(str(e)) from None
    if not isinstance(storage, _Storage) or not isinstance(dtype, torch.dtype) or \
            f"data/{storage.key}" not in entries or len(size) != len(stride) or \
            not _whole((*size, *stride, offset)):
        raise Unknown("no plain tensor")
    where, nbytes = entries[f"data/{storage.key}"]
    empty = 0 in size
    last = offset + sum((n - 1) * s for n, s in zip(size, stride))
    itemsize = torch.empty(0, dtype=dtype, device="cpu").element_size()
    if not empty and (last + 1) * itemsize > nbytes:
        raise Unknown("a tensor that reaches beyond its storage")
    return Stored(dtype, size, stride, offset, where, nbytes)


def fills(stored: Stored, t: torch.Tensor) -> bool:
    """Are the stored bytes, unchanged, those of t?"""
    return (stored.dtype == t.dtype and stored.size == tuple(t.size()) and
            stored.stride == tuple(t.stride()) and stored.storage_offset == 0 and
            stored.nbytes == t.numel() * t.element_size() and not t.is_conj() and not t.is_neg())


def read_into(memory: Memory, path: str, offset: int, t: torch.Tensor) -> bool:
    """Reads t's bytes from a file directly; t covers what is at its address. False: not possible."""
    if t.device.type not in ("cpu", "cuda"):
        return False
    nbytes = t.numel() * t.element_size()
    if not nbytes:
        return True
    cuda = t.device.type == "cuda"
    stream = torch.cuda.current_stream(t.device).cuda_stream if cuda else 0
    return memory.load(path, offset, t.data_ptr(), nbytes, stream, cuda)


# --- a file of torch.save's --------------------------------------------------------------------


def load(path: PathLike, map_location: MapLocation = None, *, weights_only: bool = True,
         memory: Optional[Memory] = None) -> Any:
    """What CairnStager.commit() or torch.save() wrote, each tensor on the device it came from; on
    the CPU if this machine has no such device (torch.load() fails then). To a GPU the bytes
    go through registered memory of libcairn.

    map_location: a device for all; {recorded: wanted}; or a function of the recorded ("cuda:1").
    weights_only: as in torch.load: classes must be known, torch.serialization.add_safe_globals().
        With False the file can run any code: only for files you trust.
    """
    name = os.path.abspath(os.fspath(path))
    mapped = MappedFile(name)
    item = mapped.view(0, mapped.size)
    try:
        entries = _zip.read_directory(item)
        order = entries.get("byteorder")
        if order is not None and bytes(item[order[0]:order[0] + order[1]]) != b"little":
            raise _zip.BadZip("another byte order")
        at, length = entries["data.pkl"]
    except (_zip.BadZip, KeyError):
        # An older or foreign way to write it.
        return torch.load(name, map_location=_as_torch(map_location), weights_only=weights_only)
    source = memory or memory_for(name)
    try:
        loader = _Loader(name, entries, map_location, source)
        unpickler = loader.unpickler(io.BytesIO(item[at:at + length]), weights_only)
        result = unpickler.load()
        loader.finish(weights_only)
        return result
    finally:
        if memory is None:
            source.close()


def _as_torch(map_location: MapLocation) -> Any:
    if map_location is None or isinstance(map_location, (str, torch.device)):
        return map_location
    return lambda storage, location: (
        storage.cpu() if target_device(location, map_location).type == "cpu" else
        storage.to(device=target_device(location, map_location)))


class _Loader:
    """The storages of one file."""

    def __init__(self, path: str, entries: Dict[str, Tuple[int, int]], map_location: MapLocation,
                 memory: Memory) -> None:
        self.path = path
        self.entries = entries
        self.map_location = map_location
        self.memory = memory
        self.storages: Dict[str, torch.UntypedStorage] = {}
        self.devices: Dict[torch.device, None] = {}

    def storage(self, key: str, location: str, need: int) -> torch.UntypedStorage:
        known = self.storages.get(key)
        if known is None:
            entry = self.entries.get(f"data/{key}")
            if entry is None:
                raise pickle.UnpicklingError(f"{self.path} has no data/{key}")
            device = target_device(location, self.map_location)
            known = self.storages[key] = self.read(entry[0], entry[1], device)
        if need > known.nbytes():
            raise pickle.UnpicklingError(f"{self.path}: data/{key} is too short")
        return known

    def read(self, at: int, nbytes: int, device: torch.device) -> torch.UntypedStorage:
        new = torch.UntypedStorage(nbytes, device=device)
        self.devices[new.device] = None
        flat = torch.empty(0, dtype=torch.uint8, device=new.device).set_(new)
        if not read_into(self.memory, self.path, at, flat):
            host = torch.UntypedStorage(nbytes, device="cpu")
            read_into(_plain, self.path, at,
                      torch.empty(0, dtype=torch.uint8, device="cpu").set_(host))
            new.copy_(host)
        return new

    def finish(self, weights_only: bool) -> None:
        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        # As at the end of torch.load: until then an index of a sparse tensor may point anywhere.
        validate = torch._utils._validate_loaded_sparse_tensors
        if inspect.signature(validate).parameters:
            validate(weights_only=weights_only)
        else:
            validate()

    def persistent_load(self, pid: Any) -> Any:
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] not in ("storage", b"storage"):
            raise pickle.UnpicklingError("a persistent id that is no storage")
        _, kind, key, location, length = pid
        dtype = torch.uint8 if kind is torch.UntypedStorage else _dtype_of(kind)
        if not isinstance(key, str) or not isinstance(location, str) or \
                not isinstance(length, int) or length < 0:
            raise pickle.UnpicklingError("a persistent id that is no storage")
        itemsize = torch.empty(0, dtype=dtype, device="cpu").element_size()
        return torch.storage.TypedStorage(
            wrap_storage=self.storage(key, location, length * itemsize), dtype=dtype,
            _internal=True)

    def unpickler(self, data: io.BytesIO, weights_only: bool) -> Any:
        if weights_only:
            from torch import _weights_only_unpickler
            restricted = _weights_only_unpickler.Unpickler(data, encoding="utf-8")
            restricted.persistent_load = self.persistent_load   # type: ignore[method-assign]
            return restricted
        loader = self

        class Any_(pickle.Unpickler):
            def persistent_load(self, pid: Any) -> Any:
                return loader.persistent_load(pid)

        return Any_(data)
