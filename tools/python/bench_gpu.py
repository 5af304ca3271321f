#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench_gpu.py [--mount DIR] [--ext4 DIR] [--tmpfs DIR] [--gib N,...] [--tensors N,...]
             [--rounds N] [--cpu]

How long a trainer is blocked by a checkpoint of a state dict on a GPU, and when it is durable:

    torch.save      of the state dict itself, to each directory
    dcp pinned      dcp.async_save with PyTorch's DefaultStager, pinned memory, to each directory
    cairn torch     CairnStager.stage() and commit(), to each directory
    cairn dcp       dcp.async_save with CairnStorageWriter, to each directory

Blocked: until the trainer may change its tensors. Done: until the save has returned everywhere.
Durable: until cairnfs.wait() returns (elsewhere: an fsync). Rounds are interleaved: each way once a
round, the order turned by one each time; a first round warms up and is told apart. Medians.

There is no figure for a GPU without a GPU: then this says so and ends with 77, unless --cpu asks
for the same runs with tensors in host memory, which only show that the program works.
"""

import argparse
import gc
import os
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import cairnfs

NO_GPU = 77


def options():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--mount", help="a directory on a cairnfs mount")
    p.add_argument("--ext4", help="a directory on ext4")
    p.add_argument("--tmpfs", help="a directory on a tmpfs")
    p.add_argument("--gib", default="1,8,32", help="sizes of the state dict")
    p.add_argument("--tensors", default="10,2000", help="in how many tensors")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--cpu", action="store_true", help="tensors in host memory: no figures of a GPU")
    o = p.parse_args()
    if not (o.mount or o.ext4 or o.tmpfs):
        p.error("no directory: --mount, --ext4, --tmpfs")
    if o.rounds < 1:
        p.error("--rounds: at least 1")
    return o


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


class Way:
    """One way to save; save(state, path) returns what durable() then waits for."""

    def __init__(self, name, folder, where):
        self.name, self.folder, self.where = name, folder, where
        self.first, self.times = None, []

    def save(self, state, path):
        raise NotImplementedError

    def finish(self, answer):
        """Until the save is done."""

    def durable(self, path):
        cairnfs.wait(path)

    def close(self):
        pass


class TorchSave(Way):
    def save(self, state, path):
        torch.save(state, path)


class PinnedStager(Way):
    def __init__(self, *args):
        super().__init__(*args)
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        gpu = torch.cuda.is_available()
        # Staged before async_save returns, as ours is.
        self.stager = DefaultStager(StagingOptions(
            use_pinned_memory=gpu, use_shared_memory=False, use_async_staging=False,
            use_non_blocking_copy=gpu))

    def save(self, state, path):
        writer = dcp.FileSystemWriter(path, sync_files=False)
        return dcp.async_save(state, storage_writer=writer, async_stager=self.stager)

    def finish(self, answer):
        answer.result()

    def close(self):
        self.stager.close()


class CairnTorch(Way):
    def __init__(self, *args):
        super().__init__(*args)
        self.stager = cairnfs.CairnStager(self.folder)

    def save(self, state, path):
        return self.stager.stage(state), path

    def finish(self, answer):
        self.stager.commit(answer[1], answer[0])

    def close(self):
        self.stager.close()


class CairnDcp(Way):
    def __init__(self, *args):
        super().__init__(*args)
        self.writer = cairnfs.CairnStorageWriter(self.folder, sync_files=False)

    def save(self, state, path):
        return dcp.async_save(state, checkpoint_id=path, storage_writer=self.writer)

    def finish(self, answer):
        answer.result()

    def close(self):
        self.writer.close()


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)


def once(way, state, device, number):
    path = os.path.join(way.folder, f"{way.name.replace(' ', '-')}.{number}")
    synchronize(device)
    cpu, start = time.process_time(), time.perf_counter()
    answer = way.save(state, path)
    blocked = time.perf_counter()
    way.finish(answer)
    done = time.perf_counter()
    used = time.process_time() - cpu
    way.durable(path)
    durable = time.perf_counter()
    del answer
    remove(path)
    gc.collect()
    return blocked - start, done - start, durable - start, used


def run(o, device, gib, tensors, places):
    elements = int(gib * 2**30 / 4 / tensors)
    state = {f"layers.{i}.weight": torch.randn(elements, device=device) for i in range(tensors)}
    ways = []
    for where, folder in places:
        for kind, name in ((TorchSave, "torch.save"), (PinnedStager, "dcp pinned"),
                           (CairnTorch, "cairn torch"), (CairnDcp, "cairn dcp")):
            here = os.path.join(folder, f"bench.{os.getpid()}")
            os.makedirs(here, exist_ok=True)
            ways.append(kind(name, here, where))
    try:
        for round_ in range(o.rounds + 1):
            for i in range(len(ways)):
                way = ways[(i + round_) % len(ways)]
                times = once(way, state, device, round_)
                if round_ == 0:
                    way.first = times
                else:
                    way.times.append(times)
        print(f"\n{gib:g} GiB in {tensors} tensors on {device}; seconds, median of {o.rounds}"
              " (CPU: of this process, per GiB)")
        print(f"{'':12} {'to':8} {'blocked':>9} {'done':>9} {'durable':>9} {'CPU':>7}"
              f" {'first blocked':>14}")
        for way in ways:
            b, d, e, c = (statistics.median(t[k] for t in way.times) for k in range(4))
            print(f"{way.name:12} {way.where:8} {b:9.3f} {d:9.3f} {e:9.3f} {c / gib:7.3f}"
                  f" {way.first[0]:14.3f}", flush=True)
    finally:
        for way in ways:
            way.close()
            shutil.rmtree(way.folder, ignore_errors=True)


def main():
    o = options()
    device = "cuda"
    if not torch.cuda.is_available():
        print("There is no GPU here (torch.cuda.is_available() is False): nothing of this can be "
              "measured.")
        if not o.cpu:
            return NO_GPU
        print("--cpu: tensors in host memory. These are NOT figures of a GPU.")
    if o.cpu:
        device = "cpu"
    lib = cairnfs.library()
    print(f"torch {torch.__version__}, " + (torch.cuda.get_device_name() if device == "cuda" else
                                           "no GPU used") +
          (f", libcairn {lib.version}" if lib else ", no libcairn: torch's memory"))
    meet = os.path.join(o.tmpfs or o.ext4 or o.mount, f".bench.{os.getpid()}")
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=0, world_size=1)
    try:
        places = [(n, getattr(o, n)) for n in ("ext4", "tmpfs", "mount") if getattr(o, n)]
        for gib in map(float, o.gib.split(",")):
            for tensors in map(int, o.tensors.split(",")):
                run(o, device, gib, tensors, places)
                gc.collect()
    finally:
        dist.destroy_process_group()
        if os.path.exists(meet):
            os.unlink(meet)
    return 0


if __name__ == "__main__":
    sys.exit(main())
