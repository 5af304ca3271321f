# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 300
"""docs/examples as they stand: one file per checkpoint, and DCP's async_save by two ranks."""

import os
import socket
import subprocess
import sys

import torch

import eco

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/examples")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torchrun(ranks, *argv):
    """What torchrun sets, without its rendezvous: that resolves the hostname, which may be unknown."""
    port = str(free_port())
    started = [subprocess.Popen([sys.executable, *argv],
                                env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                                     "RANK": str(r), "WORLD_SIZE": str(ranks)}) for r in range(ranks)]
    ended = [p.wait() for p in started]
    assert ended == [0] * ranks, ended


def save(top):
    subprocess.run([sys.executable, f"{EXAMPLES}/one_file.py", f"{top}/one"], check=True)
    torchrun(2, f"{EXAMPLES}/dcp_async.py", f"{top}/dcp")


def check(top):
    for step in (1, 2, 3):
        assert torch.load(f"{top}/one/step-{step}.pt")["step"] == step
        whole = os.path.join(os.environ["TMPDIR"], "whole.pt")
        eco.dcp_to_torch_save(f"{top}/dcp/step-{step}", whole)
        assert torch.load(whole)["step"] == step


if __name__ == "__main__":
    eco.main(save, check)
