# SPDX-License-Identifier: MIT
# needs: torch checkpointing
# timeout: 600
"""PyTorch's torch_checkpointing, 2 ranks: at once, and by its process from shared memory.

It writes with O_DIRECT through Python's buffers, at no alignment, into tmp_NAME and renames that. Where it
asks for a GPU to gather what each rank knows of its shards, gloo gathers it.
"""

import os

import torch
from torch_checkpointing import CheckpointManager, ItemSpec
from torch_checkpointing.checkpoint_process import CheckpointProcessConfig
from torch_checkpointing.config import AsyncCheckpointSaverConfig, SyncCheckpointSaverConfig
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.metadata_manager import DefaultMetadataManager
from torch_checkpointing.staging import CheckpointStagerConfig

import eco
import model

RANKS, STEPS = 2, (1, 2)
LONG = 500      # seconds; its own limit of 30 for a process to start is too little beside others


def gather(_, data, group=None):
    found = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(found, data, group=group)
    return dict(enumerate(found))


DefaultMetadataManager._all_gather_pickled_data = gather


def uncommitted(args):
    """Before the rename: what is there may be all, and is no checkpoint yet."""
    assert os.path.basename(args.path).startswith("tmp_"), args.path
    got = eco.judged(args.path)
    assert got.get("state") != "complete" and not got.get("safe"), got


def manager(kind):
    save = SyncCheckpointSaverConfig() if kind == "sync" else AsyncCheckpointSaverConfig(
        staging_config=CheckpointStagerConfig(use_pinned_memory=False, use_shared_memory=True),
        process_config=CheckpointProcessConfig(subprocess_init_timeout_secs=LONG, subprocess_shutdown_timeout_secs=LONG))
    return CheckpointManager(CheckpointManager.Config(
        items={"model": ItemSpec(resharder=DefaultResharder())}, default=ItemSpec(requires_copy=False), save=save,
        pre_finalize_callback=uncommitted))


def run(rank, ranks, top, kind):
    m = manager(kind)
    for step in STEPS:
        state = model.sharded(step, ranks)
        future = m.save(f"{top}/{kind}/step_{step}", {"model": state["model"], "step": step, "note": state["note"]})
        if future is None:
            model.spoil(state)
            continue
        m._staging_future.result()
        model.spoil(state)
        future.result()
    m.close()


def load(rank, ranks, path, step):
    m = manager("sync")
    state = model.sharded(step, ranks, fill=3)
    got = m.load(path, into={"model": state["model"], "step": None, "note": None})
    assert got["step"] == step and got["note"] == f"s{step}", (got["step"], got["note"])
    eco.same_dict({n: t.full_tensor() for n, t in got["model"].items()}, model.full(step))
    m.close()


KINDS = ("sync", "async")


def save(top):
    for kind in KINDS:
        os.mkdir(f"{top}/{kind}")
        eco.ranks(RANKS, run, top, kind)


def check(top):
    for kind in KINDS:
        assert sorted(os.listdir(f"{top}/{kind}")) == [f"step_{s}" for s in STEPS], os.listdir(f"{top}/{kind}")
        for step in STEPS:
            path = f"{top}/{kind}/step_{step}"
            assert eco.judged(path).get("state") == "complete", eco.judged(path)
            eco.ranks(RANKS, load, path, step)


if __name__ == "__main__":
    eco.main(save, check)
