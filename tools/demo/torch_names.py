# SPDX-License-Identifier: MIT
"""Stand-ins by the names of PyTorch's classes, so that checkpoints are pickled without it: for
tools/demo/dcp.py and tests/assets/make_big_*.py."""

import sys
import types


def module(name):
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    return sys.modules[name]


def stand_in(where, name, **members):
    cls = type(name, (), {"__module__": where, **members})
    setattr(module(where), name, cls)
    return cls


def new(cls, **state):
    o = cls()
    o.__dict__.update(state)
    return o


class Size(tuple):
    def __reduce__(self):
        return (Size, (tuple(self),))


class Dtype:
    def __reduce__(self):
        return "bfloat16"


Size.__module__ = Dtype.__module__ = "torch"
torch = module("torch")
torch.Size = Size
torch.bfloat16 = Dtype()
torch.bfloat16.__module__ = "torch"
