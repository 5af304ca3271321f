# SPDX-License-Identifier: MIT
# needs: torch megatron
# timeout: 600
"""NVIDIA's resiliency extension, 2 ranks: its asynchronous torch.save and its asynchronous DCP writer.

Their workers are forked for each save. Where they ask for a device they get the CPU. Its local checkpoints
want tensors on a GPU.
"""

import os

import torch
import torch.distributed.checkpoint as dcp

torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: "cpu"

from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
    save_state_dict_async_finalize, save_state_dict_async_plan)
from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

import eco
import model

RANKS, STEPS = 2, 3


def save_torch(rank, ranks, top):
    saver = TorchAsyncCheckpoint(persistent_queue=False)
    for step in range(1, STEPS + 1):
        mine = model.full(10 * step + rank)
        saver.async_save(mine, f"{top}/rank-{rank}-{step}.pt")
        saver.finalize_async_save(blocking=True, no_dist=False)
        for t in mine.values():
            t.zero_()
    saver.finalize_async_save(terminate=True)


def save_dcp(rank, ranks, top):
    calls = AsyncCallsQueue(persistent=False)
    for step in range(1, STEPS + 1):
        state, path = model.sharded(step, ranks), f"{top}/step_{step}"
        writer = FileSystemWriterAsync(path, thread_count=2)
        plan = save_state_dict_async_plan(state, writer, None, 0)
        save_fn, preload_fn, args = writer.get_save_function_and_args()
        calls.schedule_async_request(AsyncRequest(
            save_fn, args, [lambda plan=plan: save_state_dict_async_finalize(*plan)], preload_fn=preload_fn))
        if rank == 0:
            assert eco.judged(path).get("state") != "complete", step
        calls.maybe_finalize_async_calls(blocking=True, no_dist=False)
        model.spoil(state)
    calls.close()


def load(rank, ranks, path, step):
    state = model.sharded(step, ranks, fill=3)
    state["note"] = "x"
    dcp.load(state, checkpoint_id=path)
    model.expect(state, step)


def save(top):
    os.makedirs(f"{top}/torch")
    eco.ranks(RANKS, save_torch, f"{top}/torch")
    eco.ranks(RANKS, save_dcp, f"{top}/dcp")
    path = f"{top}/dcp/step_{STEPS}"
    eco.needs_each(path, "dcp", RANKS, os.listdir(path))


def check(top):
    for step in range(1, STEPS + 1):
        for rank in range(RANKS):
            path, want = f"{top}/torch/rank-{rank}-{step}.pt", model.full(10 * step + rank)
            eco.same_dict(torch.load(path, weights_only=True), want)
            eco.cairn_agrees(path, want)
        eco.ranks(RANKS, load, f"{top}/dcp/step_{step}", step)
        eco.cairn_agrees(f"{top}/dcp/step_{step}", model.names(step))


if __name__ == "__main__":
    eco.main(save, check)
