# SPDX-License-Identifier: MIT
"""Kernel AIO for DeepSpeed's FastFileWriter, with what it calls of its aio handle.

The same system calls that libaio makes: io_setup, io_submit, io_getevents.
"""

import ctypes
import os
import platform
import types

import torch

ALIGN, BLOCK, DEPTH, PWRITE = 4096, 1 << 14, 64, 1
SETUP, DESTROY, GETEVENTS, SUBMIT = \
    (206, 207, 208, 209) if platform.machine() == "x86_64" else (0, 1, 4, 2)
libc = ctypes.CDLL(None, use_errno=True)


class Iocb(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_int32),
                ("opcode", ctypes.c_uint16), ("prio", ctypes.c_int16), ("fd", ctypes.c_uint32),
                ("buf", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("offset", ctypes.c_int64),
                ("reserved", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("resfd", ctypes.c_uint32)]


class Event(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("obj", ctypes.c_uint64), ("res", ctypes.c_int64),
                ("res2", ctypes.c_int64)]


def call(number, *args):
    got = libc.syscall(ctypes.c_long(number), *args)
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got


def aligned(n):
    """A buffer for O_DIRECT."""
    whole = torch.zeros(n + ALIGN, dtype=torch.uint8)
    return whole.narrow(0, -whole.data_ptr() % ALIGN, n)


class Handle:
    """One write under way, cut into blocks that go to the kernel together."""

    def __init__(self):
        self.context, self.flying = ctypes.c_ulong(0), []
        call(SETUP, ctypes.c_uint(DEPTH), ctypes.byref(self.context))

    def __del__(self):
        call(DESTROY, self.context)

    def get_alignment(self):
        return ALIGN

    def async_pwrite(self, tensor, fd, offset):
        n, at = tensor.numel(), tensor.data_ptr()
        self.flying = [Iocb(data=min(BLOCK, n - i), opcode=PWRITE, fd=fd, buf=at + i, bytes=min(BLOCK, n - i),
                            offset=offset + i) for i in range(0, n, BLOCK)]
        pointers = (ctypes.POINTER(Iocb) * len(self.flying))(*map(ctypes.pointer, self.flying))
        done = call(SUBMIT, self.context, ctypes.c_long(len(self.flying)), pointers)
        assert done == len(self.flying), done
        return 0

    def wait(self):
        events, n = (Event * DEPTH)(), len(self.flying)
        got = call(GETEVENTS, self.context, ctypes.c_long(n), ctypes.c_long(n), events, None)
        assert got == n and all(e.res == e.data for e in events[:n]), [e.res for e in events[:got]]
        self.flying = []
        return 1


class NoBuilder:
    """Of DeepSpeed's compiled helpers: what is imported and not called."""

    def load(self):
        return types.SimpleNamespace(cast_to_byte_tensor=None)
