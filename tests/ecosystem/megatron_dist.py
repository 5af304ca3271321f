# SPDX-License-Identifier: MIT
# needs: torch megatron
# timeout: 600
"""Megatron-core's dist_checkpointing with gloo, 2 ranks: fully parallel save, then asynchronously.

Its writers are processes, forked for each save, or one that stays. They ask for a device in a few
places; there it gets the CPU. Everything else is Megatron's own.
"""

import os
import shutil

import torch

# Before Megatron is imported, also in the processes that it spawns: those import this file.
torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: "cpu"
torch.cuda.device_count = lambda: 1
torch.cuda.set_device = lambda _: None

from megatron.core import dist_checkpointing as mcore
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

import eco

RANKS = 2
# name: whole shape, dtype, the dimension that tensor parallelism cuts (None: every rank has all)
MODEL = {
    "embedding.word_embeddings.weight": ((512, 96), torch.bfloat16, 0),
    "decoder.layers.self_attention.linear_qkv.weight": ((288, 96), torch.bfloat16, 0),
    "decoder.layers.self_attention.linear_proj.weight": ((96, 96), torch.bfloat16, 1),
    "decoder.final_layernorm.weight": ((96,), torch.float32, None),
    "decoder.large": ((1024, 1024), torch.float32, 0),
}


def full(step):
    return {n: eco.numbers(shape, dtype, seed=100 * step + i)
            for i, (n, (shape, dtype, _)) in enumerate(MODEL.items())}


def sharded(step, rank, ranks, fill=None):
    """What a model's sharded_state_dict() gives on that rank."""
    found = {}
    for name, whole in full(step).items():
        cut = MODEL[name][2]
        data = whole.clone() if cut is None else whole.chunk(ranks, cut)[rank].clone()
        if fill is not None:
            data.fill_(fill)
        if cut is None:
            found[name] = ShardedTensor.from_rank_offsets(name, data, replica_id=rank)
        else:
            found[name] = ShardedTensor.from_rank_offsets(name, data, (cut, rank, ranks))
    extra = ShardedObject("rng_state", f"rng {step} {rank}" if fill is None else None, (ranks,), (rank,))
    return {"model": found, "rng_state": extra, "iteration": step, "args": {"hidden_size": 96}}


def spoil(state):
    for t in state["model"].values():
        t.data.zero_()


def folder(top, step):
    return f"{top}/iter_{step:07}"


def track(top, rank, step):
    """As Megatron-LM's save_checkpoint() ends: on rank 0, when all is written."""
    if rank == 0:
        with open(f"{top}/latest_checkpointed_iteration.txt", "w", encoding="ascii") as f:
            f.write(str(step))


def fresh(path, rank):
    if rank == 0:
        os.makedirs(path)
    torch.distributed.barrier()


def strategy(cached=False):
    base = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=2, cached_metadata=cached)
    return FullyParallelSaveStrategyWrapper(base)


def save_sync(rank, ranks, top):
    for step in (10, 20):
        fresh(folder(top, step), rank)
        state = sharded(step, rank, ranks)
        mcore.save(state, folder(top, step), strategy())
        spoil(state)
        track(top, rank, step)


def save_async(rank, ranks, top, persistent):
    calls, ours = AsyncCallsQueue(persistent=persistent), strategy(cached=True)
    for step in (10, 20, 30):
        fresh(folder(top, step), rank)
        state = sharded(step, rank, ranks)
        request = mcore.save(state, folder(top, step), ours, async_sharded_save=True)
        request.add_finalize_fn(lambda step=step: track(top, rank, step))
        calls.schedule_async_request(request)
        if rank == 0 and not os.path.exists(f"{folder(top, step)}/metadata.json"):
            assert eco.judged(folder(top, step)).get("state") != "complete", step
        calls.maybe_finalize_async_calls(blocking=True)
        spoil(state)
        if rank == 0:
            # rotated as --save-retain-interval has it
            shutil.rmtree(folder(top, step - 20), ignore_errors=True)
    calls.close()


def load(rank, ranks, path, step):
    got = mcore.load(sharded(step, rank, ranks, fill=3), path)
    assert got["iteration"] == step and got["rng_state"] == f"rng {step} {rank}", got["rng_state"]
    want = sharded(step, rank, ranks)["model"]
    eco.same_dict(got["model"], {n: t.data for n, t in want.items()})


def load_other(rank, ranks, path, step):
    """By another number of ranks than wrote it. rng_state is by rank: it stays away."""
    state = sharded(step, rank, ranks, fill=3)
    del state["rng_state"]
    got = mcore.load(state, path)
    want = sharded(step, rank, ranks)["model"]
    eco.same_dict(got["model"], {n: t.data for n, t in want.items()})


KINDS = {"sync": (10, 20), "forked": (20, 30), "persistent": (20, 30)}


def save(top):
    for kind in KINDS:
        os.makedirs(f"{top}/{kind}")
    eco.ranks(RANKS, save_sync, f"{top}/sync")
    eco.ranks(RANKS, save_async, f"{top}/forked", False)
    eco.ranks(RANKS, save_async, f"{top}/persistent", True)
    path = folder(f"{top}/sync", 20)
    eco.needs_each(path, "megatron", RANKS, os.listdir(path))


def check(top):
    for kind, steps in KINDS.items():
        assert sorted(n for n in os.listdir(f"{top}/{kind}") if n.startswith("iter_")) == \
            [f"iter_{s:07}" for s in steps], os.listdir(f"{top}/{kind}")
        with open(f"{top}/{kind}/latest_checkpointed_iteration.txt", encoding="ascii") as f:
            assert f.read() == str(steps[-1])
        for step in steps:
            path = folder(f"{top}/{kind}", step)
            eco.ranks(RANKS, load, path, step)
            eco.same_dict({n: t for n, t in eco.by_cairn(path).items() if n in MODEL}, full(step))
            eco.whole(path, "megatron", RANKS)
        eco.ranks(4, load_other, folder(f"{top}/{kind}", steps[-1]), steps[-1])


if __name__ == "__main__":
    eco.main(save, check)
