# SPDX-License-Identifier: MIT
# needs: torch trainers
# timeout: 600
"""accelerate save_state and load_state, with its rotation."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

import eco

STEPS = 5


def setup(top):
    torch.manual_seed(5)
    config = ProjectConfiguration(project_dir=top, automatic_checkpoint_naming=True, total_limit=2)
    acc = Accelerator(cpu=True, project_config=config)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    net, opt = acc.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.1))
    return acc, net, opt


def step(acc, net, opt, i):
    opt.zero_grad()
    acc.backward(net(eco.numbers((4, 64), torch.uint8, seed=i).float()).square().mean())
    opt.step()


def flat(net, opt):
    found = {"net." + n: t.clone() for n, t in net.state_dict().items()}
    for i, s in opt.state_dict()["state"].items():
        found |= {f"opt.{i}.{n}": t.clone() for n, t in s.items()}
    return found


def save(top):
    acc, net, opt = setup(f"{top}/run")
    for i in range(STEPS):
        step(acc, net, opt, i)
        acc.save_state()
    torch.save(flat(net, opt), f"{top}/want.pt")
    step(acc, net, opt, 99)


def check(top):
    folder = f"{top}/run/checkpoints"
    assert sorted(os.listdir(folder)) == ["checkpoint_3", "checkpoint_4"], os.listdir(folder)
    acc, net, opt = setup(f"{os.environ['TMPDIR']}/other")
    step(acc, net, opt, 50)
    acc.load_state(f"{folder}/checkpoint_4")
    eco.same_dict(flat(net, opt), torch.load(f"{top}/want.pt", weights_only=True))


eco.main(save, check)
