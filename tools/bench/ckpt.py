#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ckpt.py [-n ROUNDS] [--build DIR] ROW STORE [MOUNT]: what checkpoints cost as views, exports and listings.

The rows of tools/bench/run that are not about writes. It calls this twice: with --make before STORE is
mounted at MOUNT, so that nothing is staged, and again to measure. Samples go to stdout as
LABEL<tab>METRIC<tab>UNIT<tab>VALUE. Page caches are dropped for what is called cold (root).
"""

import argparse
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ASSETS = os.path.join(HERE, "..", "..", "tests", "assets")
BLOCK = 1 << 20

# In a process of its own, which also says how much memory it had; imports are not timed, and what
# it leaves in the page cache is not waited for.
DCP_TO_TORCH_SAVE = """
import resource, sys, time
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
start = time.monotonic()
dcp_to_torch_save(sys.argv[1], sys.argv[2])
print(time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
UNPICKLE = """
import pickle, sys, time
import torch.distributed.checkpoint.metadata
start = time.monotonic()
with open(sys.argv[1], "rb") as f:
    pickle.load(f)
print(time.monotonic() - start)
"""


def sample(label, metric, unit, value):
    print(label, metric, unit, f"{value:.6g}", sep="\t", flush=True)


def drop(paths=None):
    """The page caches of these files, or all of them."""
    os.sync()
    if paths is None:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3")
        return
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm():
    """The memory that a view and its shards take: what a virtual machine gave back to its host is slow at
    first, and would be so for who takes more of it (docs/PERFORMANCE.md, Method)."""
    with mmap.mmap(-1, 5 << 29) as memory:
        memory.madvise(23)  # MADV_POPULATE_WRITE


def read(paths):
    """GB/s of the files read whole, one after the other, open to close."""
    into = bytearray(BLOCK)
    total = 0
    start = time.monotonic()
    for path in paths:
        with open(path, "rb", buffering=0) as f:
            while n := f.readinto(into):
                total += n
    return total / (time.monotonic() - start) / 1e9


def timed(command):
    """Seconds, the largest resident memory in MiB, and what it printed."""
    with tempfile.TemporaryFile("w+") as out:
        start = time.monotonic()
        child = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - start
        if status:
            sys.exit(f"bench_ckpt: {' '.join(command[:4])} failed")
        out.seek(0)
        return seconds, usage.ru_maxrss / 1024, out.read()


def make(script, *args):
    subprocess.run([sys.executable, os.path.join(ASSETS, script), *map(str, args)], check=True)


def torch_python(o):
    """The interpreter that has PyTorch, if `make check-ecosystem` installed one."""
    python = os.path.join(o.build, "ecosystem", "venv", "bin", "python")
    if os.path.exists(python):
        return python
    print("bench_ckpt: PyTorch is left out: tests/ecosystem/install torch", file=sys.stderr)
    return None


KINDS = ("rows", "columns")  # tensors are sharded on dimension 0, or on dimension 1


def make_views(o):
    for kind in KINDS:
        make("make_big_dcp.py", *(["--columns"] if kind == "columns" else []), os.path.join(o.store, kind))


def row_views(o):
    for n in range(o.rounds + 1):
        for kind in KINDS:
            folder = os.path.join(o.mount, kind)
            shards = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".distcp"))
            view = [os.path.join(o.mount, ".cairn/views", kind, "model.safetensors")]
            speeds = {}
            for what, paths in ("view", view), ("shards", shards):
                drop()
                warm()
                speeds[what, "cold"] = read(paths)
            speeds["shards", "cached"] = read(shards)
            drop(view)
            warm()
            speeds["view", "shards cached"] = read(view)
            speeds["view", "cached"] = read(view)
            for (what, how), speed in speeds.items() if n else ():  # the first round warms
                sample(f"{kind} {what}", how, "GB/s", speed)


def make_export(o):
    make("make_big_dcp.py", "--mib", 4096, os.path.join(o.store, "rows"))


def copy_blocks(paths, out):
    """The least that is to be done to files that are not cached: seconds in which four threads copy them in
    blocks past the page cache, as fast as the disk reads and writes at once."""
    step = 2 * BLOCK
    blocks = [(p, at) for p in paths for at in range(0, os.stat(p).st_size // step * step, step)]
    fds = {p: os.open(p, os.O_RDONLY | os.O_DIRECT) for p in paths}
    to = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)

    def work(k):
        with mmap.mmap(-1, step) as block:
            for i in range(k, len(blocks), 4):
                os.preadv(fds[blocks[i][0]], [block], blocks[i][1])
                os.pwrite(to, block, i * step)

    start = time.monotonic()
    os.posix_fallocate(to, 0, len(blocks) * step)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    os.fsync(to)
    seconds = time.monotonic() - start
    for fd in (to, *fds.values()):
        os.close(fd)
    return seconds


def row_export(o):
    python = torch_python(o)
    out = os.path.join(o.store, "..", "export.pt")
    folder = os.path.join(o.store, "rows")
    shards = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".distcp"))

    def ready(how):
        drop()
        if how == "cached":
            read(shards)

    for _ in range(o.rounds):
        for how in "cold", "cached":
            for label, where in ("store", o.store), ("mount", o.mount):
                ready(how)
                seconds, mib, _ = timed([os.path.join(o.build, "cairn"), "export", "--format", "torch",
                                         os.path.join(where, "rows"), out])
                os.unlink(out)
                sample(label, how, "s", seconds)
                sample(label, "memory", "MiB", mib)
            if python:
                ready(how)
                seconds, mib = timed([python, "-c", DCP_TO_TORCH_SAVE, folder, out])[2].split()
                os.unlink(out)
                sample("dcp_to_torch_save", how, "s", float(seconds))
                sample("dcp_to_torch_save", "memory", "MiB", float(mib))
        drop()
        sample("blocks", "cold", "s", copy_blocks(shards, out))
        os.unlink(out)


def make_tensors(o):
    folder = os.path.join(o.store, "many")
    os.makedirs(folder, exist_ok=True)
    make("make_big_metadata.py", 100000, 1, os.path.join(folder, ".metadata"))


def row_tensors(o):
    python = torch_python(o)
    folder = os.path.join(o.store, "many")
    for n in range(o.rounds + 1):
        for form in ("text", "json"):
            seconds, mib, _ = timed([os.path.join(o.build, "cairn"), "tensors",
                                     *(["--json"] if form == "json" else []), folder])
            if n:
                sample(form, "time", "s", seconds)
                sample(form, "memory", "MiB", mib)
        if python:
            seconds = float(timed([python, "-c", UNPICKLE, os.path.join(folder, ".metadata")])[2])
            if n:
                sample("pickle.load", "time", "s", seconds)


ROWS = {"views": (make_views, row_views), "export": (make_export, row_export),
        "tensors": (make_tensors, row_tensors)}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("-n", dest="rounds", type=int, default=5)
    a.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    a.add_argument("--make", action="store_true", help="only make the row's checkpoints in STORE")
    a.add_argument("row", choices=ROWS)
    a.add_argument("store")
    a.add_argument("mount", nargs="?")
    o = a.parse_args()
    ROWS[o.row][0 if o.make else 1](o)


main()
