# SPDX-License-Identifier: MIT
# needs: torch snapshot
# timeout: 600
"""torchsnapshot, 2 ranks: at once and asynchronously; tensors of both ranks, of each, and plain values.

Small tensors share files, and `.snapshot_metadata` comes last.
"""

import os

import torch
from torchsnapshot import Snapshot, StateDict

import eco
import model

RANKS, STEPS = 2, (1, 2, 3)


def state(rank, step, fill=None):
    tensors = model.full(step)
    tensors["uneven"] = tensors["uneven"].float()   # an odd number of bfloat16 is more than it can hold
    found = {"all": StateDict(**tensors), "own": StateDict(mine=eco.numbers((300, 70), seed=100 * step + rank)),
             "progress": StateDict(step=step, note=f"s{step}", lr=0.1, list=[1, {"a": True}])}
    if fill is not None:
        for part in ("all", "own"):
            for name, t in found[part].items():
                found[part][name] = torch.full_like(t, fill)
        found["progress"] = StateDict(step=-1, note="", lr=0.0, list=[])
    return found


def take(rank, ranks, top):
    for step in STEPS:
        mine, path = state(rank, step), f"{top}/step_{step}"
        if step == 1:
            Snapshot.take(path, mine, replicated=["all/*"])
            continue
        pending = Snapshot.async_take(path, mine, replicated=["all/*"])
        for part in ("all", "own"):     # as soon as it has returned
            for t in mine[part].values():
                t.zero_()
        pending.wait()


def restore(rank, ranks, top):
    for step in STEPS:
        mine, want = state(rank, step, fill=3), state(rank, step)
        Snapshot(f"{top}/step_{step}").restore(mine)
        for part in ("all", "own"):
            eco.same_dict(dict(mine[part]), dict(want[part]))
        assert dict(mine["progress"]) == dict(want["progress"]), mine["progress"]


def save(top):
    eco.ranks(RANKS, take, top)


def check(top):
    for step in STEPS:
        assert os.path.exists(f"{top}/step_{step}/.snapshot_metadata")
    eco.ranks(RANKS, restore, top)


if __name__ == "__main__":
    eco.main(save, check)
