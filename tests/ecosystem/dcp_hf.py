# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""DCP to Hugging Face safetensors: sharded by rank, then consolidated."""

import glob
import json
import os

import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

import eco
import model

FILE = {n: 1 + i % 2 for i, n in enumerate([*model.SHAPES, "head"])}


def save_hf(rank, ranks, path):
    state = model.sharded(4, ranks)["model"]
    state["head"] = state["head"].clone()
    writer = HuggingFaceStorageWriter(path, fqn_to_index_mapping=FILE, save_distributed=True,
                                      enable_consolidation=True, thread_count_consolidation=2)
    dcp.save(state, storage_writer=writer)


def load(rank, ranks, path):
    state = model.sharded(4, ranks, fill=3)["model"]
    state["head"] = state["head"].clone()
    dcp.load(state, storage_reader=HuggingFaceStorageReader(path))
    eco.same_dict({n: t.full_tensor() for n, t in state.items()}, model.full(4))


def save(top):
    eco.ranks(2, save_hf, f"{top}/hf")


def check(top):
    path = f"{top}/hf"
    with open(f"{path}/model.safetensors.index.json", encoding="utf-8") as f:
        where = json.load(f)["weight_map"]
    assert where.keys() == FILE.keys(), where
    files = sorted(glob.glob(f"{path}/*.safetensors"))
    assert len(files) == 2 and {os.path.basename(f) for f in files} == set(where.values()), files
    found = {}
    for f in files:
        found |= load_file(f)
    eco.same_dict(found, model.full(4))
    eco.ranks(2, load, f"{path}/sharded")
    eco.ranks(3, load, path)
    eco.cairn_agrees(path, model.full(4))
    eco.quiet(f"{path}/sharded")    # shards without an index
    eco.cairn_agrees(f"{path}/sharded", model.full(4))


if __name__ == "__main__":
    eco.main(save, check)
