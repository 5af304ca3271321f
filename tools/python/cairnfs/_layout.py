# SPDX-License-Identifier: MIT
"""Where each tensor's bytes are in the file that is made from a block.

Two files are laid out: *torch*, one archive as torch.save writes it, for any object; and *dcp*, a
sequence of small archives, each what torch.distributed.checkpoint writes for one tensor. In
both, what surrounds the tensors is known before they are copied, so they are copied once, to
their final place.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import sys
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import torch

from . import _zip

ALIGN = _zip.ALIGN
# Beside the directory's entries: data.pkl of a small object, byteorder, version, end records.
TAIL = 1 << 16
_serial = itertools.count()


def aligned(n: int, to: int = ALIGN) -> int:
    return -(-n // to) * to


def storage_type(storage: Any) -> Tuple[Any, int]:
    """The class that torch.save names for a storage, and its length in elements of that."""
    if isinstance(storage, torch.storage.TypedStorage):
        return getattr(torch, storage._pickle_storage_type()), storage._size()
    return torch.UntypedStorage, storage.nbytes()


class _OnePickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, torch.storage.TypedStorage) or torch.is_storage(obj):
            kind, length = storage_type(obj)
            return ("storage", kind, "0", "cpu", length)
        return None


@dataclass(frozen=True)
class Item:
    """A tensor as DCP stores one: what precedes its bytes, their number, what follows."""

    before: bytes
    nbytes: int
    after: bytes

    @property
    def length(self) -> int:
        return len(self.before) + self.nbytes + len(self.after)


def item(dtype: torch.dtype, size: Tuple[int, ...], stride: Tuple[int, ...], crc: int = 0) -> Item:
    """For a tensor that fills its storage. crc: of its bytes; 0: none."""
    return _item(dtype, size, stride, torch.empty(0, dtype=dtype, device="cpu").element_size(), crc)


@functools.lru_cache(maxsize=1 << 14)
def _item(dtype: torch.dtype, size: Tuple[int, ...], stride: Tuple[int, ...], itemsize: int,
          crc: int) -> Item:
    like = torch.empty_strided(size, stride, dtype=dtype, device="cpu")     # never touched
    out = io.BytesIO()
    try:
        _OnePickler(out, protocol=2).dump(like)
    except KeyError:
        raise TypeError(f"a tensor of {dtype} cannot be stored: torch.save has no name for it") \
            from None
    w, before = _zip.Writer(), b""
    for name, data in (("data.pkl", out.getvalue()), *common_entries()):
        before += w.entry(name, data, len(before))
    nbytes = like.numel() * itemsize
    before += w.header("data/0", nbytes, crc, len(before), ALIGN)
    return Item(before, nbytes, w.end(len(before) + nbytes))


def common_entries() -> Tuple[Tuple[str, bytes], ...]:
    return ("byteorder", sys.byteorder.encode()), ("version", b"3\n")


def compact_stride(t: torch.Tensor) -> Tuple[int, ...]:
    """The strides of a copy that fills its storage: torch.preserve_format."""
    if t.is_contiguous():
        return tuple(t.stride())
    return tuple(torch.empty_like(t, device="meta").stride())


@dataclass(frozen=True)
class Want:
    """One piece of memory that a state dict needs. Equal wants can use the same memory."""

    nbytes: int
    like: Optional[Tuple[torch.dtype, Tuple[int, ...], Tuple[int, ...]]] = None     # dcp


@dataclass
class Layout:
    """The places of a state dict's wants, in the order of the walk."""

    wants: Tuple[Want, ...]
    offsets: List[int]              # of the bytes; in the block, or in the one aside
    aside: Set[int]                 # wants that do not belong to this file
    end: int                        # of what is laid out; the tail follows
    capacity: int                   # of the block, tail included
    aside_capacity: int = 0
    # dcp: by want
    items: Dict[int, Item] = field(default_factory=dict)
    names: List[str] = field(default_factory=list)      # torch: of the entries, by want
    # Users of the layout: weak references to the storages it was last used for.
    sources: Dict[int, Any] = field(default_factory=dict)
    use: str = field(default_factory=lambda: str(next(_serial)))    # of blocks made for it

    def used(self) -> int:
        return sum(w.nbytes for i, w in enumerate(self.wants) if i not in self.aside)


def torch_layout(wants: Tuple[Want, ...], tail: int, names: Sequence[str] = ()) -> Layout:
    """One archive: data/0, data/1, ... (or as named), and then the rest."""
    w, at, offsets = _zip.Writer(), 0, []
    found = list(names) or [str(i) for i in range(len(wants))]
    for name, want in zip(found, wants):
        at += len(w.header(f"data/{name}", want.nbytes, 0, at, ALIGN))
        offsets.append(at)
        at += want.nbytes
    return Layout(wants, offsets, set(), at, at + len(w.end(at)) + tail, names=found)


def dcp_layout(wants: Tuple[Want, ...], aside: Set[int], tail: int) -> Layout:
    """One archive per tensor. aside: tensors that another rank saves; they are staged as well, since
    only a plan shows which, but in separate memory."""
    at, beside, offsets, items = 0, 0, [], {}
    for i, want in enumerate(wants):
        if i in aside:
            offsets.append(beside)
            beside = aligned(beside + want.nbytes)
            continue
        assert want.like is not None
        items[i] = one = item(*want.like)
        offsets.append(at + len(one.before))
        at = aligned(at + one.length)
    return Layout(wants, offsets, aside, at, at + tail, beside, items)
