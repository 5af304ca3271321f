# SPDX-License-Identifier: MIT
# needs: torch
# modes: fast
# timeout: 300
"""The Python package as `make install install-python` put it below a DESTDIR, by a Python that knows of no other."""

import os
import subprocess
import sys

import torch

import eco

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PYTHONDIR = "/usr/lib/python3/dist-packages"
USE = """
import sys, torch, cairnfs
mnt, root = sys.argv[1:]
assert cairnfs.__file__.startswith(root), cairnfs.__file__
lib = cairnfs.library()
assert lib is not None and lib.path.startswith(root), lib
with cairnfs.CairnStager(mnt) as stager:
    stager.save({"x": torch.arange(1000.0)}, mnt + "/x.pt")
    assert stager.memory.mount == mnt, stager.memory.mount
with cairnfs.CairnStager(mnt, pin_memory=False, share_memory=True) as stager:
    stager.save({"x": torch.arange(1000.0)}, mnt + "/y.pt")
cairnfs.save({"x": torch.arange(10.0)}, mnt + "/z.pt")
assert torch.equal(cairnfs.load(mnt + "/z.pt")["x"], torch.arange(10.0))
try:
    cairnfs.save({}, mnt + "/z.pt", exclusive=True)
    sys.exit("an existing file was replaced")
except FileExistsError as err:
    assert "z.pt" in str(err), err
cairnfs.wait(mnt)
"""


def save(top):
    root = os.path.join(os.environ["TMPDIR"], "root")
    env = {n: v for n, v in os.environ.items()
           if n not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CAIRN_LIBRARY", "PYTHONPATH", "PREFIX")}
    # -o all: what is tested is there, and is not built again
    subprocess.run(["make", "-s", "-C", TOP, "-o", "all", f"BUILD={os.path.dirname(eco.CAIRN)}",
                    f"DESTDIR={root}", "PREFIX=/usr", f"PYTHON={sys.executable}", f"PYTHONDIR={PYTHONDIR}",
                    "install", "install-python"], check=True, env=env)
    subprocess.run([sys.executable, "-c", USE, top, root], check=True,
                   env={**env, "PYTHONPATH": root + PYTHONDIR})


def check(top):
    eco.same(torch.load(f"{top}/x.pt", weights_only=True)["x"], torch.arange(1000.0))


if __name__ == "__main__":
    eco.main(save, check)
