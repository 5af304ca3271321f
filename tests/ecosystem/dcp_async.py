# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""DCP async_save, by thread and by process; the trainer goes on while it runs."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import eco
import model


def save_kind(rank, ranks, top, kind):
    kind = AsyncCheckpointerType(kind)
    # The async ways want a group that a process of their own can copy.
    for step in (1, 2):
        state = model.sharded(step, ranks)
        future = dcp.async_save(state, checkpoint_id=f"{top}/{kind.value}/step-{step}",
                                async_checkpointer_type=kind)
        model.spoil(state)
        future.result()


def load(rank, ranks, path, step):
    state = model.sharded(step, ranks, fill=3)
    dcp.load(state, checkpoint_id=path)
    model.expect(state, step)


def save(top):
    for kind in AsyncCheckpointerType:
        eco.ranks(2, save_kind, top, kind.value)


def check(top):
    for kind in AsyncCheckpointerType:
        for step in (1, 2):
            path = f"{top}/{kind.value}/step-{step}"
            eco.ranks(2, load, path, step)
            eco.cairn_agrees(path, model.names(step))


if __name__ == "__main__":
    eco.main(save, check)
