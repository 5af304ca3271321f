#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make_big_dcp.py [--ranks N] [--mib M] [--columns] DIR: a DCP checkpoint of about that size.
make_big_dcp.py --check FILE: does a safetensors file hold what such a checkpoint does?

Written without PyTorch: `.metadata` with stand-ins of its classes, items as torch.save writes
them. Each row of a tensor is a counter and noise, so that a byte at a wrong place shows; sharded
on dimension 0 or, with --columns, on dimension 1.
"""

import argparse
import io
import json
import os
import pickle
import struct
import sys
import zipfile

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "demo"))
from torch_names import Size, new, stand_in, torch    # noqa: E402

ROWS, COLUMNS = 4096, 4096  # bfloat16: 32 MiB a tensor
NOISE = bytes((i * 2654435761 >> 13) & 0xFF for i in range(COLUMNS * 2 - 8))


def row(tensor, i):
    """8 bytes that name it, then noise turned by its number; as long as the row."""
    k = (tensor * 131 + i * 7) % len(NOISE)
    return struct.pack("<II", tensor, i) + NOISE[k:] + NOISE[:k]


META = "torch.distributed.checkpoint.metadata"
Metadata = stand_in(META, "Metadata")
Tensor = stand_in(META, "TensorStorageMetadata")
Chunk = stand_in(META, "ChunkStorageMetadata")
Index = stand_in(META, "MetadataIndex")
Info = stand_in("torch.distributed.checkpoint.filesystem", "_StorageInfo")
MemoryFormat = stand_in(META, "_MEM_FORMAT_ENCODING", __reduce__=lambda self: (MemoryFormat, (0,)))
Properties = stand_in(META, "TensorProperties", __getstate__=lambda self: (
    torch.bfloat16, None, False, MemoryFormat(), False))


def text(s):
    return b"X" + struct.pack("<I", len(s)) + s.encode()


def num(n):
    return b"J" + struct.pack("<i", n)


def item_pickle(shape):
    """_rebuild_tensor_v2 of a row-major bfloat16 tensor, protocol 2."""
    count = shape[0] * shape[1]
    return (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(("
            + text("storage") + b"ctorch\nBFloat16Storage\n" + text("0") + text("cpu") + num(count)
            + b"tQ" + num(0) + b"(" + num(shape[0]) + num(shape[1]) + b"t(" + num(shape[1]) + num(1)
            + b"t\x89ccollections\nOrderedDict\n)RtR.")


def item(shape, data):
    b = io.BytesIO()
    with zipfile.ZipFile(b, "w", zipfile.ZIP_STORED) as z:
        for name, part in (("data.pkl", item_pickle(shape)), ("byteorder", b"little"),
                           ("data/0", data), ("version", b"3\n")):
            with z.open(zipfile.ZipInfo("archive/" + name), "w", force_zip64=True) as f:
                f.write(part)
    return b.getvalue()


def make(folder, ranks, mib, columns):
    os.makedirs(folder, exist_ok=True)
    files = [open(os.path.join(folder, f"__{r}_0.distcp"), "wb") for r in range(ranks)]
    state, storage = {}, {}
    for t in range(max(1, mib * 1048576 // (ROWS * COLUMNS * 2))):
        name = f"layers.{t:03d}.weight"
        rows = [row(t, i) for i in range(ROWS)]
        chunks = []
        for r, f in enumerate(files):
            a, b = (COLUMNS if columns else ROWS) * r // ranks, (COLUMNS if columns else ROWS) * (r + 1) // ranks
            offset, size = ((0, a), (ROWS, b - a)) if columns else ((a, 0), (b - a, COLUMNS))
            data = b"".join(x[a * 2:b * 2] for x in rows) if columns else b"".join(rows[a:b])
            at = f.tell()
            f.write(item(size, data))
            chunks.append(new(Chunk, offsets=Size(offset), sizes=Size(size)))
            storage[new(Index, fqn=name, offset=Size(offset), index=r)] = new(
                Info, relative_path=os.path.basename(f.name), offset=at, length=f.tell() - at,
                transform_descriptors=None)
        state[name] = new(Tensor, properties=Properties(), size=Size((ROWS, COLUMNS)), chunks=chunks)
    for f in files:
        f.close()
    with open(os.path.join(folder, ".metadata"), "wb") as f:
        pickle.dump(new(Metadata, state_dict_metadata=state, planner_data=None,
                        storage_data=storage, storage_meta=None, version="1.0"), f, protocol=4)


def check(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        del header["__metadata__"]
        for name, t in header.items():
            f.seek(8 + n + t["data_offsets"][0])
            assert t["shape"] == [ROWS, COLUMNS] and t["dtype"] == "BF16", t
            for i in range(ROWS):
                assert f.read(COLUMNS * 2) == row(int(name.split(".")[1]), i), (name, i)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--ranks", type=int, default=4)
    a.add_argument("--mib", type=int, default=1024)
    a.add_argument("--columns", action="store_true")
    a.add_argument("--check", action="store_true")
    a.add_argument("path")
    o = a.parse_args()
    if o.check:
        check(o.path)
    else:
        make(o.path, o.ranks, o.mib, o.columns)


main()
