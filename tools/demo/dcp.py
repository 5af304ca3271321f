#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A small checkpoint as PyTorch's DCP writes it, for tools/demo/run. Needs nothing but Python.

dcp.py shard WEIGHTS OUT              one rank's rows of a bfloat16 matrix, COLUMNS wide
dcp.py metadata OUT BYTES SHARD...    the .metadata of such shards, of BYTES of rows each
"""

import io
import os
import pickle
import sys
import zipfile

from torch_names import Size, module, new, stand_in

COLUMNS = 4096
NAME = "model.weight"


def _rebuild_tensor_v2():
    """Only its name is pickled."""


class Tensor:
    def __init__(self, rows):
        self.rows = rows

    def __reduce__(self):
        storage = Storage(self.rows * COLUMNS)
        return (_rebuild_tensor_v2, (storage, 0, (self.rows, COLUMNS), (COLUMNS, 1), False, {}))


class Storage:
    def __init__(self, elements):
        self.elements = elements


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if isinstance(obj, Storage):
            return ("storage", sys.modules["torch"].BFloat16Storage, "0", "cpu", obj.elements)
        return None


def claim(where, what, name=None):
    what.__module__ = where
    what.__qualname__ = name or what.__name__
    setattr(module(where), what.__qualname__, what)


def shard(weights, out):
    with open(weights, "rb") as f:
        data = f.read()
    pickled = io.BytesIO()
    Pickler(pickled, protocol=2).dump(Tensor(len(data) // (2 * COLUMNS)))
    with open(out, "wb") as f, zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", pickled.getvalue())
        z.writestr("archive/byteorder", b"little")
        z.writestr("archive/data/0", data)
        z.writestr("archive/version", b"3\n")


def metadata(out, rows_bytes, shards):
    meta = "torch.distributed.checkpoint.metadata"
    bfloat16 = sys.modules["torch"].bfloat16
    chunk = stand_in(meta, "ChunkStorageMetadata")
    index = stand_in(meta, "MetadataIndex")
    info = stand_in("torch.distributed.checkpoint.filesystem", "_StorageInfo")
    props = stand_in(meta, "TensorProperties",
                     __getstate__=lambda self: (bfloat16, None, False, None, False))
    rows = rows_bytes // (2 * COLUMNS)
    chunks, storage = [], {}
    for i, path in enumerate(shards):
        at = Size((i * rows, 0))
        chunks.append(new(chunk, offsets=at, sizes=Size((rows, COLUMNS))))
        storage[new(index, fqn=NAME, offset=at, index=i)] = new(
            info, relative_path=os.path.basename(path), offset=0, length=os.path.getsize(path),
            transform_descriptors=None)
    tensor = new(stand_in(meta, "TensorStorageMetadata"), properties=props(),
                 size=Size((rows * len(shards), COLUMNS)), chunks=chunks)
    with open(out, "wb") as f:
        pickle.dump(new(stand_in(meta, "Metadata"), state_dict_metadata={NAME: tensor},
                        planner_data=None, storage_data=storage, storage_meta=None,
                        version="1.0"), f, protocol=4)


def main():
    claim("torch", type("BFloat16Storage", (), {}))
    claim("torch._utils", _rebuild_tensor_v2)
    if sys.argv[1] == "shard":
        shard(sys.argv[2], sys.argv[3])
    else:
        metadata(sys.argv[2], int(sys.argv[3]), sys.argv[4:])


main()
