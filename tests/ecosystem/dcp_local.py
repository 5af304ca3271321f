# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""DCP without collectives (use_collectives=False): each rank its own metadata."""

import os

import torch.distributed.checkpoint as dcp

import eco
import model


def save_local(rank, ranks, path):
    for step in (1, 2):    # over the first
        state = model.sharded(step, ranks)
        dcp.save(state, checkpoint_id=path, use_collectives=False)
        model.spoil(state)


def load(rank, ranks, path):
    state = model.sharded(2, ranks, fill=3)
    dcp.load(state, checkpoint_id=path)
    model.expect(state, 2)


def save(top):
    eco.ranks(2, save_local, f"{top}/local")


def check(top):
    path = f"{top}/local"
    names = os.listdir(path)
    assert ".metadata" not in names and "__0.metadata" in names and "__1.metadata" in names, names
    eco.ranks(2, load, path)
    eco.cairn_agrees(path, model.names(2))


if __name__ == "__main__":
    eco.main(save, check)
