# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""`cairn export --format dcp` and `cairn import`: what they write is loaded by torch alone, and an
imported file is described as DCP itself would describe it."""

import collections
import os
import subprocess

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
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
    equal(torch.load(f"{top}/nested.pt", weights_only=True), nested())
    cairn("import", f"{top}/nested.pt", f"{top}/nested")
    dcp.save(nested(), checkpoint_id=f"{top}/by_dcp", no_dist=True)
    cairn("export", "--format", "dcp", f"{top}/by_dcp", f"{top}/again")
    save_file(EXTRA, f"{top}/extra.safetensors")
    cairn("import", f"{top}/extra.safetensors", f"{top}/extra")
    for name in ("one", "nested", "again", "extra"):
        cairn("check", f"{top}/{name}")


def equal(got, want, what=""):
    """Of two nested states: the same bits, values and types. DCP makes every key a str."""
    if isinstance(want, torch.Tensor):
        eco.same(got, want.detach(), what)
    elif isinstance(want, dict):
        got = {str(k): v for k, v in got.items()}
        assert sorted(got) == sorted(map(str, want)), (what, got.keys())
        for key in want:
            equal(got[str(key)], want[key], f"{what}.{key}")
    elif isinstance(want, list):
        assert type(got) is list and len(got) == len(want), (what, got)
        for i, w in enumerate(want):
            equal(got[i], w, f"{what}.{i}")
    else:
        assert type(got) is type(want) and got == want, (what, got, want)


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
    equal(state, want, path)
    out = os.path.join(os.environ["TMPDIR"], "converted.pt")
    dcp_to_torch_save(path, out)
    equal(torch.load(out, weights_only=False), want, path)


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
    described_alike(f"{top}/nested", f"{top}/by_dcp")
    described_alike(f"{top}/again", f"{top}/by_dcp")
    eco.cairn_agrees(f"{top}/extra", EXTRA)


if __name__ == "__main__":
    eco.main(save, check)
