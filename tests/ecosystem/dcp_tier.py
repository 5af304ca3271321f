# SPDX-License-Identifier: MIT
# needs: torch
# modes: fast relay
# timeout: 600
"""A new node: two ranks save with tier=, the node and its store are gone; an empty store with the same tier is mounted,
and two ranks load `latest`, bit for bit. One mount, and no other step.
"""

import os
import shutil
import subprocess

import torch.distributed.checkpoint as dcp

import eco
import model

TOP = os.path.join(os.environ["TMPDIR"], "nodes")
TIER = os.path.join(TOP, "tier")
STEPS = (3, 8)


def mount(node):
    store, mnt = os.path.join(TOP, node, "store"), os.path.join(TOP, node, "mnt")
    os.makedirs(store)
    os.makedirs(mnt)
    options = f"tier={TIER},staging=256M,pool=0"
    if os.environ.get("MODE") == "relay":
        options += ",nopassthrough"
    subprocess.run([os.path.join(os.path.dirname(eco.CAIRN), "cairnfs"), store, mnt, "-o", options], check=True)
    return store, mnt


def umount(mnt):
    subprocess.run([eco.CAIRN, "umount", mnt], check=True)


def save_steps(rank, ranks, mnt):
    for step in STEPS:
        state = model.sharded(step, ranks)
        dcp.save(state, checkpoint_id=f"{mnt}/run/step-{step}")
        model.spoil(state)


def load_latest(rank, ranks, mnt):
    state = model.sharded(STEPS[-1], ranks, fill=3)
    state["note"] = "x"
    dcp.load(state, checkpoint_id=f"{mnt}/.cairn/latest/run")
    model.expect(state, STEPS[-1])


def save(top):
    os.makedirs(TIER)
    store, mnt = mount("a")
    try:
        eco.ranks(2, save_steps, mnt)
        subprocess.run([eco.CAIRN, "wait", "--tier", mnt], check=True)
    finally:
        umount(mnt)
    shutil.rmtree(store)
    store, mnt = mount("b")
    try:
        assert not os.path.exists(f"{mnt}/run")
        eco.ranks(2, load_latest, mnt)
        eco.until(lambda: os.path.exists(f"{store}/run/step-{STEPS[-1]}"), "what was read is in the store")
        # what was read is a checkpoint of this store, and the others are not fetched
        assert sorted(os.listdir(f"{store}/run")) == [f"step-{STEPS[-1]}"], os.listdir(f"{store}/run")
        eco.cairn_agrees(f"{mnt}/run/step-{STEPS[-1]}", model.names(STEPS[-1]))
        shutil.copytree(f"{mnt}/run", f"{top}/run")
    finally:
        umount(mnt)


def check(top):
    eco.cairn_agrees(f"{top}/run/step-{STEPS[-1]}", model.names(STEPS[-1]))


if __name__ == "__main__":
    eco.main(save, check)
