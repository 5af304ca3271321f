# SPDX-License-Identifier: MIT
# needs: torch safetensors
# modes: fast relay
# options: staging=256M
# disk: ext4
"""A store without space: each writer's save raises an error, and the checkpoint before it stays.

safetensors ignores the result of close(2), so write(2), or its own open, has to fail.
"""

import os

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

import eco

SIZE = 60 << 20         # of a checkpoint
SPACE = 20 << 20         # that the store has left
DISK = os.path.dirname(os.environ["STORE"])


def state(seed):
    return {"weight": eco.numbers((SIZE // 4,), torch.float32, seed=seed)}


def save_torch(path, seed):
    torch.save(state(seed), path)


def save_dcp(path, seed):
    dcp.save(state(seed), checkpoint_id=path, no_dist=True)


def save_safetensors(path, seed):
    save_file(state(seed), path)


WRITERS = {"a.safetensors": save_safetensors, "a.pt": save_torch, "a.dcp": save_dcp}


def fill():
    with open(os.path.join(DISK, "filler"), "wb") as f:
        v = os.statvfs(DISK)
        os.posix_fallocate(f.fileno(), 0, v.f_bavail * v.f_frsize - SPACE)


def save(top):
    for seed, (name, write) in enumerate(WRITERS.items()):
        write(os.path.join(top, name), seed)
    eco.subprocess.run([eco.CAIRN, "wait", top], check=True)
    fill()
    for name, write in WRITERS.items():
        new = os.path.join(top, "new-" + name)
        try:
            write(new, 9)
        except BaseException as e:      # DCP raises one of these
            print(f"{name}: {type(e).__name__}: {e}"[:200])
        else:
            raise AssertionError(f"{name}: {SIZE} bytes were saved into {SPACE}")
        eco.subprocess.run(["rm", "-rf", new], check=True)
    os.unlink(os.path.join(DISK, "filler"))


def check(top):
    for seed, name in enumerate(WRITERS):
        path, want = os.path.join(top, name), state(seed)
        if name.endswith(".dcp"):
            got = {"weight": torch.empty_like(want["weight"])}
            dcp.load(got, checkpoint_id=path, no_dist=True)
        else:
            got = load_file(path) if name.endswith("safetensors") else torch.load(path)
        eco.same_dict(got, want)


eco.main(save, check)
