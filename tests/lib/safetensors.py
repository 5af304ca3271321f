#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""safetensors.py FILE... WANT.json: FILE is a sound safetensors file, and holds just the tensors
of WANT.json (as tests/assets/make_assets.py wrote it). Of several FILEs: the parts of one model.
"""

import hashlib
import json
import struct
import sys

SIZE = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8, "I64": 8, "I16": 2, "BOOL": 1, "U16": 2,
        "F8_E4M3": 1, "F8_E5M2": 1}
TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64", "I64": "int64",
         "I16": "int16", "BOOL": "bool", "U16": "uint16", "F8_E4M3": "float8_e4m3fn",
         "F8_E5M2": "float8_e5m2"}


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack("<Q", data[:8])
    assert n % 8 == 0, n
    text = data[8:8 + n].decode("utf-8")
    assert text[0] == "{" and text.rstrip(" ")[-1] == "}"
    header = json.loads(text)
    assert header.pop("__metadata__") == {"format": "pt"}
    end = 0
    for name, t in header.items():  # in the order of their bytes, without gaps
        a, b = t["data_offsets"]
        count = 1
        for d in t["shape"]:
            count *= d
        assert a == end and b - a == count * SIZE[t["dtype"]], (name, t)
        assert a % SIZE[t["dtype"]] == 0, (name, t)
        end = b
    assert len(data) == 8 + n + end, (len(data), n, end)
    return {k: (t, data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for k, t in header.items()}


def main():
    got = {}
    for path in sys.argv[1:-1]:
        part = read(path)
        assert not got.keys() & part.keys()
        got.update(part)
    with open(sys.argv[-1], encoding="utf-8") as f:
        want = json.load(f)
    assert sorted(got) == sorted(want), (sorted(got), sorted(want))
    for name, w in want.items():
        t, data = got[name]
        assert (TORCH[t["dtype"]], t["shape"]) == (w["dtype"], w["shape"]), (t, w)
        assert hashlib.sha256(data).hexdigest() == w["sha256"], name


main()
