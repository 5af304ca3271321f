# SPDX-License-Identifier: MIT
"""One file per checkpoint, saved beside the training: one_file.py DIR.

DIR may be a cairnfs mount, or any directory (then without its speed).
"""

from __future__ import annotations

import os
import sys

import torch

import cairnfs


def main(top: str, steps: int = 3) -> None:
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.AdamW(model.parameters())
    os.makedirs(top, exist_ok=True)

    with cairnfs.CairnStager(top) as stager:    # its buffers are used again by each save
        for step in range(1, steps + 1):
            loss = model(torch.randn(8, 256)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            staged = stager.stage(state)        # the tensors may change when it returns
            stager.commit(f"{top}/step-{step}.pt", staged)

    last = f"{top}/step-{steps}.pt"
    cairnfs.wait(last)                          # it is on the disk
    loaded = cairnfs.load(last)                 # torch.load reads it, too
    model.load_state_dict(loaded["model"])
    print(f"saved and loaded {last}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
