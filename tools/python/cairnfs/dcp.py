# SPDX-License-Identifier: MIT
"""torch.distributed.checkpoint through staged memory.

    writer = CairnStorageWriter("/mnt/ckpt/run1/step-100")
    dcp.save(state_dict, storage_writer=writer)             # or
    future = dcp.async_save(state_dict, storage_writer=writer)

    dcp.load(state_dict, storage_reader=CairnStorageReader("/mnt/ckpt/run1/step-100"))

What is written is a DCP checkpoint like any other: `__{rank}_{n}.distcp` and `.metadata`, read by
FileSystemReader; CairnStorageReader reads those of FileSystemWriter.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from torch.distributed.checkpoint.filesystem import (
    FileSystemReader, FileSystemWriter, _StorageInfo)
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import (
    LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import _layout, _zip
from ._memory import Memory, existing_directory, memory_for, wait
from ._read import (
    MapLocation, MappedFile, PathLike, Unknown, fills, read_into, stored_tensor,
    target_device)
from .stager import CairnStager, Staged, Streams, aligned_tail, copy_bytes, devices_text

# An attribute of each entry of .metadata's storage_data; PyTorch keeps and ignores it.
DEVICE = "cairn_device"


class _File:
    """One .distcp file as it grows: what is in its block already, and what is added."""

    def __init__(self, name: str, at: int) -> None:
        self.name = name
        self.at = at
        self.results: List[WriteResult] = []
        self.devices: Set[str] = set()

    def add(self, item: Any, offset: int, length: int, device: Optional[str]) -> None:
        info = _StorageInfo(self.name, offset, length)
        if device is not None:
            setattr(info, DEVICE, device)
            self.devices.add(device)
        self.results.append(WriteResult(index=item.index, size_in_bytes=length, storage_data=info))


class _Piece:
    """What has to be written for one item of the plan."""

    def __init__(self, item: Any, tensor: Optional[torch.Tensor], data: Optional[bytes],
                 device: Optional[str]) -> None:
        self.item = item
        self.tensor = tensor
        self.data = data
        self.device = device
        self.like = (None if tensor is None else
                     _layout.item(tensor.dtype, tuple(tensor.size()),
                                  _layout.compact_stride(tensor)))

    def length(self) -> int:
        if self.like is not None:
            return self.like.length
        assert self.data is not None
        return len(self.data)


def _piece(item: Any, found: Any, device: Optional[str]) -> _Piece:
    if item.type == WriteItemType.BYTE_IO:
        return _Piece(item, None, bytes(found.getbuffer()), None)
    tensor = found.detach()
    device = str(tensor.device) if device is None else device
    if type(tensor) is torch.nn.Parameter:
        tensor = tensor.data
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.is_quantized:
        # Only torch.save knows how such a one is stored.
        out = io.BytesIO()
        torch.save(tensor.cpu(), out)
        return _Piece(item, None, out.getvalue(), device)
    return _Piece(item, tensor.resolve_conj().resolve_neg(), None, device)


class CairnStorageWriter(FileSystemWriter):
    """Writes DCP checkpoints through a CairnStager.

    With dcp.save() each tensor is copied once, from its device to its place in the file. With
    dcp.async_save() that copy is made by stage(), before it returns; the file is committed later,
    from the same memory, by the saving thread. (The first checkpoint of a state dict of which
    other ranks save a part is copied a second time, in the background: only its plan shows which.)

    path: the checkpoint's directory; dcp's checkpoint_id replaces it.
    stager: one with layout "dcp"; None: this writer's own, closed with it.
    sync_files: put each file on stable storage before the next step of the protocol?
        None: yes, except on a cairnfs mount, which keeps the order itself: `.metadata` never
        appears in the store before what it commits. wait() returns when everything is durable.
    overwrite: False: an existing checkpoint is an error.
    kwargs: further arguments of FileSystemWriter. With extensions (compression), or another
        serialization_format than torch's, files are written by FileSystemWriter itself.

    One file per rank: thread_count has no effect.
    """

    def __init__(self, path: PathLike, *, stager: Optional[CairnStager] = None,
                 sync_files: Optional[bool] = None, overwrite: bool = True,
                 crc32: bool = False, use_async_staging: bool = False, **kwargs: Any) -> None:
        super().__init__(path, sync_files=bool(sync_files), overwrite=overwrite, **kwargs)
        if stager is not None and stager.layout != "dcp":
            raise ValueError('the stager of a CairnStorageWriter has layout "dcp"')
        self._sync_wanted = sync_files
        self._crc32 = stager.crc32 if stager is not None else crc32
        self._use_async_staging = use_async_staging
        self._stager = stager
        self._owns_stager = stager is None

    # The process of dcp's AsyncCheckpointerType.PROCESS gets a copy, without the memory.
    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_stager": None, "_owns_stager": True}

    @property
    def stager(self) -> CairnStager:
        """The stager; created at the first use."""
        if self._stager is None:
            self._stager = CairnStager(os.fspath(self.path), layout="dcp", crc32=self._crc32,
                                       use_async_staging=self._use_async_staging)
        return self._stager

    # --- AsyncStager ---------------------------------------------------------------------------

    _synchronize_after_execute = False

    @property
    def should_synchronize_after_execute(self) -> bool:
        return self._synchronize_after_execute

    def stage(self, state_dict: Any) -> Any:
        """Copies the state into memory of the future file; see CairnStager.stage()."""
        return self.stager.stage(state_dict)

    def synchronize_staging(self) -> None:
        self.stager.synchronize_staging()

    def close(self) -> None:
        """Closes the stager, if it is this writer's own. Saved files still become durable."""
        if self._owns_stager and self._stager is not None:
            self._stager.close()
            self._stager = None

    def wait(self, timeout: Optional[float] = None) -> None:
        """Returns when the checkpoint is on stable storage; cairnfs.wait()."""
        wait(os.fspath(self.path), timeout)

    # --- StorageWriter -------------------------------------------------------------------------

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if self._sync_wanted is None:
            # Also for .metadata, which FileSystemWriter.finish() writes.
            self.sync_files = not _on_mount(os.fspath(self.path))

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        # An existing checkpoint's shards are replaced one by one: a mixture must not be committed.
        # Only the coordinator does this, before any rank writes.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(os.fspath(self.path), ".metadata"))
        return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        kind = getattr(self, "serialization_format", None)
        transforms = getattr(self, "transforms", None)      # not in PyTorch 2.6
        if getattr(transforms, "extensions", ()) or (kind is not None and
                                                     kind.name != "TORCH_SAVE"):
            return super().write_data(plan, planner)
        with torch.no_grad():
            results = _write(self.stager, os.fspath(self.path), plan.storage_data.prefix, plan,
                             planner)
        if self.sync_files:
            for name in sorted({r.storage_data.relative_path for r in results}):
                # Not by opening it on a mount, which would keep its memory from the next step.
                wait(os.path.join(os.fspath(self.path), name))
        done: "Future[List[WriteResult]]" = Future()
        done.set_result(results)
        return done


def _on_mount(path: str) -> bool:
    try:
        # The checkpoint's own directory is made later.
        return bool(os.getxattr(existing_directory(path), "user.cairn.state"))
    except OSError:
        return False


def _write(stager: CairnStager, directory: str, prefix: str, plan: SavePlan,
           planner: SavePlanner) -> List[WriteResult]:
    """The files of this rank: one, or two if not everything to be saved is staged in one block."""
    stager.synchronize()
    staged, places, rest = _resolve(stager, plan, planner)
    if staged is not None and not _worth_it(stager, staged, places):
        # Other ranks save much of it. They are known from now on; this time it is copied once more.
        again = [_piece(item, planner.resolve_data(item), staged.devices[i])
                 for item, i in places]
        rest, places = again + rest, []
        results = _write_rest(stager, directory, f"{prefix}0.distcp", rest)
        if stager.claim(staged):
            staged.abort()
        return results
    if staged is None:
        return _write_rest(stager, directory, f"{prefix}0.distcp", rest)
    file = _File(f"{prefix}0.distcp", staged.layout.end)
    try:
        _place(stager, staged, places, file)
        rest = _fill_tail(stager, staged, file, rest)
        # The other one first: it may use what is staged aside.
        others = _write_rest(stager, directory, f"{prefix}1.distcp", rest)
        staged.block.commit(os.path.join(directory, file.name), file.at,
                            devices_text(file.devices))
    finally:
        staged.abort()
    return file.results + others


def _resolve(stager: CairnStager, plan: SavePlan, planner: SavePlanner) -> Tuple[
        Optional[Staged], List[Tuple[Any, int]], List[_Piece]]:
    """What the plan wants: in which staged block, what is in it, and what is not."""
    staged: Optional[Staged] = None
    places: List[Tuple[Any, int]] = []
    rest: List[_Piece] = []
    for item in plan.items:
        data: Any = planner.resolve_data(item)
        found = None
        if item.type != WriteItemType.BYTE_IO and data.device.type == "cpu" and \
                data.layout == torch.strided:
            found = stager.find(data.data_ptr(), data.numel() * data.element_size())
        like = None if found is None else found[0].layout.wants[found[1]].like
        if found is None or like != (data.dtype, tuple(data.size()), tuple(data.stride())):
            rest.append(_piece(item, data, _aside_device(stager, data)))
            continue
        if staged is None:
            staged = found[0]
        if found[0] is staged:
            places.append((item, found[1]))
        else:
            rest.append(_piece(item, data, found[0].devices[found[1]]))
    return staged, places, rest


def _aside_device(stager: CairnStager, data: Any) -> Optional[str]:
    """The source of a tensor that is staged, but not in a file's block."""
    if not isinstance(data, torch.Tensor) or data.device.type != "cpu" or \
            data.layout != torch.strided or not data.numel():
        return None
    address = data.data_ptr()
    with stager._lock:
        for staged in stager._pending:
            if staged.aside is None:
                continue
            for i in staged.layout.aside:
                if staged.aside.address + staged.layout.offsets[i] == address:
                    return staged.devices[i]
    return None


def _worth_it(stager: CairnStager, staged: Staged, places: List[Tuple[Any, int]]) -> bool:
    """Does the block become the file? What the plan leaves out is staged aside next time."""
    layout = staged.layout
    kept = {i for _, i in places}
    dead = [i for i in range(len(layout.wants)) if i not in kept and i not in layout.aside]
    nbytes = sum(layout.items[i].length for i in dead)
    used = sum(layout.items[i].length for i in kept)
    if nbytes <= max(1 << 20, used // 8):
        return stager.claim(staged)
    with stager._lock:
        for key in [k for k, v in stager._layouts.items() if v is layout]:
            stager._layouts[key] = stager._new_layout(layout.wants, layout.aside | set(dead))
    return False


def _place(stager: CairnStager, staged: Staged, places: List[Tuple[Any, int]],
           file: _File) -> None:
    """Completes each tensor in the block to an item. Tied ones share it."""
    layout, block = staged.layout, staged.block
    written: Set[int] = set()
    for item, i in places:
        like, offset = layout.items[i], layout.offsets[i]
        start = offset - len(like.before)
        if i not in written:
            written.add(i)
            _surround(stager, block, start, layout.wants[i].like, like)
        file.add(item, start, like.length, staged.devices[i])


def _surround(stager: CairnStager, block: Any, start: int, key: Any, like: _layout.Item) -> None:
    at = start + len(like.before)
    if stager.crc32 and like.nbytes:
        like = _layout.item(key[0], key[1], key[2], _zip.crc32(block.view(at, like.nbytes)))
    block.write(start, like.before)
    block.write(at + like.nbytes, like.after)


def _fill_tail(stager: CairnStager, staged: Staged, file: _File,
               rest: List[_Piece]) -> List[_Piece]:
    """Appends what fits after the tensors; returns what does not."""
    need = sum(_layout.aligned(p.length()) for p in rest)
    space = staged.block.size - _layout.aligned(file.at)
    if need > space and need <= max(1 << 20, staged.layout.end // 8):
        # Small compared with the file: space is allocated for it from the next time on.
        wants = staged.layout.wants
        stager._tails[wants] = aligned_tail(need + _layout.ALIGN)
        with stager._lock:
            for key in [k for k, v in stager._layouts.items() if v is staged.layout]:
                stager._layouts[key] = stager._new_layout(wants, staged.layout.aside)
    if need > space:
        return rest
    _append(stager, staged.block, file, rest, Streams())
    return []


def _append(stager: CairnStager, block: Any, file: _File, pieces: List[_Piece],
            streams: Streams) -> None:
    """The pieces, one after the other; their tensors are copied directly to their places."""
    images: List[Tuple[int, _Piece]] = []
    for p in pieces:
        start = _layout.aligned(file.at)
        file.at = start + p.length()
        file.add(p.item, start, p.length(), p.device)
        if p.like is None:
            assert p.data is not None
            block.write(start, p.data)
            continue
        images.append((start, p))
        if not p.like.nbytes:
            continue
        assert p.tensor is not None
        storage = block.storage(start + len(p.like.before), p.like.nbytes)
        place = torch.empty(0, dtype=p.tensor.dtype, device="cpu").set_(
            storage, 0, p.tensor.size(), _layout.compact_stride(p.tensor))
        with streams.on(p.tensor.device, {}):
            copy_bytes(place, p.tensor)
    streams.synchronize()
    for start, p in images:
        assert p.tensor is not None and p.like is not None
        key = (p.tensor.dtype, tuple(p.tensor.size()), _layout.compact_stride(p.tensor))
        _surround(stager, block, start, key, p.like)


def _write_rest(stager: CairnStager, directory: str, name: str,
                pieces: List[_Piece]) -> List[WriteResult]:
    """A file of its own, of exactly what it holds."""
    if not pieces:
        return []
    file = _File(name, 0)
    size = sum(_layout.aligned(p.length()) for p in pieces)
    block = stager.memory.create(size, name)
    try:
        _append(stager, block, file, pieces, Streams())
    except BaseException:
        block.abort()
        raise
    block.commit(os.path.join(directory, name), file.at, devices_text(file.devices))
    return file.results


# --- reading -----------------------------------------------------------------------------------


class CairnStorageReader(FileSystemReader):
    """Reads DCP checkpoints: a tensor that is stored in the wanted form is read directly into place,
    on a GPU through registered memory of libcairn; others through a mapping.

    devices: {name: device} as recorded by CairnStorageWriter, after read_metadata().
    """

    def __init__(self, path: PathLike, *, memory: Optional[Memory] = None, **kwargs: Any) -> None:
        super().__init__(path, **kwargs)
        self._memory = memory
        self.devices: Dict[str, str] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = super().read_metadata(*args, **kwargs)
        self.devices = recorded_devices(metadata)
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        per_file: Dict[str, List[Any]] = {}
        for req in plan.items:
            per_file.setdefault(self.storage_data[req.storage_index].relative_path, []).append(req)
        directory = os.fspath(self.path)
        memory = self._memory or memory_for(directory)
        try:
            others = []
            with torch.no_grad():
                for relative, requests in per_file.items():
                    mapped = MappedFile(inside(directory, relative))
                    others += [r for r in requests if not self._read(mapped, r, planner, memory)]
        finally:
            if self._memory is None:
                memory.close()
        if others:
            return super().read_data(LoadPlan(others), planner)
        done: "Future[None]" = Future()
        done.set_result(None)
        return done

    def _read(self, mapped: MappedFile, req: Any, planner: LoadPlanner, memory: Memory) -> bool:
        """One item; False: only PyTorch can read it."""
        info = self.storage_data[req.storage_index]
        if getattr(info, "transform_descriptors", None):
            return False
        item = mapped.view(info.offset, info.length)
        if req.type == LoadItemType.BYTE_IO:
            planner.load_bytes(req, io.BytesIO(item))
            return True
        try:
            stored = stored_tensor(item)
        except (Unknown, _zip.BadZip):
            return False
        target = planner.resolve_tensor(req).detach()
        at = info.offset + stored.at
        whole = not any(req.storage_offsets) and tuple(req.lengths) == stored.size
        if not (whole and type(target) is torch.Tensor and fills(stored, target) and
                read_into(memory, mapped.path, at, target)):
            self._copy(mapped, stored, at, req, target)
        planner.commit_tensor(req, target)
        return True

    @staticmethod
    def _copy(mapped: MappedFile, stored: Any, at: int, req: Any, target: torch.Tensor) -> None:
        flat = mapped.tensor(at, stored.nbytes).untyped_storage()
        source = torch.empty(0, dtype=stored.dtype, device="cpu").set_(
            flat, stored.storage_offset, stored.size, stored.stride)
        for d, (start, length) in enumerate(zip(req.storage_offsets, req.lengths)):
            source = source.narrow(d, start, length)
        if target.size() != source.size():
            raise ValueError(f"{req.storage_index.fqn}: {tuple(source.size())} is stored where "
                             f"{tuple(target.size())} is wanted")
        target.copy_(source)


def inside(directory: str, relative: str) -> str:
    """The path of a checkpoint's file, which must be inside it."""
    if os.path.isabs(relative) or ".." in relative.split("/") or "\0" in relative:
        raise ValueError(f"{relative!r} is not a file of {directory}")
    return os.path.join(directory, relative)


def recorded_devices(metadata: Metadata) -> Dict[str, str]:
    """{name: device} of the tensors whose device is recorded; for one in pieces, of its first."""
    found: Dict[str, Tuple[Tuple[int, ...], str]] = {}
    for index, info in (metadata.storage_data or {}).items():
        device = getattr(info, DEVICE, None)
        if isinstance(device, str):
            offset = tuple(index.offset or ())
            if index.fqn not in found or offset < found[index.fqn][0]:
                found[index.fqn] = offset, device
    return {name: device for name, (_, device) in found.items()}


def load_checkpoint(path: PathLike, map_location: MapLocation = None, *,
                    no_dist: bool = True) -> Dict[str, Any]:
    """A whole DCP checkpoint without a destination: {name as DCP flattens it: value}. Tensors
    are whole, on the device their first piece came from, or the CPU if that does not exist here."""
    from torch.distributed.checkpoint.state_dict_loader import load
    reader = CairnStorageReader(path)
    metadata = reader.read_metadata()
    state: Dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            state[name] = None
            continue
        device = target_device(reader.devices.get(name, "cpu"), map_location)
        state[name] = torch.empty(entry.size, dtype=entry.properties.dtype, device=device)
    # PyTorch 2.6 asks whether there is a process group instead.
    known = "no_dist" in inspect.signature(load).parameters
    load(state, storage_reader=reader, **({"no_dist": no_dist} if known else {}))
    return state
