# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""Somebody reads while the next checkpoint is saved: he finds the old one or the new one, whole.

On the mount and in the store: one file that is replaced by a rename, a directory that is renamed
when it is done, DCP directories whose `.metadata` comes last, and old ones removed meanwhile.
"""

import os
import re
import shutil
import time

import torch
import torch.distributed.checkpoint as dcp

import eco

STEPS = 12
KEEP = 3


def state(step):
    found = {f"t{i}": torch.full((64, 1024), float(step)) for i in range(24)}
    found["last"] = eco.numbers((17, 96), seed=step)
    return found


def write(top):
    for step in range(1, STEPS + 1):
        mine = state(step)
        torch.save(mine, f"{top}/last.pt.tmp")
        os.replace(f"{top}/last.pt.tmp", f"{top}/last.pt")

        os.makedirs(f"{top}/moved/tmp")
        torch.save(mine, f"{top}/moved/tmp/model.pt")
        os.rename(f"{top}/moved/tmp", f"{top}/moved/step-{step}")

        dcp.save(mine, checkpoint_id=f"{top}/dcp/step-{step}")
        with open(f"{top}/written", "w", encoding="ascii") as f:
            f.write(str(step))
        if step > KEEP:
            shutil.rmtree(f"{top}/dcp/step-{step - KEEP}")
            shutil.rmtree(f"{top}/moved/step-{step - KEEP}")


def whole(got):
    """All of one step, and which."""
    step = int(got["t0"][0, 0].item())
    eco.same_dict(got, state(step))
    return step


def steps(folder, commit):
    try:
        found = [int(m[1]) for n in os.listdir(folder) if (m := re.fullmatch(r"step-(\d+)", n))]
    except FileNotFoundError:
        return []
    return sorted(s for s in found if os.path.exists(f"{folder}/step-{s}/{commit}"))


def load_dcp(path):
    got = {n: torch.zeros_like(t) for n, t in state(1).items()}
    dcp.load(got, checkpoint_id=path)
    return got


def load(path):
    return torch.load(path, weights_only=True)


def newest(folder, commit, read):
    """The newest that is committed. Removed under the reader's hand: only when newer ones are there."""
    found = steps(folder, commit)
    if not found:
        return 0
    path = f"{folder}/step-{found[-1]}"
    try:
        got = whole(read(path))
    except Exception:
        if steps(folder, commit)[-1] < found[-1] + KEEP:
            raise
        return found[-1]
    assert got == found[-1], (path, got)
    return got


def read(top):
    """Until the writer's last step is seen; never back in time."""
    at, rounds = [0, 0, 0], 0
    while min(at) < STEPS:
        now = [whole(load(f"{top}/last.pt")) if os.path.exists(f"{top}/last.pt") else 0,
               newest(f"{top}/moved", "model.pt", lambda p: load(p + "/model.pt")),
               newest(f"{top}/dcp", ".metadata", load_dcp)]
        assert all(n >= a for n, a in zip(now, at)), (at, now)
        rounds += now != at
        at = now
        time.sleep(0.002)
    print(f"{top}: {rounds} different states seen")


def save(top):
    readers = [eco.child(read, top), eco.child(read, os.environ["STORE"])]
    write(top)
    for r in readers:
        eco.finish(r)


def check(top):
    kept = list(range(STEPS - KEEP + 1, STEPS + 1))
    assert steps(f"{top}/dcp", ".metadata") == kept, steps(f"{top}/dcp", ".metadata")
    assert steps(f"{top}/moved", "model.pt") == kept
    assert whole(load(f"{top}/last.pt")) == STEPS
    for step in kept:
        eco.cairn_agrees(f"{top}/dcp/step-{step}", state(step))


if __name__ == "__main__":
    eco.main(save, check)
