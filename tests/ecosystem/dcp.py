# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""DCP with gloo: 2 and 4 ranks save, 2, 3 and 4 load; the same directory overwritten."""

import torch.distributed.checkpoint as dcp

import eco
import model


def save_steps(rank, ranks, path, steps):
    for step in steps:
        state = model.sharded(step, ranks)
        dcp.save(state, checkpoint_id=path)
        model.spoil(state)


def load(rank, ranks, path, step):
    state = model.sharded(step, ranks, fill=3)
    state["note"] = "x"
    dcp.load(state, checkpoint_id=path)
    model.expect(state, step)


def save(top):
    eco.ranks(2, save_steps, f"{top}/two/step-1", [1])
    eco.ranks(4, save_steps, f"{top}/four/over", [5, 6])
    eco.ranks(4, load, f"{top}/four/over", 6)


def check(top):
    for n in (2, 3):
        eco.ranks(n, load, f"{top}/two/step-1", 1)
        eco.ranks(n, load, f"{top}/four/over", 6)
    eco.cairn_agrees(f"{top}/two/step-1", model.names(1))
    eco.cairn_agrees(f"{top}/four/over", model.names(6))


if __name__ == "__main__":
    eco.main(save, check)
