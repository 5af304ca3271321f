# SPDX-License-Identifier: MIT
"""Checkpoints of PyTorch staged directly into the files that cairnfs makes durable.

CairnStager copies a state dict into memory that becomes a file; CairnStorageWriter and
CairnStorageReader do so for torch.distributed.checkpoint. They use libcairn if it is found and
work without it, on any filesystem; docs/PYTHON.md of cairnfs describes all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._gate import StateDictGate
from ._lib import library
from ._memory import LibraryMemory, Memory, PlainMemory, device_of, memory_for, wait
from ._read import load
from .stager import CairnStager, save

_LAZY = ("CairnStorageReader", "CairnStorageWriter", "load_checkpoint")

if TYPE_CHECKING:
    from .dcp import CairnStorageReader, CairnStorageWriter, load_checkpoint
else:
    def __getattr__(name):
        # torch.distributed takes seconds to import, and a stager does not need it.
        if name in _LAZY:
            from . import dcp
            return getattr(dcp, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

__version__ = "0.1.0"
__all__ = [
    "CairnStager", "CairnStorageReader", "CairnStorageWriter", "LibraryMemory",
    "Memory", "PlainMemory", "StateDictGate", "device_of", "library", "load", "load_checkpoint",
    "memory_for", "save", "wait",
]
