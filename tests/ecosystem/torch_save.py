# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""torch.save and torch.load, also mmap=True: types, views, shared storages, overwriting."""

import os

import torch

import eco

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
          torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64,
          torch.float8_e4m3fn, torch.float8_e5m2]


def model(step):
    net = torch.nn.Module()
    net.embed = torch.nn.Embedding(1000, 64)
    net.layer = torch.nn.Linear(64, 257)
    net.head = torch.nn.Linear(64, 1000, bias=False)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(eco.numbers(p.shape, seed=100 * step + i))
    net.head.weight = net.embed.weight
    return net


def odd():
    base = eco.numbers((64, 96), seed=7)
    return {
        "base": base, "row": base[3], "column": base[:, 5], "turned": base.t(),
        "every_third": base[::3, 1:], "empty": torch.empty(0, 5), "scalar": torch.tensor(2.5),
        **{f"type.{d}".replace("torch.", ""): eco.numbers((3, 8), d, seed=9) for d in DTYPES},
        "large": eco.numbers((4 << 20,), seed=11),
    }


def before_float8(tensors):
    """What the format before zip can hold."""
    return {n: t for n, t in tensors.items() if "float8" not in n}


def save(top):
    os.makedirs(f"{top}/run")
    torch.save(odd(), f"{top}/odd.pt")
    torch.save(before_float8(odd()), f"{top}/old_format.pt", _use_new_zipfile_serialization=False)

    # The trainer goes on with its tensors as soon as save has returned.
    net = model(1)
    torch.save({"model": net.state_dict(), "step": 1}, f"{top}/run/changed.pt")
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(-1)

    # Overwritten while somebody maps it: he keeps what he opened.
    path = f"{top}/run/over.pt"
    torch.save(model(1).state_dict(), path)
    mapped = torch.load(path, mmap=True, weights_only=True)
    torch.save(model(2).state_dict(), path)
    eco.same_dict(mapped, model(1).state_dict())
    eco.same_dict(torch.load(path, mmap=True, weights_only=True), model(2).state_dict())

    # The usual way not to be caught half way.
    for step in range(4):
        torch.save(model(step).state_dict(), f"{top}/run/last.pt.tmp")
        os.replace(f"{top}/run/last.pt.tmp", f"{top}/run/last.pt")
        got = torch.load(f"{top}/run/last.pt", weights_only=True)
        eco.same_dict(got, model(step).state_dict())


def check(top):
    want = odd()
    for mmap in (False, True):
        got = torch.load(f"{top}/odd.pt", mmap=mmap, weights_only=True)
        eco.same_dict(got, want)
        for name in ("row", "column", "turned", "every_third"):
            assert got[name].untyped_storage().data_ptr() == got["base"].untyped_storage().data_ptr()
            assert got[name].stride() == want[name].stride(), name
        got = torch.load(f"{top}/run/changed.pt", mmap=mmap, weights_only=True)
        eco.same_dict(got["model"], model(1).state_dict())
        tied = got["model"]["embed.weight"], got["model"]["head.weight"]
        assert tied[0].data_ptr() == tied[1].data_ptr()
    eco.same_dict(torch.load(f"{top}/old_format.pt", weights_only=True), before_float8(want))
    eco.same_dict(torch.load(f"{top}/run/over.pt", weights_only=True), model(2).state_dict())
    eco.same_dict(torch.load(f"{top}/run/last.pt", weights_only=True), model(3).state_dict())
    assert not os.path.exists(f"{top}/run/last.pt.tmp")
    eco.cairn_agrees(f"{top}/odd.pt", want)
    eco.cairn_agrees(f"{top}/run/over.pt", model(2).state_dict())


eco.main(save, check)
