# SPDX-License-Identifier: MIT
"""CairnStager: a state dict's copy in memory that becomes a file.

    stager = CairnStager("/mnt/ckpt")
    staged = stager.stage(state_dict)           # the trainer may continue
    stager.commit("/mnt/ckpt/run1/step-100.pt", staged)
    cairnfs.wait("/mnt/ckpt/run1/step-100.pt")  # when it must be durable
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, ContextManager, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _layout, _zip
from ._copy import Copier
from ._gate import StateDictGate
from ._layout import Layout, Want
from ._memory import Block, Memory, PlainMemory, memory_for

StateDict = Any
# Types that copy_() copies unchanged.
_COPIED = frozenset([torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64,
                     torch.int32, torch.uint8])
# Classes whose instances have no slots and wrap nothing.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
PathLike = Union[str, "os.PathLike[str]"]
MAX_LAYOUTS = 16


class _Changed(Exception):
    """The state dict has another layout than the previous one."""


class _Others(Exception):
    """These are other tensors than those staged there."""


_nothing = nullcontext()


class Streams:
    """Copies from devices on side streams, one per device, and their one synchronisation."""

    def __init__(self) -> None:
        self._side: Dict[torch.device, Any] = {}
        self._busy: Dict[torch.device, Any] = {}
        self._ordered: Set[torch.device] = set()

    def begin(self) -> None:
        """Later copies wait for what has been queued until now."""
        self._ordered.clear()

    def busy(self) -> bool:
        return bool(self._busy)

    def snapshot(self) -> Dict[torch.device, Any]:
        """What this thread has queued so far; another thread's copies can follow it."""
        if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return {}
        device = torch.device("cuda", torch.cuda.current_device())
        return {device: torch.cuda.current_stream(device).record_event()}

    def on(self, device: torch.device, after: Dict[torch.device, Any]) -> ContextManager[None]:
        """Inside, work for the device is queued on its side stream, after `after`'s mark for
        it or else after the current stream. No effect for other than CUDA devices."""
        return _nothing if device.type != "cuda" else self._on(device, after)

    @contextmanager
    def _on(self, device: torch.device, after: Dict[torch.device, Any]) -> Iterator[None]:
        side = self._side.get(device)
        if side is None:
            side = self._side[device] = torch.cuda.Stream(device)
        if device not in self._ordered:
            self._ordered.add(device)
            if device in after:
                side.wait_event(after[device])
            else:
                side.wait_stream(torch.cuda.current_stream(device))
        try:
            with torch.cuda.stream(side):
                yield
        finally:
            # Each time and behind the work: another thread may have synchronized meanwhile, and
            # has not waited for this.
            self._busy[device] = side

    def synchronize(self) -> None:
        busy, self._busy = self._busy, {}
        for side in busy.values():
            side.synchronize()


class Staged:
    """One state dict in a block that has no name yet."""

    def __init__(self, layout: Layout, block: Block, aside: Optional[Block]) -> None:
        self.layout = layout
        self.block = block
        self.aside = aside
        self.devices: List[str] = ["cpu"] * len(layout.wants)
        self.sources: List[Any] = [None] * len(layout.wants)    # weak, the storages
        # Copies without a byte, which no address tells apart: {_cdata: (copy, device)}.
        self.empty: Dict[int, Tuple[torch.UntypedStorage, str]] = {}
        self.by_address: Dict[int, int] = {}
        for i, offset in enumerate(layout.offsets):
            if i not in layout.aside:
                self.by_address.setdefault(block.address + offset, i)

    def storage(self, i: int) -> torch.UntypedStorage:
        where = self.aside if i in self.layout.aside else self.block
        assert where is not None
        return where.storage(self.layout.offsets[i], self.layout.wants[i].nbytes)

    def find(self, address: int, nbytes: int) -> Optional[int]:
        """The want at that address, in the block and of this size."""
        i = self.by_address.get(address)
        return i if i is not None and self.layout.wants[i].nbytes == nbytes else None

    def abort(self) -> None:
        self.block.abort()
        if self.aside is not None:
            self.aside.abort()


class _Pass:
    """One walk over the state dict: with `staged` its bytes are copied there; without, the walk
    only collects the wants."""

    def __init__(self, stager: "CairnStager", staged: Optional[Staged],
                 after: Dict[torch.device, Any], again: bool = False) -> None:
        self.stager = stager
        self.staged = staged
        self.again = again      # only the same tensors may be written over
        self.after = after
        self.wants: List[Want] = []
        self.made: Dict[Any, torch.UntypedStorage] = {}
        self.sources: Dict[int, torch.UntypedStorage] = {}
        self.inflight: List[Any] = []
        self.shown: Set[Any] = set()        # keys of `made` whose bytes are copied
        self.empty: Dict[int, Tuple[torch.UntypedStorage, str]] = {}    # as in Staged

    # --- memory ------------------------------------------------------------------------------

    def _place(self, want: Want, source: torch.UntypedStorage) -> torch.UntypedStorage:
        i = len(self.wants)
        self.wants.append(want)
        if self.staged is None:
            return torch.UntypedStorage(want.nbytes)    # never touched
        wants = self.staged.layout.wants
        if i >= len(wants) or wants[i] != want:
            raise _Changed
        if not self.again:
            self.staged.sources[i] = weakref.ref(source)
        elif self.staged.sources[i]() is not source:
            raise _Others
        self.staged.devices[i] = str(source.device)
        return self.staged.storage(i)

    def _empty(self, source: torch.UntypedStorage) -> torch.UntypedStorage:
        new = torch.UntypedStorage(0)
        if source.device.type != "meta":
            self.empty[new._cdata] = new, str(source.device)
        return new

    def _source(self, storage: torch.UntypedStorage) -> None:
        self.sources[storage._cdata] = storage

    def _show(self, key: Any, to: Any, source: Any, device: torch.device) -> None:
        """Other code looks at these bytes next: they must be copied, even in the walk that only
        collects."""
        if key in self.shown:
            return
        self.shown.add(key)
        if self.staged is None:
            with self.stager._streams.on(device, self.after):
                to.copy_(source)
        self.stager._streams.synchronize()

    def whole(self, storage: torch.UntypedStorage, seen: bool) -> torch.UntypedStorage:
        """The copy of a storage, one for all that share it."""
        new = self.made.get(storage._cdata)
        if new is None:
            new = self._whole(storage)
        if seen and new.nbytes():
            self._show(storage._cdata, new, storage, storage.device)
        return new

    def _whole(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        self._source(storage)
        nbytes = storage.nbytes()
        if nbytes == 0 or storage.device.type == "meta":
            new = self._empty(storage)
        else:
            new = self._place(Want(nbytes), storage)
            if self.staged is not None:
                with self.stager._streams.on(storage.device, self.after):
                    new.copy_(storage, non_blocking=True)
                self.inflight.append((storage, new))
        self.made[storage._cdata] = new
        return new

    def compact(self, x: torch.Tensor, seen: bool) -> torch.Tensor:
        """A copy that fills its storage, one for all equal views."""
        source = x.untyped_storage()
        self._source(source)
        stride = _layout.compact_stride(x)
        key = (source._cdata, x.storage_offset(), x.size(), x.stride(), x.dtype)
        storage = self.made.get(key)
        new = storage is None
        nbytes = x.numel() * x.element_size()
        if storage is None:
            storage = (self._empty(source) if nbytes == 0 else
                       self._place(Want(nbytes, (x.dtype, tuple(x.size()), stride)), source))
            self.made[key] = storage
        y = torch.empty(0, dtype=x.dtype, device="cpu").set_(storage, 0, x.size(), stride)
        if new and nbytes and self.staged is not None:
            with self.stager._streams.on(x.device, self.after):
                copy_bytes(y, x)
            self.inflight.append((source, storage))
        if seen and nbytes:
            self._show(key, y, x, x.device)
        return y

    # --- tensors -----------------------------------------------------------------------------

    def on_storage(self, x: Any, copier: Copier) -> Any:
        if isinstance(x, torch.storage.TypedStorage):
            inner = self.whole(x._untyped_storage, copier.seen)
            return torch.storage.TypedStorage(wrap_storage=inner, dtype=x.dtype, _internal=True)
        return self.whole(x, copier.seen)

    def on_tensor(self, x: torch.Tensor, copier: Copier) -> Any:
        if type(x) not in _PLAIN:
            if hasattr(x, "trigger_wait"):
                x = x.trigger_wait()    # of a collective in progress only the result is used
            if is_of(x, "ShardedTensor"):
                return self._sharded(x, copier)
            if is_traceable_wrapper_subclass(x):
                return self._wrapper(x, copier)
        if x.is_nested:
            raise TypeError("a nested tensor with strided layout cannot be staged; one with layout "
                            "torch.jagged can")
        if x.is_meta:
            return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")
        if x.layout != torch.strided:
            return self._sparse(x, copier)
        if x.is_quantized:
            return copier.rebuild(x, x.__reduce_ex__(2))
        y = self._strided(x, copier.seen)
        copier.memo[id(x)] = y
        self._attributes(x, y, copier)
        return y

    def _strided(self, x: torch.Tensor, seen: bool) -> torch.Tensor:
        plain = x.detach()
        if type(plain) is not torch.Tensor:
            with torch._C.DisableTorchFunctionSubclass():
                plain = plain.as_subclass(torch.Tensor)
        if is_freed(plain):
            y = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="cpu")
            y.untyped_storage().resize_(0)
        elif self.stager.layout == "dcp":
            y = self.compact(plain.resolve_conj().resolve_neg(), seen)
        else:
            y = torch.empty(0, dtype=x.dtype, device="cpu").set_(
                self.whole(plain.untyped_storage(), seen), x.storage_offset(), x.size(),
                x.stride())
            if x.is_conj():
                torch._C._set_conj(y, True)
            if x.is_neg():
                torch._C._set_neg(y, True)
        if type(x) is not torch.Tensor:
            with torch._C.DisableTorchFunctionSubclass():
                y = y.as_subclass(type(x))
        if x.requires_grad and x.is_leaf:
            y.requires_grad_(True)
        return y

    @staticmethod
    def _attributes(x: Any, y: Any, copier: Copier, but: Iterable[str] = ()) -> None:
        for name, value in list(getattr(x, "__dict__", {}).items()):
            if name not in but:
                setattr(y, name, copier(value))
        if type(x) in _PLAIN:
            return
        for cls in type(x).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in but and not name.startswith("__") and hasattr(x, name):
                    setattr(y, name, copier(getattr(x, name)))

    def _wrapper(self, x: Any, copier: Copier) -> Any:
        """DTensor and similar: the same wrapper around copies of what it wraps."""
        names, context = x.__tensor_flatten__()
        # A mesh of devices is among them: that is no state.
        with copier.for_eyes(not is_of(x, "DTensor")):
            inner = {name: copier(value) if isinstance(value, torch.Tensor) else value
                     for name, value in ((name, getattr(x, name)) for name in names)}
        y = type(x).__tensor_unflatten__(inner, context, x.size(), x.stride())
        copier.memo[id(x)] = y
        known = set(names) | set(getattr(y, "__dict__", {}))
        for name, value in list(getattr(x, "__dict__", {}).items()):
            if name not in known:
                setattr(y, name, copier(value))
        return y

    @staticmethod
    def _sparse(x: torch.Tensor, copier: Copier) -> Any:
        # Not by the name in x.__reduce_ex__: that leaves the check of its result to a later torch.load.
        if x.layout == torch.sparse_coo:
            return torch.sparse_coo_tensor(
                copier(x._indices()), copier(x._values()), x.size(), check_invariants=False,
                is_coalesced=x.is_coalesced())
        if x.layout in (torch.sparse_csr, torch.sparse_bsr):
            compressed, plain = x.crow_indices(), x.col_indices()
        elif x.layout in (torch.sparse_csc, torch.sparse_bsc):
            compressed, plain = x.ccol_indices(), x.row_indices()
        else:
            raise TypeError(f"a tensor with layout {x.layout} cannot be staged")
        return torch.sparse_compressed_tensor(
            copier(compressed), copier(plain), copier(x.values()), x.size(), layout=x.layout,
            check_invariants=False)

    @staticmethod
    def _sharded(x: Any, copier: Copier) -> Any:
        from torch.distributed._shard.sharded_tensor.api import ShardedTensor
        from torch.distributed._shard.sharded_tensor.shard import Shard
        shards = [Shard(copier(s.tensor), s.metadata) for s in x.local_shards()]
        # As its own constructors do, without the check that the device is still the same one.
        y = ShardedTensor.__new__(ShardedTensor, x.sharding_spec(), x.size(), dtype=x.dtype,
                                  layout=x.layout, pin_memory=x.is_pinned(),
                                  requires_grad=x.requires_grad)
        y.__dict__.update(x.__dict__)
        y._local_shards = shards
        return y


def is_freed(x: torch.Tensor) -> bool:
    """Is its storage too short for it, as with tensors that FSDP has gathered and freed?"""
    n = x.numel()
    if not n:
        return False
    if x.is_contiguous():
        return bool((x.storage_offset() + n) * x.element_size() > x.untyped_storage().nbytes())
    last = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.size(), x.stride()))
    return bool((last + 1) * x.element_size() > x.untyped_storage().nbytes())


def is_of(x: Any, name: str) -> bool:
    """Is x of that class of torch.distributed, which takes seconds to import?"""
    cls = type(x)
    return cls.__name__ == name and cls.__module__.startswith("torch.distributed.")


def copy_bytes(y: torch.Tensor, x: torch.Tensor) -> None:
    """Copies x's elements to y, queued if x is on a device. As bytes if possible: not every
    type of element has a copy of its own."""
    if x.dtype not in _COPIED and x.is_contiguous() and y.is_contiguous() and \
            x.dtype == y.dtype and x.numel():
        x, y = x.view(-1).view(torch.uint8), y.view(-1).view(torch.uint8)
    y.copy_(x, non_blocking=True)


class CairnStager:
    """Copies state dicts into memory that becomes a file, with the semantics of PyTorch's
    StateDictStager (torch/distributed/checkpoint/_state_dict_stager.py):

    - the structure is kept: dicts, lists, tuples, NamedTuples, dataclasses (frozen, with slots,
      nested), and any other object as copy.deepcopy would copy it; one object stays one object;
    - a storage that tensors share is copied once, and they share the copy; offsets, strides,
      conjugation, subclasses and their attributes, Parameters are kept; DTensor, ShardedTensor and
      other wrappers are kept around copies of what they wrap; sparse and quantized tensors, too;
    - memory is used again for the next step, and given back when the tensors are gone.

    In addition, the device of each tensor is recorded; cairnfs.load() uses it.

    path: a directory (it need not exist yet) on the destination filesystem. On a cairnfs mount
        with libcairn the memory is that of staged files. None, or no libcairn: torch's own memory;
        commit() writes it. There is no other difference.
    layout: "torch", the file is as torch.save writes it; "dcp", each tensor as
        torch.distributed.checkpoint stores one, for CairnStorageWriter. With "dcp" overlapping
        views of one storage are copied separately, as DCP writes them.
    use_async_staging: stage() returns a Future and a thread copies. The state must not change
        until it is done: disallow_state_dict_read() waits for that.
    crc32: zip checksums of the tensors, for tools other than PyTorch that require them.
    keep_memory: memory is kept when the tensors are gone, for trainers with new tensors each step.
    timeout: seconds a wait at the gate may take; None: for ever.

    What stage() returns is valid until it is committed and the next stage() begins, or close();
    staging the same tensors again before that overwrites it (layout "torch"), as in PyTorch.

    One thread stages at a time; the gate's methods may be called by any thread.
    """

    _synchronize_after_execute = False

    def __init__(self, path: Optional[PathLike] = None, *, layout: str = "torch",
                 use_async_staging: bool = False, crc32: bool = False, keep_memory: bool = False,
                 timeout: Optional[float] = None, memory: Optional[Memory] = None,
                 pin_memory: Optional[bool] = None, share_memory: Optional[bool] = None) -> None:
        # As StateDictStager has them; both are decided by the memory: what becomes a file is shared,
        # and registered with the device where there is one.
        del pin_memory, share_memory
        if layout not in ("torch", "dcp"):
            raise ValueError(f"layout: torch or dcp, not {layout!r}")
        self.layout = layout
        self.crc32 = crc32
        self.keep_memory = keep_memory
        self.gate = StateDictGate(timeout)
        self.memory = memory or memory_for(None if path is None else os.fspath(path))
        self._beside = PlainMemory()            # for what is not part of this rank's file
        self._placed = memory is not None or path is not None
        self._lock = threading.RLock()          # of the lists below; never held while waiting
        self._stage_lock = threading.Lock()     # one stage at a time
        self._layouts: Dict[Any, Layout] = {}
        self._pending: List[Staged] = []
        self._tails: Dict[Tuple[Want, ...], int] = {}
        self._streams = Streams()
        self._inflight: List[Any] = []
        self._held: List[int] = []              # threads whose reading() lasts until synchronize()
        self._executor = (ThreadPoolExecutor(1, thread_name_prefix="CairnStager")
                          if use_async_staging else None)
        self._future: Optional["Future[StateDict]"] = None
        self._closed = False

    # --- the gate ------------------------------------------------------------------------------

    def reading(self, timeout: Optional[float] = None) -> ContextManager[None]:
        """`with stager.reading():` - the state does not change inside. See StateDictGate."""
        return self.gate.reading(timeout)

    def disallow_state_dict_read(self, timeout: Optional[float] = None) -> None:
        """Before the state changes: waits for stage() and other readers. See StateDictGate."""
        self.synchronize()
        self.gate.disallow_state_dict_read(timeout)

    def allow_state_dict_read(self) -> None:
        """After the state has changed. See StateDictGate."""
        self.gate.allow_state_dict_read()

    # --- staging -------------------------------------------------------------------------------

    def stage(self, state_dict: StateDict, non_blocking: bool = False,
              **kwargs: Any) -> Union[StateDict, "Future[StateDict]"]:
        """A copy of state_dict in host memory.

        Copies from devices are queued on a side stream and waited for once, at the end; with
        non_blocking, synchronize() or disallow_state_dict_read() waits, and the tensors
        must not change before. kwargs: for later protocols of PyTorch; ignored.
        """
        if self._closed:
            raise ValueError("this stager is closed")
        after = self._streams.snapshot()
        if self._executor is None:
            return self._stage(state_dict, non_blocking, after if non_blocking else {})
        # disallow_state_dict_read() waits for it from here on, though its thread may not run yet.
        ticket = self.gate.ticket()
        try:
            future = self._executor.submit(self._stage, state_dict, False, after, ticket)
        except BaseException:
            if ticket is not None:
                self.gate.release_read(ticket)
            raise
        self._future = future
        future.add_done_callback(lambda done: self._staged(done, ticket))
        return future

    def _staged(self, future: "Future[StateDict]", ticket: Optional[int]) -> None:
        """A Future is done. Its result belongs to the caller; its error is kept and raised later."""
        if future.cancelled() and ticket is not None:
            self.gate.release_read(ticket)      # it never began
        if self._future is future and (future.cancelled() or future.exception() is None):
            self._future = None

    @torch.no_grad()
    def _stage(self, state_dict: StateDict, non_blocking: bool,
               after: Dict[torch.device, Any], ticket: Optional[int] = None) -> StateDict:
        me = threading.get_ident() if ticket is None else ticket
        if ticket is None:
            self.gate.acquire_read()
        held = False
        try:
            with self._stage_lock:
                result = self._copy(state_dict, after)
            if non_blocking and self._streams.busy():
                with self._lock:
                    self._held.append(me)
                    held = True
            else:
                self.synchronize()
            return result
        finally:
            if not held:
                self.gate.release_read(me)

    def _copy(self, state_dict: StateDict, after: Dict[torch.device, Any]) -> StateDict:
        key = fingerprint(state_dict)
        layout = self._layouts.get(key)
        for _ in range(4):
            if layout is None:
                scan = _Pass(self, None, after)
                Copier(scan.on_tensor, scan.on_storage)(state_dict)
                layout = self._new_layout(tuple(scan.wants), set())
                self._learn(key, layout)
                del scan
            try:
                return self._fill(state_dict, layout, after)
            except _Changed:
                layout = None
        raise RuntimeError("the state dict changed while it was staged")

    def _new_layout(self, wants: Tuple[Want, ...], aside: Set[int]) -> Layout:
        tail = self._tails.get(wants, _layout.TAIL + 512 * len(wants))
        if self.layout == "dcp":
            # What is no plain tensor is stored by PyTorch's own code, from memory beside.
            odd = {i for i, want in enumerate(wants) if want.like is None}
            return _layout.dcp_layout(wants, aside | odd, tail)
        return _layout.torch_layout(wants, tail)

    def _learn(self, key: Any, layout: Layout) -> None:
        """The layout for this state dict from now on; the previous one's memory is freed."""
        with self._lock:
            old = self._layouts.pop(key, None)
            while len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.pop(next(iter(self._layouts)))
            self._layouts[key] = layout
        if old is not None and old.capacity != layout.capacity and not self.keep_memory:
            self.memory.trim()

    def _fill(self, state_dict: StateDict, layout: Layout,
              after: Dict[torch.device, Any]) -> StateDict:
        if self.layout == "torch":
            for staged in self._uncommitted(layout):
                # The same tensors again: into the same memory, as StateDictStager does.
                if not staged.block.reacquire():
                    continue
                try:
                    return self._fill_staged(state_dict, staged, after, True)
                except _Others:
                    pass
                finally:
                    staged.block.unhold()
        staged = self._create(layout)
        try:
            result = self._fill_staged(state_dict, staged, after, False)
        except BaseException:
            staged.block.release()
            if staged.aside is not None:
                staged.aside.release()
            staged.abort()
            raise
        with self._lock:
            self._pending.append(staged)
        # The storages hold the blocks from here on.
        if staged.aside is not None:
            staged.aside.release(staged.aside.abort)
        staged.block.release(lambda: self._unused(staged))
        return result

    def _fill_staged(self, state_dict: StateDict, staged: Staged, after: Dict[torch.device, Any],
                     again: bool) -> StateDict:
        self._streams.begin()
        work = _Pass(self, staged, after, again)
        try:
            result = Copier(work.on_tensor, work.on_storage)(state_dict)
            if len(work.wants) != len(staged.layout.wants):
                raise _Changed
        except BaseException:
            self._streams.synchronize()
            raise
        staged.empty = work.empty
        self._inflight.extend(work.inflight)
        self._watch(staged.layout, work.sources)
        return result

    def _uncommitted(self, layout: Layout) -> List[Staged]:
        with self._lock:
            return [staged for staged in self._pending if staged.layout is layout]

    def _create(self, layout: Layout) -> Staged:
        block = self.memory.create(layout.capacity, layout.use)
        aside = None
        try:
            if layout.aside_capacity:
                aside = self._beside.create(layout.aside_capacity)
        except BaseException:
            block.abort()
            raise
        return Staged(layout, block, aside)

    def _unused(self, staged: Staged) -> None:
        """No storage is on it any more, and it was not committed."""
        with self._lock:
            if staged in self._pending:
                self._pending.remove(staged)
        staged.abort()

    def _watch(self, layout: Layout, sources: Dict[int, torch.UntypedStorage]) -> None:
        """The storages that keep the layout's memory alive."""
        mine, mind = weakref.ref(self), weakref.ref(layout)

        def gone(ref: Any) -> None:
            stager, where = mine(), mind()
            if where is None:
                return
            where.sources.pop(id(ref), None)
            if not where.sources and stager is not None:
                stager._sources_gone(where)

        refs = [weakref.ref(s, gone) for s in sources.values()]
        layout.sources = {id(r): r for r in refs}

    def _sources_gone(self, layout: Layout) -> None:
        if self.keep_memory or self._closed:
            return
        self._beside.trim()
        with self._lock:
            for key in [k for k, v in self._layouts.items() if v is layout]:
                del self._layouts[key]
        self.memory.trim()

    def synchronize(self) -> None:
        """Returns when everything staged has been copied: the tensors may change."""
        try:
            self._streams.synchronize()
        finally:
            with self._lock:
                held, self._held = self._held, []
                self._inflight = []
            for thread in held:
                self.gate.release_read(thread)

    def synchronize_staging(self) -> None:
        """As in AsyncStager: also waits for stage()'s Future, and raises its error, once."""
        future, self._future = self._future, None
        if future is not None and not future.cancelled():
            future.result()
        self.synchronize()

    @property
    def should_synchronize_after_execute(self) -> bool:
        """As in AsyncStager: stage() has waited already."""
        return self._synchronize_after_execute

    # --- files ---------------------------------------------------------------------------------

    def find(self, address: int, nbytes: int) -> Optional[Tuple[Staged, int]]:
        """What is staged at an address and has no name yet."""
        with self._lock:
            for staged in self._pending:
                i = staged.find(address, nbytes)
                if i is not None:
                    return staged, i
        return None

    def device_of_empty(self, storage: torch.UntypedStorage) -> Optional[str]:
        """Where a staged storage without a byte came from; None: none of ours."""
        with self._lock:
            found = (staged.empty.get(storage._cdata) for staged in self._pending)
            return next((known[1] for known in found if known is not None), None)

    def claim(self, staged: Staged) -> bool:
        """Is the caller the one that commits or aborts it?"""
        with self._lock:
            if staged not in self._pending:
                return False
            self._pending.remove(staged)
            return True

    def commit(self, path: PathLike, staged: StateDict, *, exclusive: bool = False) -> None:
        """Makes a file from what stage() returned, as torch.save would: whole, at once, replacing an
        existing file. torch.load() and cairnfs.load() read it. Layout "torch" only.

        Copies nothing if `staged` is what stage() returned; what was added or removed
        since is included, by one copy. Not durable yet: cairnfs.wait().
        exclusive: FileExistsError if the name exists.
        """
        if self.layout != "torch":
            raise ValueError('layout "dcp" is committed by CairnStorageWriter')
        name = os.path.abspath(os.fspath(path))
        # Another thread's stage() of the same tensors overwrites what is not claimed yet: before
        # this, entirely, or not at all.
        with self._stage_lock:
            self.synchronize()
            self._settle(os.path.dirname(name))
            archive = _Archive(self, staged)
        archive.commit(name, exclusive)

    def save(self, state_dict: StateDict, path: PathLike, *, exclusive: bool = False) -> None:
        """stage() and commit()."""
        staged = self.stage(state_dict)
        self.commit(path, staged.result() if isinstance(staged, Future) else staged,
                    exclusive=exclusive)

    def _settle(self, directory: str) -> None:
        """Without a path, the first commit determines it: later steps are staged there."""
        if not self._placed:
            self._placed = True
            old, self.memory = self.memory, memory_for(directory)
            old.close()

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """No more staging. Memory is freed when no staged tensor is on it any more."""
        if self._closed:
            return
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        self.synchronize()
        self._closed = True
        with self._lock:
            self._layouts.clear()
        self.memory.close()
        self._beside.close()

    def __enter__(self) -> "CairnStager":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def save(state_dict: StateDict, path: PathLike, *, exclusive: bool = False) -> None:
    """Writes one file as torch.save would, by a stager of its own; cairnfs.load() and torch.load() read
    it. Not durable yet: cairnfs.wait(). A loop keeps a CairnStager instead, and its memory with it.
    exclusive: FileExistsError if the name exists.
    """
    with CairnStager(os.path.dirname(os.path.abspath(os.fspath(path)))) as stager:
        stager.save(state_dict, path, exclusive=exclusive)


def fingerprint(x: Any) -> Any:
    """Cheap and rarely equal for state dicts that differ: which layout to try first."""
    if not isinstance(x, dict):
        return type(x)
    few = [(k if isinstance(k, (str, int)) else type(k), len(v) if isinstance(v, dict) else 0)
           for k, v in list(x.items())[:8]]
    return type(x), len(x), tuple(few)


# --- an archive as torch.save writes it --------------------------------------------------------


class _ArchivePickler(pickle.Pickler):
    """data.pkl of a staged object; the storages it names are listed."""

    def __init__(self, file: io.BytesIO, stager: CairnStager) -> None:
        super().__init__(file, protocol=2)
        self.stager = stager
        self.storages: Dict[int, Tuple[str, torch.UntypedStorage]] = {}     # by _cdata
        self.staged: Optional[Staged] = None        # where the first one lies
        self.used: Dict[str, int] = {}              # {key: want} there
        self.loose: List[Tuple[str, torch.UntypedStorage]] = []     # all others
        self.locations: Dict[str, str] = {}
        self.kinds: Dict[str, Any] = {}
        self.mixed: Set[str] = set()

    def _key(self, untyped: torch.UntypedStorage) -> str:
        known = self.storages.get(untyped._cdata)
        if known is not None:
            return known[0]
        found = self.stager.find(untyped.data_ptr(), untyped.nbytes()) if untyped.nbytes() else None
        device = (found[0].devices[found[1]] if found is not None else
                  None if untyped.nbytes() else self.stager.device_of_empty(untyped))
        if found is not None and self.staged is None:
            self.staged = found[0]
        if found is not None and found[0] is self.staged:
            key = str(found[1])
            self.used[key] = found[1]
        else:
            # Beyond every want of what is staged.
            key = str((1 << 20) + len(self.storages))
            self.loose.append((key, untyped))
        self.storages[untyped._cdata] = key, untyped
        self.locations[key] = device or torch.serialization.location_tag(untyped)
        return key

    def persistent_id(self, obj: Any) -> Any:
        typed = isinstance(obj, torch.storage.TypedStorage)
        if not typed and not torch.is_storage(obj):
            return None
        key = self._key(obj._untyped_storage if typed else obj)
        kind, length = _layout.storage_type(obj)
        if self.kinds.setdefault(key, kind) is not kind:
            self.mixed.add(key)
        return ("storage", kind, key, self.locations[key], length)


class _UntypedPickler(_ArchivePickler):
    """For storages that are used with several types, which torch.save refuses: each tensor names
    its own type."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or obj.layout != torch.strided or obj.is_meta or \
                obj.is_quantized:
            return NotImplemented
        args: Tuple[Any, ...] = (
            obj.untyped_storage(), obj.storage_offset(), tuple(obj.size()), obj.stride(),
            obj.requires_grad, OrderedDict(), obj.dtype)
        metadata = torch._utils.get_tensor_metadata(obj)
        return torch._utils._rebuild_tensor_v3, args + ((metadata,) if metadata else ())


def _pickle(stager: CairnStager, obj: Any) -> Tuple[bytes, _ArchivePickler]:
    out = io.BytesIO()
    pickler = _ArchivePickler(out, stager)
    pickler.dump(obj)
    if pickler.mixed:
        out = io.BytesIO()
        pickler = _UntypedPickler(out, stager)
        pickler.dump(obj)
    return out.getvalue(), pickler


def devices_text(devices: Iterable[str]) -> str:
    """As user.cairn.device has it: each once, sorted, at most 255 bytes."""
    text = ",".join(sorted(set(devices)))
    while len(text) > 255:
        text = text.rpartition(",")[0]
    return text


class _Archive:
    """obj as one archive that has no name yet; in place if its storages are those of one staged
    object, which is claimed then."""

    def __init__(self, stager: CairnStager, obj: Any) -> None:
        data, pickler = _pickle(stager, obj)
        self.devices = devices_text(pickler.locations.values())
        self.aside: Optional[Block] = None
        staged = pickler.staged
        if staged is not None and _in_place(staged, pickler) and stager.claim(staged):
            try:
                size = _finish(stager, staged.layout, staged.block, data, pickler.used,
                               pickler.loose)
            except BaseException:
                staged.abort()
                raise
            if size is not None:
                self.block, self.size, self.aside = staged.block, size, staged.aside
                return
            with stager._lock:
                stager._pending.append(staged)
        self.block, self.size = _copied(stager, data, list(pickler.storages.values()))

    def commit(self, path: str, exclusive: bool) -> None:
        try:
            self.block.commit(path, self.size, self.devices, exclusive)
        finally:
            if self.aside is not None:
                self.aside.abort()


def _copied(stager: CairnStager, data: bytes,
            storages: List[Tuple[str, torch.UntypedStorage]]) -> Tuple[Block, int]:
    wants = tuple(Want(s.nbytes()) for _, s in storages)
    layout = _layout.torch_layout(wants, _layout.TAIL + 256 * len(wants) + len(data),
                                  [key for key, _ in storages])
    block = stager.memory.create(layout.capacity, "copy")
    try:
        for i, (_, storage) in enumerate(storages):
            if storage.nbytes():
                block.storage(layout.offsets[i], storage.nbytes()).copy_(storage)
        size = _finish(stager, layout, block, data, {k: i for i, (k, _) in enumerate(storages)}, [])
        assert size is not None
    except BaseException:
        block.abort()
        raise
    return block, size


def _in_place(staged: Staged, pickler: _ArchivePickler) -> bool:
    """Is it worth using the staged block as the file: little to add, little of it unused?"""
    used = sum(staged.layout.wants[i].nbytes for i in pickler.used.values())
    dead = staged.layout.used() - used
    return dead <= max(1 << 20, used // 8) and all(s.nbytes() < 1 << 16 for _, s in pickler.loose)


def _finish(stager: CairnStager, layout: Layout, block: Block, data: bytes, used: Dict[str, int],
            loose: List[Tuple[str, torch.UntypedStorage]]) -> Optional[int]:
    """Writes what surrounds the storages; the file's size, or None if the block is too small.
    used: {key: want} in the block; loose: small ones that go into the tail."""
    live = set(used.values())
    w, dead, at = _zip.Writer(), _zip.Writer(), 0       # dead: has its place, but no entry
    parts: List[Tuple[int, bytes]] = []
    for i, want in enumerate(layout.wants):
        crc = (_zip.crc32(block.view(layout.offsets[i], want.nbytes))
               if i in live and stager.crc32 else 0)
        parts.append((at, (w if i in live else dead).header(
            f"data/{layout.names[i]}", want.nbytes, crc, at, _layout.ALIGN)))
        at = layout.offsets[i] + want.nbytes
    tail = b""
    for name, content in (("data.pkl", data), *_layout.common_entries()):
        tail += w.entry(name, content, at + len(tail))
    for key, storage in loose:
        tail += w.entry(f"data/{key}", storage_bytes(storage), at + len(tail))
    tail += w.end(at + len(tail))
    if at + len(tail) > block.size:
        stager._tails[layout.wants] = aligned_tail(len(tail))
        with stager._lock:
            for k in [k for k, v in stager._layouts.items() if v is layout]:
                del stager._layouts[k]
        return None
    for where, header in parts:
        block.write(where, header)
    block.write(at, tail)
    return at + len(tail)


def aligned_tail(n: int) -> int:
    """Space for a tail that may grow."""
    return _layout.aligned(n + n // 4, _layout.TAIL)


def storage_bytes(storage: torch.UntypedStorage) -> bytes:
    if not storage.nbytes():
        return b""
    return ctypes.string_at(storage.cpu().data_ptr(), storage.nbytes())
