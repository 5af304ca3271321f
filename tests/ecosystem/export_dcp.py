# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""`cairn export --format dcp` and `cairn import`: what they write is loaded by torch alone, and an
imported file is described as DCP itself would describe it."""

import collections
import os
import random
import subprocess

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import eco
import model

EXTRA = {
    "half": eco.numbers((5, 3), torch.bfloat16, 91), "zero_dim": torch.tensor(-1.5, dtype=torch.bfloat16),
    "empty": torch.empty((0, 4), dtype=torch.float16), "flags": eco.numbers((9,), torch.bool, 92),
    "f8": eco.numbers((3, 8), torch.float8_e4m3fn, 93), "long": eco.numbers((2, 2, 2), torch.int64, 94),
    "complex": eco.numbers((3,), torch.complex64, 95), "words": eco.numbers((4,), torch.uint16, 96),
}
PLAIN = {
    "step": 3, "negative": -70000, "big": 2 ** 70, "small": -(2 ** 40), "lr": 1e-5, "note": "é\n\0x",
    "none": None, "yes": True, "betas": (0.9, 0.999), "list": [1, [2, (3, {"a": 4.5})]], "nothing": [],
}
# What torch.load(weights_only=True) makes of plain values.
MADE = {
    "size": torch.Size([2, 3]), "bytes": b"a\xff\0", "array": bytearray(b"x\x80"), "none": bytearray(),
    "complex": 1 - 2j, "set": {1, "a"}, "device": torch.device("cuda", 1), "dtype": torch.bfloat16,
    "scheme": torch.per_tensor_affine, "layout": torch.strided, "count": collections.Counter("aab"),
    "in": (collections.OrderedDict(a=torch.Size([4])), [b"b", {3}], collections.Counter("c")),
}
# What it does not make, and lies beside the tensors in real files all the same.
NUMPY = {
    "f8": np.float64(1.5), "f2": np.float16(-0.25), "int": np.int64(-3), "bool": np.bool_(True),
    "complex": np.complex128(1 - 2j), "str": np.str_("abé"), "bytes": np.bytes_(b"a\xff"),
    "dtype": np.dtype("float32"), "array": np.arange(12, dtype=np.int32).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)), "scalar": np.array(3.5),
    "empty": np.empty((0, 3)), "texts": np.array(["a", "bcd"]), "big": np.arange(3, dtype=">i4"),
    "states": (random.getstate(), np.random.RandomState(7).get_state()),
}


def odd():
    """numpy's, and what DCP would lose, or save without its attributes."""
    named, ordered = eco.numbers((3, 2), torch.float32, 98), collections.OrderedDict(a=1)
    named.note = "lost"
    ordered.note = "kept"
    return {"numpy": dict(NUMPY), "named": named, "ordered": (ordered,), "nothing": [{}, [{}]],
            None: 5, "narrow": torch.uint3, "tensor": torch.tensor(4)}


def nested():
    """What a trainer puts into torch.save, views of one storage included."""
    torch.manual_seed(5)
    net = torch.nn.Linear(4, 3, dtype=torch.bfloat16)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    opt.step()
    base = eco.numbers((6, 4), torch.float32, 97)
    return {
        "model": net.state_dict(), "optimizer": opt.state_dict(), "extra": dict(EXTRA), **PLAIN,
        "made": dict(MADE),
        "views": {"base": base, "t": base.t(), "skip": base[:, ::2], "row": base[2], "same": base,
                  "wide": base[0, :1].expand(5)},
        "mixed": [torch.nn.Parameter(base[:2]), "text", None, {"x": torch.tensor(7)}, [3, {"y": 1}]],
        "keys": {7: torch.tensor([1, 2])}, "ordered": collections.OrderedDict(a=EXTRA["half"]),
    }


def save_step(rank, ranks, path):
    dcp.save({**model.sharded(1, ranks), "extra": dict(EXTRA)}, checkpoint_id=path)


def cairn(*args):
    subprocess.run([eco.CAIRN, *args], check=True, capture_output=True)


def save(top):
    eco.ranks(4, save_step, f"{top}/four")
    cairn("export", "--format", "dcp", f"{top}/four", f"{top}/one")
    torch.save(nested(), f"{top}/nested.pt")
    eco.equal(torch.load(f"{top}/nested.pt", weights_only=True), nested())
    cairn("import", f"{top}/nested.pt", f"{top}/nested")
    torch.save(odd(), f"{top}/odd.pt")
    cairn("import", f"{top}/odd.pt", f"{top}/odd")
    dcp.save(nested(), checkpoint_id=f"{top}/by_dcp", no_dist=True)
    cairn("export", "--format", "dcp", f"{top}/by_dcp", f"{top}/again")
    save_file(EXTRA, f"{top}/extra.safetensors")
    cairn("import", f"{top}/extra.safetensors", f"{top}/extra")
    for name in ("one", "nested", "again", "extra", "odd"):
        cairn("check", f"{top}/{name}")


def blank(state):
    """A state to load into: every tensor other, and of its own storage; every value other."""
    if isinstance(state, torch.Tensor):
        return torch.zeros(state.shape, dtype=state.dtype)
    if isinstance(state, dict):
        return {k: blank(v) for k, v in state.items()}
    if isinstance(state, list) and any(isinstance(v, (torch.Tensor, dict, list)) for v in state):
        return [blank(v) for v in state]
    return "other"


def loads(path, want):
    """By dcp.load into a state, and by dcp_to_torch_save, which goes by the metadata alone."""
    state = blank(want)
    dcp.load(state, checkpoint_id=path, no_dist=True)
    eco.equal(state, want, path)
    eco.equal(eco.as_dict(path), want, path)


def described_alike(path, other):
    """Names, paths, shapes, dtypes."""
    a, b = (dcp.FileSystemReader(p).read_metadata() for p in (path, other))
    assert a.planner_data == b.planner_data
    assert a.state_dict_metadata.keys() == b.state_dict_metadata.keys()
    for name, x in a.state_dict_metadata.items():
        y = b.state_dict_metadata[name]
        assert type(x) is type(y), name
        if isinstance(x, TensorStorageMetadata):
            assert (x.size, x.chunks) == (y.size, y.chunks), name
            assert x.properties.dtype == y.properties.dtype, name


def load(rank, ranks, path, step):
    """Into another number of ranks than wrote it."""
    state = model.sharded(step, ranks, fill=3)
    state["note"] = "x"
    dcp.load(state, checkpoint_id=path)
    model.expect(state, step)


def check(top):
    whole = {"model": model.full(1), "step": torch.tensor(1), "note": "s1", "extra": EXTRA}
    loads(f"{top}/one", whole)
    for n in (2, 3):
        eco.ranks(n, load, f"{top}/one", 1)
    loads(f"{top}/nested", nested())
    loads(f"{top}/again", nested())
    loads(f"{top}/extra", EXTRA)
    want = torch.load(f"{top}/odd.pt", weights_only=False)     # numpy turns big-endian ones round
    eco.equal(eco.as_dict(f"{top}/odd"), want)
    state = {"numpy": {n: None for n in NUMPY}, "ordered": None, "None": None}
    dcp.load(state, checkpoint_id=f"{top}/odd", no_dist=True)
    eco.equal(state, {n: want[n] for n in ("numpy", "ordered", None)})
    assert state["ordered"][0].note == "kept"
    described_alike(f"{top}/nested", f"{top}/by_dcp")
    described_alike(f"{top}/again", f"{top}/by_dcp")
    eco.cairn_agrees(f"{top}/extra", EXTRA)


if __name__ == "__main__":
    eco.main(save, check)
