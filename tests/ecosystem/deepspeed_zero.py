# SPDX-License-Identifier: MIT
# needs: torch deepspeed
# timeout: 600
"""DeepSpeed with gloo, 2 ranks: without ZeRO and with its stages 1 to 3; `latest`, old tags removed,
gone on from the newest to the same bits, zero_to_fp32. Somebody follows `latest` in the store meanwhile.

And its FastPersist writer: O_DIRECT, kernel AIO at offsets, closed and opened again for the tail. Its aio
handle is an operator compiled for minutes; lib/aio.py stands in for it and makes the same calls.
"""

import logging
import os
import re
import shutil
import time

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from deepspeed.io import FastFileWriterConfig, fast_file_writer
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.utils import logger
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

import aio
import eco

RANKS, STEPS, KEEP = 2, 5, 2
KINDS = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fast": 2}
BY_RANK_0 = {"none": 1, "zero1": 2, "zero2": 2, "zero3": 2, "fast": 2}    # files

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False    # else compiled when first used
fast_file_writer.UtilsBuilder = aio.NoBuilder


class Fast(TorchCheckpointEngine):
    """Saves as its FastCheckpointEngine, without what that sets up for a device."""

    def save(self, state_dict, path):
        config = FastFileWriterConfig(dnvme_handle=aio.Handle(), pinned_tensor=aio.aligned(1 << 16))
        writer = fast_file_writer.FastFileWriter(path, config)
        torch.save(state_dict, writer)
        writer.close()


def engine(rank, kind):
    stage = KINDS[kind]
    logger.setLevel(logging.ERROR)
    os.environ["LOCAL_RANK"] = str(rank)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    torch.manual_seed(11)
    net = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.GELU(), torch.nn.Linear(200, 33))
    config = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True,
              "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": stage}}
    eng = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(net.parameters(), lr=0.01),
                               config=config)[0]
    if kind == "fast":
        eng.checkpoint_engine = Fast()
    return eng


def train(eng, step, rank):
    x = eco.numbers((4, 64), torch.uint8, seed=10 * step + rank).float() / 255
    eng.backward(eng(x).square().mean())
    eng.step()


def weights(eng):
    params = list(eng.module.parameters())
    with deepspeed.zero.GatheredParameters(params, enabled=eng.zero_optimization_stage() == 3):
        return {n: t.detach().clone() for n, t in eng.module.state_dict().items()}


def run(rank, ranks, top):
    for kind in KINDS:    # in one process: to start one costs more
        save_steps(rank, top, kind)


def save_steps(rank, top, kind):
    eng, folder = engine(rank, kind), f"{top}/{kind}"
    for step in range(1, STEPS + 1):
        train(eng, step, rank)
        want = weights(eng)
        eng.save_checkpoint(folder, client_state={"mine": step})
        if rank == 0:
            torch.save(want, f"{top}/want-{kind}-{step}.pt")
            shutil.rmtree(f"{folder}/global_step{step - KEEP}", ignore_errors=True)
    train(eng, STEPS + 1, rank)
    want = weights(eng)
    if rank == 0:
        torch.save(want, f"{top}/want-{kind}-{STEPS + 1}.pt")


def load(rank, ranks, top):
    for kind in KINDS:
        load_two(rank, top, kind)


def load_two(rank, top, kind):
    """The newest, by `latest`; the step after it ends as it did for who went on. The other, by its tag."""
    def at(step):
        eco.same_dict(weights(eng), torch.load(f"{top}/want-{kind}-{step}.pt", weights_only=True))

    eng = engine(rank, kind)
    path, state = eng.load_checkpoint(f"{top}/{kind}")
    assert f"/global_step{STEPS}/" in path and state["mine"] == STEPS, (path, state)
    at(STEPS)
    train(eng, STEPS + 1, rank)
    at(STEPS + 1)
    eng.load_checkpoint(f"{top}/{kind}", tag=f"global_step{STEPS - 1}")
    at(STEPS - 1)


def follow(top):
    """What rank 0 wrote before `latest` is there and whole, in the store, at every moment; never back in time.

    DeepSpeed waits for the other ranks only after that: theirs may come later, and come whole. But what
    FastPersist writes is closed once without its tail, so of the other ranks' that may be seen.
    """
    kinds, last, seen = list(KINDS), 0, 0
    while kinds:
        folder = f"{top}/{kinds[0]}"
        try:
            with open(f"{folder}/latest", encoding="ascii") as f:
                tag = f.read()
        except FileNotFoundError:
            time.sleep(0.01)
            continue
        step = int(re.fullmatch(r"global_step(\d+)", tag)[1])
        assert step >= last, (folder, step, last)
        if step > last:
            got = read_whole(f"{folder}/{tag}", kinds[0], f"{folder}/latest", tag)
            assert all(m["mine"] == step for m in got if "mine" in m), tag
            seen += 1
        last = step
        if step == STEPS:
            del kinds[0]
            last = 0
        time.sleep(0.01)
    print(f"{seen} checkpoints followed")


def read_whole(path, kind, latest, tag):
    """Removed under the reader's hand: only when `latest` is another."""
    try:
        names = os.listdir(path)
        by_rank_0 = [n for n in names if "rank_1" not in n]
        assert len(by_rank_0) == BY_RANK_0[kind], (path, names)
        return [torch.load(f"{path}/{n}", weights_only=False)
                for n in (by_rank_0 if kind == "fast" else names)]
    except Exception:
        with open(latest, encoding="ascii") as f:
            if f.read() == tag:
                raise
        return []


def save(top):
    reader = eco.child(follow, os.environ["STORE"])
    eco.ranks(RANKS, run, top)
    eco.finish(reader)
    for kind, stage in KINDS.items():
        path = f"{top}/{kind}/global_step{STEPS}"
        eco.quiet(path)
        eco.needs_each(path, "deepspeed", RANKS if stage else 0, os.listdir(path), eco.quiet)


def check(top):
    eco.ranks(RANKS, load, top)
    for kind, stage in KINDS.items():
        folder = f"{top}/{kind}"
        tags = sorted(n for n in os.listdir(folder) if n.startswith("global_step"))
        assert tags == [f"global_step{s}" for s in (STEPS - 1, STEPS)], tags
        for step in (STEPS - 1, STEPS):
            want = torch.load(f"{top}/want-{kind}-{step}.pt", weights_only=True)
            if stage:
                eco.same_dict(get_fp32_state_dict_from_zero_checkpoint(folder, f"global_step{step}"), want)
            if stage < 3:
                found = eco.by_cairn(f"{folder}/global_step{step}/mp_rank_00_model_states.pt")
                eco.same_dict({n: found["module." + n] for n in want}, want)


if __name__ == "__main__":
    eco.main(save, check)
