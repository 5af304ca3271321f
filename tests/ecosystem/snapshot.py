# SPDX-License-Identifier: MIT
# needs: torch snapshot
# timeout: 600
"""torchsnapshot, 2 ranks: at once and asynchronously; tensors of both ranks, of each, and plain values.

Small tensors share files, and `.snapshot_metadata` comes last: without any file that it lists the
checkpoint is not complete. `cairn tensors` has replicas once, and what each rank has by its rank.
"""

import json
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


def listed(path):
    with open(f"{path}/.snapshot_metadata", encoding="utf-8") as f:
        manifest = json.load(f)["manifest"]
    return sorted({e["location"] for e in manifest.values() if "location" in e})


def check(top):
    for step in STEPS:
        path, mine = f"{top}/step_{step}", [state(rank, step) for rank in range(RANKS)]
        eco.whole(path, "torchsnapshot", RANKS)
        want = {f"0/all/{name}": t for name, t in mine[0]["all"].items()}
        want |= {f"{rank}/own/mine": mine[rank]["own"]["mine"] for rank in range(RANKS)}
        eco.cairn_agrees(path, want)
    files = listed(f"{top}/step_3")
    assert files, "nothing is listed"
    eco.needs_each(f"{top}/step_3", "torchsnapshot", RANKS, [".snapshot_metadata"] + files)
    eco.ranks(RANKS, restore, top)


if __name__ == "__main__":
    eco.main(save, check)
