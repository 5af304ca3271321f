#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make_assets.py [DIR]: the checkpoints in this directory, made by the real writers.

Needs torch, safetensors, numpy and, for its own, torchsnapshot (CPU only). Run by hand when a writer changes; what it
made is committed. Beside each is NAME.json: name -> dtype, shape and the SHA-256 of the
row-major little-endian bytes, as the writer's own library sees them.
"""

import hashlib
import json
import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

TOP = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(__file__))
PORT = 29517


def describe(tensor):
    t = tensor.detach().contiguous()
    raw = t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
    return {
        "dtype": str(t.dtype).removeprefix("torch."),
        "shape": list(t.shape),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }


def expect(folder, tensors):
    with open(folder + ".json", "w", encoding="utf-8") as f:
        json.dump({k: describe(v) for k, v in sorted(tensors.items())}, f, indent=1)
        f.write("\n")


def fresh(folder):
    """Relative: a writer may record the path it was given."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def numbers(shape, dtype, seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=g) * 100).to(dtype)


# --- torch.save -----------------------------------------------------------------------------


def make_torch():
    path = fresh("torch_save")
    base = numbers((6, 4), torch.float32, 1)
    model = {
        "embed.weight": base,
        "tied.weight": base,  # the same storage
        "rows": base[2:4],  # a part of it
        "transposed": base.t(),  # not row-major
        "every_other": base[:, ::2],
        "expanded": torch.tensor([7.0]).expand(3),  # stride 0
        "half": numbers((3, 5), torch.bfloat16, 2),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.empty((0, 3), dtype=torch.float16),
        "flags": torch.tensor([True, False, True]),
        "float8": numbers((4,), torch.float32, 3).to(torch.float8_e4m3fn),
        "uint16": torch.arange(5).to(torch.uint16),
    }
    nested = {
        "model": model,
        "optimizer": {"state": {0: {"exp_avg": numbers((2, 2), torch.float32, 4), "step": 9}}},
        "list": [torch.nn.Parameter(numbers((2,), torch.float32, 5)), "text", None, 2**70],
    }
    torch.save(nested, os.path.join(path, "model.pt"))
    flat = {f"model.{k}": v for k, v in model.items()}
    flat["optimizer.state.0.exp_avg"] = nested["optimizer"]["state"][0]["exp_avg"]
    flat["list.0"] = nested["list"][0]
    expect("torch_save", flat)

    path = fresh("torch_odd")
    torch.save(
        {
            "sparse": torch.eye(3).to_sparse(),
            "conj": torch.tensor([1 + 2j]).conj(),
            "plain": torch.arange(3),
        },
        os.path.join(path, "odd.pt"),
    )
    torch.save(torch.arange(3), os.path.join(path, "old.pt"), _use_new_zipfile_serialization=False)


# --- safetensors ----------------------------------------------------------------------------


def make_safetensors():
    path = fresh("safetensors")
    tensors = {
        "a.weight": numbers((4, 3), torch.float32, 11),
        "a.bias": numbers((3,), torch.bfloat16, 12),
        "é\n\"quoted\"": torch.tensor([1, 2], dtype=torch.int16),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty((2, 0), dtype=torch.float32),
        "f8": numbers((4,), torch.float32, 13).to(torch.float8_e5m2),
    }
    save_file(tensors, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    expect("safetensors", tensors)

    path = fresh("hf_index")
    parts = [
        {"layers.0.weight": numbers((4, 4), torch.float32, 21), "layers.0.bias": torch.zeros(4)},
        {"layers.1.weight": numbers((4, 4), torch.float16, 22)},
    ]
    weight_map, total, every = {}, 0, {}
    for i, part in enumerate(parts):
        name = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
        save_file(part, os.path.join(path, name), metadata={"format": "pt"})
        weight_map.update({k: name for k in part})
        total += sum(t.numel() * t.element_size() for t in part.values())
        every.update(part)
    with open(os.path.join(path, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=2)
        f.write("\n")
    expect("hf_index", every)


# --- DCP, two ranks --------------------------------------------------------------------------


def whole():
    return {
        "layers.0.weight": numbers((6, 4), torch.float32, 31),
        "layers.0.columns": numbers((4, 6), torch.bfloat16, 32),
        "layers.0.uneven": numbers((3, 2), torch.float32, 33),
        "scalar": torch.tensor(5.0),
        "empty": torch.empty((0, 2)),
    }


def sharded(mesh):
    placed = {"layers.0.weight": [Shard(0)], "layers.0.columns": [Shard(1)],
              "layers.0.uneven": [Shard(0)], "scalar": [Replicate()]}
    state = {k: distribute_tensor(t, mesh, placed[k]) for k, t in whole().items() if k in placed}
    state["empty"] = whole()["empty"]
    return state


def rank_main(rank, world, kind, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    state = sharded(init_device_mesh("cpu", (world,)))
    if kind == "hf":
        writer = dcp.HuggingFaceStorageWriter(path, save_distributed=True)
        del state["empty"]
        dcp.save(state, storage_writer=writer)
    elif kind == "local":
        state["step"] = 7
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path), use_collectives=False)
    else:
        state["step"] = 7  # a bytes item
        writer = dcp.FileSystemWriter(path)
        if kind == "blob":
            from torch.distributed.checkpoint.filesystem import SerializationFormat
            writer = dcp.FileSystemWriter(path, serialization_format=SerializationFormat.SAFETENSORS)
            del state["step"]
        dcp.save(state, storage_writer=writer)
    dist.barrier()
    dist.destroy_process_group()


def make_dcp():
    for folder, kind in (("dcp", "global"), ("dcp_local", "local"),
                         ("dcp_hf", "hf"), ("dcp_safetensors", "blob")):
        path = fresh(folder)
        mp.spawn(rank_main, (2, kind, path), nprocs=2)
        tensors = whole()
        if kind == "hf":
            del tensors["empty"]
        expect(folder, tensors)


def make_snapshot():
    """One rank; the file of small tensors has a random name."""
    from torchsnapshot import Snapshot, StateDict, knobs
    path = fresh("torchsnapshot")
    tensors = {"chunked": numbers((4, 6), torch.float32, 41), "a/b": numbers((3, 4), torch.bfloat16, 42),
               "scalar": torch.tensor(7), "turned": numbers((4, 6), torch.float32, 43).t()}
    with knobs.override_max_chunk_size_bytes(48):
        Snapshot.take(path, {"m": StateDict(**tensors, odd={1, 2}, note="plain", list=[1, {"a": True}])})
    expect("torchsnapshot", {f"0/m/{k.replace('/', '%2F')}": v for k, v in tensors.items()})


if __name__ == "__main__":
    os.chdir(TOP)
    make_torch()
    make_safetensors()
    make_dcp()
    try:
        import torchsnapshot    # noqa: F401
    except ImportError:
        sys.exit("torchsnapshot is not installed: its asset stays as it is")
    make_snapshot()
