# SPDX-License-Identifier: MIT
# needs: torch torchtitan
# timeout: 600
"""torchtitan's CheckpointManager on FSDP with gloo, 2 ranks: at once and asynchronously, keep_latest_k,
gone on from the newest, the last step for Hugging Face.

Its third mode stages through pinned memory, which wants a GPU.
"""

import logging
import os
import types

import torch
import torch._dynamo    # noqa: F401 - once here, not in each rank
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer
from torchtitan.components.optimizer.optimizer import ParamGroupConfig

import eco

RANKS, STEPS, KEEP = 2, 5, 2
SIZES = {"tok_embeddings": (1000, 64), "wq": (96, 64), "w2": (33, 96), "output": (512, 33)}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, (a, b) in SIZES.items():
            setattr(self, name, torch.nn.Linear(b, a))

    def forward(self, x):
        return x    # the data are not what is tested


class Train:
    """The parts of a torchtitan trainer that are in its checkpoints."""

    def __init__(self, ranks, steps):
        torch.manual_seed(3)
        net, mesh = Net(), init_device_mesh("cpu", (ranks,))
        for layer in net.children():
            fully_shard(layer, mesh=mesh)
        self.net = fully_shard(net, mesh=mesh)
        groups = [ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01})]
        self.opt = OptimizersContainer(
            OptimizersContainer.Config(param_groups=groups, implementation="for-loop"), model_parts=[self.net])
        self.lr = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=self.opt, training_steps=steps)
        self.at = 0

    def step(self):
        """Gradients that depend on the step alone."""
        for i, p in enumerate(self.net.parameters()):
            g = torch.Generator().manual_seed(1000 * self.at + i)
            whole = torch.randn(p.shape, generator=g)
            p.grad = torch.distributed.tensor.distribute_tensor(whole, p.device_mesh, p.placements)
        self.opt.step()
        self.lr.step()
        self.at += 1

    def state_dict(self):
        return {"step": torch.tensor(self.at)}

    def load_state_dict(self, state):
        self.at = int(state["step"])

    def manager(self, folder, **more):
        config = CheckpointManager.Config(enable=True, folder=folder, interval=1, keep_latest_k=KEEP, **more)
        return CheckpointManager(config, dataloader=None, model_parts=[self.net], optimizers=self.opt,
                                 lr_schedulers=self.lr, states={"train_state": self}, sd_adapter=HF)

    def weights(self):
        return {n: t.full_tensor().detach() for n, t in self.net.state_dict().items()}

    def flat(self):
        """By the names that stand in the checkpoint, every tensor whole."""
        found = dict(self.net.state_dict())
        found |= {"optimizer." + n: t for n, t in self.opt.state_dict().items()}
        whole = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in found.items()}
        return {n: t.detach().clone() for n, t in whole.items() if isinstance(t, torch.Tensor)}


def hf_names(found):
    return {"model.layers." + n: t for n, t in found.items()}


HF = types.SimpleNamespace(to_hf=hf_names, hf_assets_path=None, fqn_to_index_mapping={
    f"model.layers.{n}.{kind}": 1 + i // 2 for i, n in enumerate(SIZES) for kind in ("weight", "bias")})


def keep(path, rank, tensors):
    if rank == 0:
        torch.save(tensors, path)


def run(rank, ranks, top, mode):
    folder, train = f"{top}/{mode}", Train(ranks, STEPS)
    m = train.manager(folder, async_mode=mode, last_save_in_hf=True)
    assert not m.load()
    for _ in range(STEPS):
        train.step()
        want = train.flat()
        m.save(train.at)                    # and on with the next step while it is written
        keep(f"{top}/want-{mode}-{train.at}.pt", rank, want)
    train.step()
    m.maybe_wait_for_saving()
    m.close()


def go_on(rank, ranks, top, mode):
    """Another process takes the newest, steps once, and saves the last for Hugging Face."""
    train = Train(ranks, STEPS)
    m = train.manager(f"{top}/{mode}", async_mode=mode, last_save_in_hf=True)
    assert m.load() and train.at == STEPS, train.at
    train.step()
    m.save(train.at, last_step=True)
    keep(f"{top}/want-{mode}-hf.pt", rank, hf_names(train.weights()))
    m.close()


def load(rank, ranks, top, mode, step):
    train = Train(ranks, STEPS)
    m = train.manager(f"{top}/{mode}", load_only=True)
    assert m.load(step) and train.at == step, train.at
    eco.same_dict(train.flat(), torch.load(f"{top}/want-{mode}-{step}.pt", weights_only=True))
    m.close()


MODES = ("disabled", "async")


def save(top):
    logging.disable(logging.WARNING)
    for mode in MODES:
        eco.ranks(RANKS, run, top, mode)
        path = f"{top}/{mode}/step-{STEPS}"
        eco.needs_each(path, "dcp", RANKS, os.listdir(path))
        eco.ranks(RANKS, go_on, top, mode)


def check(top):
    logging.disable(logging.WARNING)
    for mode in MODES:
        # the last step purges nothing; an asynchronous save may purge before its own directory is
        # there, and so keeps one more
        kept = [f"step-{s}" for s in range(STEPS - KEEP + 1, STEPS + 2)]
        more = [f"step-{STEPS - KEEP}"] if mode == "async" else []
        found = sorted(os.listdir(f"{top}/{mode}"))
        assert found in (kept, more + kept), found
        for step in (STEPS - 1, STEPS):
            eco.ranks(RANKS, load, top, mode, step)
            path = f"{top}/{mode}/step-{step}"
            eco.whole(path, "dcp", RANKS)
            want = torch.load(f"{top}/want-{mode}-{step}.pt", weights_only=True)
            found = eco.by_cairn(path)
            eco.same_dict({n: found[n] for n in want}, want)
        eco.ranks(3, load, top, mode, STEPS)
        last = f"{top}/{mode}/step-{STEPS + 1}"
        want = torch.load(f"{top}/want-{mode}-hf.pt", weights_only=True)
        eco.cairn_agrees(last, want)
        eco.same_dict(load_file(f"{last}/model-00001-of-00002.safetensors") |
                      load_file(f"{last}/model-00002-of-00002.safetensors"), want)


if __name__ == "__main__":
    eco.main(save, check)
