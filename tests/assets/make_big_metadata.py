#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make_big_metadata.py TENSORS RANKS OUT: a `.metadata` as PyTorch pickles it, of many tensors.

Written with stand-ins of PyTorch's classes, so that it needs nothing but Python.
"""

import os
import pickle
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "demo"))
from torch_names import Size, new, stand_in, torch    # noqa: E402

META = "torch.distributed.checkpoint.metadata"
Metadata = stand_in(META, "Metadata")
Tensor = stand_in(META, "TensorStorageMetadata")
Chunk = stand_in(META, "ChunkStorageMetadata")
Index = stand_in(META, "MetadataIndex")
Info = stand_in("torch.distributed.checkpoint.filesystem", "_StorageInfo")
MemoryFormat = stand_in(META, "_MEM_FORMAT_ENCODING", __reduce__=lambda self: (MemoryFormat, (0,)))
Properties = stand_in(META, "TensorProperties", __getstate__=lambda self: (
    torch.bfloat16, None, False, MemoryFormat(), False))


def main():
    tensors, ranks, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    state, storage, at = {}, {}, [0] * ranks
    for i in range(tensors):
        name = f"model.layers.{i // 10}.mlp.experts.{i % 10}.weight"
        chunks = []
        for r in range(ranks):
            offset, size = Size((r * 128, 0)), Size((128, 4096))
            chunks.append(new(Chunk, offsets=offset, sizes=size))
            storage[new(Index, fqn=name, offset=Size(offset), index=r)] = new(
                Info, relative_path=f"__{r}_0.distcp", offset=at[r], length=1050000,
                transform_descriptors=None)
            at[r] += 1050000
        state[name] = new(Tensor, properties=Properties(), size=Size((128 * ranks, 4096)),
                          chunks=chunks)
    with open(out, "wb") as f:
        pickle.dump(new(Metadata, state_dict_metadata=state, planner_data=None,
                        storage_data=storage, storage_meta=None, version="1.0"), f, protocol=4)


main()
