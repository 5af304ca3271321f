# SPDX-License-Identifier: MIT
"""A sharded training state: what FSDP and tensor parallelism give to a checkpoint."""

import torch
import torch._dynamo    # noqa: F401 - DTensor imports it when first used: once here, not in each rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import eco

SHAPES = {
    "embed": (1000, 96), "uneven": (7, 33), "wide": (48, 1030), "norm": (96,), "few": (1, 4096),
    "large": (2048, 1024),
}
PLACE = {"wide": Shard(1), "norm": Replicate()}
TYPE = {"uneven": torch.bfloat16, "wide": torch.float16, "norm": torch.float64}


def full(step):
    """Every tensor whole, by name, as a reader shall find it. Of one step, and of no other."""
    found = {n: eco.numbers(s, TYPE.get(n, torch.float32), seed=1000 * step + i)
             for i, (n, s) in enumerate(SHAPES.items())}
    found["head"] = found["embed"].clone()
    return found


def sharded(step, ranks, fill=None):
    """The state dict of one rank. head is embed: tied. fill: a state to load into."""
    mesh = init_device_mesh("cpu", (ranks,))
    tensors = full(step)
    if fill is not None:
        tensors = {n: torch.full_like(t, fill) for n, t in tensors.items()}
    state = {n: distribute_tensor(tensors[n], mesh, [PLACE.get(n, Shard(0))]) for n in SHAPES}
    state["head"] = state["embed"]
    return {"model": state, "step": torch.tensor(step if fill is None else -1), "note": f"s{step}"}


def spoil(state):
    """What a trainer does after save: the next step."""
    for t in state["model"].values():
        (t.to_local() if isinstance(t, DTensor) else t).zero_()
    state["step"].fill_(-7)


def expect(state, step):
    want = full(step)
    assert state["step"].item() == step, state["step"]
    assert state["note"] == f"s{step}", state["note"]
    eco.same_dict({n: t.full_tensor() for n, t in state["model"].items()}, want)


def names(step):
    """As DCP names them."""
    found = {"model." + n: t for n, t in full(step).items()}
    found["step"] = torch.tensor(step)
    return found
