# SPDX-License-Identifier: MIT
"""DCP's async_save by CairnStorageWriter: torchrun --nproc-per-node 2 dcp_async.py DIR.

async_save coordinates the ranks from a thread while the training goes on with its own collectives,
so it needs a process group of its own, and one for the CPU: gloo, also where the training uses nccl.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.nn.parallel import DistributedDataParallel

from cairnfs import CairnStorageReader, CairnStorageWriter


def main(top: str, steps: int = 3) -> None:
    dist.init_process_group("gloo")             # or "nccl"
    saving = dist.new_group(backend="gloo")     # async_save's own
    assert isinstance(saving, dist.ProcessGroup)
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    state: dict[str, Any] = {}

    writer = CairnStorageWriter(f"{top}/step-0")     # one for all steps: its buffers are used again
    pending: Future[Any] | None = None
    for step in range(1, steps + 1):
        loss = model(torch.randn(8, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if pending is not None:
            pending.result()                    # the save before, and its errors
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        answer = async_save(state, checkpoint_id=f"{top}/step-{step}", storage_writer=writer,
                            process_group=saving)
        assert isinstance(answer, Future)       # with async_stager= it is an AsyncSaveResponse
        pending = answer
        # It returns when the tensors are copied: they may change now.
    if pending is not None:
        pending.result()
        writer.wait()                           # the last checkpoint is on the disk
    writer.close()                              # its memory would keep the mount busy

    load(state, storage_reader=CairnStorageReader(f"{top}/step-{steps}"))
    model.load_state_dict(state["model"])
    if dist.get_rank() == 0:
        print(f"saved and loaded {top}/step-{steps}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
