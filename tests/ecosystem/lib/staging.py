# SPDX-License-Identifier: MIT
"""What the cases of tools/python share."""

import contextlib
import gc
import os

import torch

import cairnfs
from cairnfs import _lib

import eco


@contextlib.contextmanager
def no_library():
    """As on a machine without libcairn."""
    found, _lib._found = cairnfs.library(), None
    try:
        yield
    finally:
        _lib._found = found


if cairnfs.library() is None:
    print("# libcairn.so is not built: torch's memory only")


def each_memory(body, *args):
    """body(*args) with libcairn, where it is built, and without."""
    if cairnfs.library() is not None:
        body(*args)
    with no_library():
        body(*args)


def collect():
    gc.collect()


def storages(x):
    """How many storages the tensors of a dict have."""
    return len({t.untyped_storage()._cdata for t in x.values()})


def equal(got, want, what="state"):
    """The same structure, types and bits."""
    assert type(got) is type(want), f"{what}: {type(got)}, not {type(want)}"
    if isinstance(want, torch.Tensor):
        assert got.stride() == want.stride(), f"{what}: {got.stride()}, not {want.stride()}"
        eco.same(got, want, what)
    elif isinstance(want, dict):
        assert list(got) == list(want), f"{what}: {list(got)}"
        for key in want:
            equal(got[key], want[key], f"{what}.{key}")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), what
        for i, (a, b) in enumerate(zip(got, want)):
            equal(a, b, f"{what}.{i}")
    else:
        assert got == want, f"{what}: {got!r}, not {want!r}"


def keeps_devices(folder):
    """Whether files there can have user.cairn.device."""
    path = os.path.join(folder, "probe")
    with open(path, "wb"):
        pass
    try:
        os.setxattr(path, "user.cairn.device", b"cpu")
        return True
    except OSError:
        return False
    finally:
        os.unlink(path)


def raises(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")
