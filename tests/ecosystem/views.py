# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""Views of a DCP checkpoint, read by safetensors and NumPy as plain files."""

import os

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file

import eco
import model


def save_step(rank, ranks, path):
    dcp.save(model.sharded(1, ranks), checkpoint_id=path)


def save(top):
    if not os.path.isdir(f"{top}/.cairn/views"):
        eco.skip("this mount has no .cairn/views")
    eco.ranks(2, save_step, f"{top}/run/step-1")


def tensors(path):
    """Names inside the views are DCP's."""
    return {n: t for n, t in load_file(path).items()}


def check(top):
    view = f"{os.environ['MOUNT']}/.cairn/views/run/step-1"
    want = model.names(1)
    if top != os.environ["MOUNT"]:
        return    # the bare store has none
    assert os.path.isdir(view), "closed and complete, and has no view"
    eco.same_dict(tensors(f"{view}/model.safetensors"), want)
    with safe_open(f"{view}/model.safetensors", framework="pt") as f:
        got = f.get_slice("model.wide")[5:40, 100:900]
        eco.same(got, want["model.wide"][5:40, 100:900], "slice")
    for n in (2, 3):
        parts = [tensors(f"{view}/reshard/{n}/rank-{r}.safetensors") for r in range(n)]
        for name, t in want.items():
            have = [p[name] for p in parts if name in p]
            eco.same(torch.cat(have) if t.dim() else have[0], t, name)
    for name, t in want.items():
        got = np.load(f"{view}/tensors/{name}.npy")
        got = torch.from_numpy(got)
        eco.same(got.view(torch.bfloat16) if t.dtype == torch.bfloat16 else got, t, name)


if __name__ == "__main__":
    eco.main(save, check)
