#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench_gpu.py --disk DIR [--mount DIR] [--tmpfs DIR] [--mib N,...] [--tensors N,...]
             [--rounds N] [--seconds N] [--quick] [--cpu]

How long a trainer is blocked by a checkpoint of a state dict on a GPU, when it is durable, and how
long loading it back takes:

    torch.save      of the state dict itself, to each directory
    dcp pinned      dcp.async_save with PyTorch's DefaultStager, pinned memory, to the disk
    cairn torch     CairnStager.stage() and commit(), on the mount
    cairn dcp       dcp.async_save with CairnStorageWriter, on the mount

Without a mount the last two write to the disk. Blocked: until the trainer may change its tensors.
Done: until the save has returned everywhere. Durable: until cairnfs.wait() returns (elsewhere: an
fsync). Loaded: until the tensors are on the device again. Rounds are interleaved: each method once
per round, the order rotated by one each time; the first two rounds, in which memory is allocated and
registered, are reported separately. Medians. If --seconds runs out there are fewer rounds. --quick:
no loading, and torch.save to the disk only; takes half the time.

Without a GPU there are no figures: the program says so and exits with 77, unless --cpu requests
the same runs with tensors in host memory, which only show that the program works.
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
FIRST = 2
# What must hold, from TARGET_FROM on.
TARGET_FROM = 8 << 10
TARGETS = (("torch.save", "disk", 10.0), ("dcp pinned", "disk", 1.5))
TARGET_CPU = 0.02


def options():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--disk", required=True, help="a directory on a disk (ext4)")
    p.add_argument("--mount", help="a directory on a cairnfs mount")
    p.add_argument("--tmpfs", help="a directory on a tmpfs")
    p.add_argument("--mib", default="8192,1024,32768", help="sizes of the state dict, in this order")
    p.add_argument("--tensors", default="10,2000", help="in how many tensors")
    p.add_argument("--rounds", type=int, default=5, help="after the first two")
    p.add_argument("--seconds", type=float, default=0, help="start nothing that would take longer")
    p.add_argument("--quick", action="store_true", help="only what the targets name")
    p.add_argument("--cpu", action="store_true", help="tensors in host memory: no figures of a GPU")
    o = p.parse_args()
    if o.rounds < 1:
        p.error("--rounds: at least 1")
    o.end = time.perf_counter() + o.seconds if o.seconds else float("inf")
    return o


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


class Way:
    """One way to save; finish() waits for the result of save(state, path)."""

    def __init__(self, name, folder, where):
        self.name, self.folder, self.where = name, folder, where
        self.times = []

    def save(self, state, path):
        raise NotImplementedError

    def finish(self, answer):
        """Until the save is done."""

    def load(self, state, path):
        """Back to the device: into state's tensors, or others like them."""
        raise NotImplementedError

    def registrations(self):
        """How often memory was registered so far; None: not counted."""

    def close(self):
        pass


class TorchSave(Way):
    def save(self, state, path):
        torch.save(state, path)

    def load(self, state, path):
        return torch.load(path, map_location=next(iter(state.values())).device)


class PinnedStager(Way):
    def __init__(self, *args):
        super().__init__(*args)
        from torch.distributed.checkpoint.staging import BlockingAsyncStager
        from torch.distributed.checkpoint._state_dict_stager import StateDictStager

        # Staged before async_save returns, as ours is. DefaultStager does the same, but that of
        # PyTorch 2.11 drops its pinned buffers after each save, and fails at the second.
        class Stager(BlockingAsyncStager):
            def __init__(self):
                self.gpu = torch.cuda.is_available()
                self.stager = StateDictStager(pin_memory=self.gpu)

            def stage(self, state_dict):
                staged = self.stager.stage(state_dict, non_blocking=self.gpu)
                if self.gpu:
                    torch.cuda.synchronize()
                return staged

            def close(self):
                self.stager.close()

        self.stager = Stager()

    def save(self, state, path):
        writer = dcp.FileSystemWriter(path, sync_files=False)
        return dcp.async_save(state, storage_writer=writer, async_stager=self.stager)

    def finish(self, answer):
        answer.result()

    def load(self, state, path):
        dcp.load(state, storage_reader=dcp.FileSystemReader(path))
        return state

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

    def load(self, state, path):
        return cairnfs.load(path, memory=self.stager.memory)

    def registrations(self):
        return self.stager.memory.stats().get("registrations")

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

    def load(self, state, path):
        dcp.load(state, storage_reader=cairnfs.CairnStorageReader(
            path, memory=self.writer.stager.memory))
        return state

    def registrations(self):
        return self.writer.stager.memory.stats().get("registrations")

    def close(self):
        self.writer.close()


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)


def ends(state):
    """A few bytes of each of the first and last tensors."""
    names = list(state)
    return {n: state[n].view(-1)[:64].cpu().clone() for n in (*names[:3], *names[-3:])}


def load(way, state, path, device):
    want = ends(state)
    got = {n: torch.zeros_like(t) for n, t in state.items()}
    synchronize(device)
    begin = time.perf_counter()
    got = way.load(got, path)
    synchronize(device)
    took = time.perf_counter() - begin
    found = ends(got)
    if any(not torch.equal(want[n], found[n]) for n in want):
        raise SystemExit(f"{way.name}: what was loaded is not what was saved")
    return took


def once(way, state, device, number, quick):
    path = os.path.join(way.folder, f"{way.name.replace(' ', '-')}.{number}")
    synchronize(device)
    cpu, start = time.process_time(), time.perf_counter()
    answer = way.save(state, path)
    blocked = time.perf_counter()
    staged = time.process_time() - cpu
    way.finish(answer)
    done = time.perf_counter()
    cairnfs.wait(path)
    durable = time.perf_counter()
    registered = way.registrations()
    del answer
    loaded = float("nan") if quick else load(way, state, path, device)
    remove(path)
    gc.collect()
    return {"blocked": blocked - start, "done": done - start, "durable": durable - start,
            "loaded": loaded, "cpu": staged, "registered": registered}


def make_ways(places, mib, quick):
    ways = []
    ours = next(p for p in places if p[0] in ("mount", "disk"))
    for where, folder in places:
        here = os.path.join(folder, f"bench.{os.getpid()}")
        # The newest beside the one before it.
        have = shutil.disk_usage(folder).free >> 20
        if where != "mount" and have < 2 * mib:
            print(f"{where}: left out: {folder} has {have} MiB free, {2 * mib} are wanted")
            continue
        os.makedirs(here, exist_ok=True)
        if where == "disk" or not quick:
            ways.append(TorchSave("torch.save", here, where))
        if where == "disk":
            ways.append(PinnedStager("dcp pinned", here, where))
        if (where, folder) == ours:
            ways += [CairnTorch("cairn torch", here, where), CairnDcp("cairn dcp", here, where)]
    return ways


def median(way, what):
    return statistics.median(t[what] for t in way.times[FIRST:])


def verdict(mib, cpu, holds):
    if mib < TARGET_FROM and not cpu:
        return ""
    return ": holds" if holds else ": DOES NOT HOLD"


def table(o, ways, mib, tensors, device):
    n = min(len(w.times) for w in ways) - FIRST
    gib = mib / 1024
    print(f"\n{gib:.4g} GiB in {tensors} tensors on {device}; seconds, median of {n} after the first "
          f"{FIRST} (CPU: of this process while blocked, per GiB)")
    print(f"{'':12} {'to':6} {'blocked':>9} {'done':>9} {'durable':>9} {'loaded':>9} {'CPU':>7}"
          f" {'first blocked':>15} {'registered':>10}")
    for w in ways:
        b, d, e, r, c = (median(w, k) for k in ("blocked", "done", "durable", "loaded", "cpu"))
        first = ", ".join(f"{t['blocked']:.3f}" for t in w.times[:FIRST])
        counts = [t["registered"] for t in w.times]
        later = "" if counts[-1] is None else f"{counts[-1] - counts[FIRST - 1]}"
        print(f"{w.name:12} {w.where:6} {b:9.3f} {d:9.3f} {e:9.3f} {r:9.3f} {c / gib:7.3f}"
              f" {first:>15} {later:>10}")
    for w in ways:
        if not w.name.startswith("cairn"):
            continue
        for name, where, target in TARGETS:
            other = next((x for x in ways if (x.name, x.where) == (name, where)), None)
            if other is not None:
                times = median(other, "blocked") / median(w, "blocked")
                print(f"{w.name}: blocked {times:.1f} x less than {name} to {where} (target "
                      f"{target:g}{verdict(mib, o.cpu, times >= target)})")
        used = median(w, "cpu") / gib
        print(f"{w.name}: {used:.3f} s of CPU per GiB staged (target {TARGET_CPU:g}"
              f"{verdict(mib, o.cpu, used <= TARGET_CPU)})")
        counts = [t["registered"] for t in w.times]
        if counts[-1] is not None:
            more = counts[-1] - counts[FIRST - 1]
            print(f"{w.name}: {more} registrations after the first {FIRST} (target 0"
                  f"{verdict(mib, o.cpu, more == 0)})", flush=True)


def run(o, device, mib, tensors, places):
    again = f"--only 2 -s {mib}M -t {tensors}"
    if time.perf_counter() > o.end:
        print(f"{mib / 1024:.4g} GiB in {tensors} tensors: left out: no time left; by itself: {again}")
        return
    elements = mib * 2**20 // 4 // tensors
    try:
        state = {f"layers.{i}.weight": torch.randn(elements, device=device) for i in range(tensors)}
        # Loading wants as much again.
        if device == "cuda" and torch.cuda.mem_get_info()[0] < mib << 20:
            raise torch.OutOfMemoryError
    except torch.OutOfMemoryError:
        print(f"{mib / 1024:.4g} GiB: left out: the device has not enough memory for it twice")
        return
    ways = make_ways(places, mib, o.quick)
    longest = 0.0
    try:
        for round_ in range(o.rounds + FIRST):
            begin = time.perf_counter()
            if begin + longest > o.end:
                break
            for i in range(len(ways)):
                way = ways[(i + round_) % len(ways)]
                way.times.append(once(way, state, device, round_, o.quick))
            longest = max(longest, time.perf_counter() - begin)
        if ways and min(len(w.times) for w in ways) > FIRST:
            table(o, ways, mib, tensors, device)
        elif ways:
            print(f"{mib / 1024:.4g} GiB in {tensors} tensors: left out: no time left; by itself: {again}")
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
    if o.cpu:
        print("--cpu: tensors in host memory. These are NOT figures of a GPU.")
        device = "cpu"
    lib = cairnfs.library()
    print(f"torch {torch.__version__}, " + (torch.cuda.get_device_name() if device == "cuda" else
                                           "no GPU used") +
          (f", libcairn {lib.version}" if lib else ", no libcairn: torch's memory"))
    places = [(n, getattr(o, n)) for n in ("mount", "disk", "tmpfs") if getattr(o, n)]
    if not o.mount:
        print("no mount: cairn saves to the disk, by writes; blocked is until the copy is made, all the same")
    meet = os.path.join(o.disk, f".bench.{os.getpid()}")
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=0, world_size=1)
    try:
        for mib in map(int, o.mib.split(",")):
            for tensors in map(int, o.tensors.split(",")):
                run(o, device, mib, tensors, places)
                gc.collect()
    finally:
        dist.destroy_process_group()
        if os.path.exists(meet):
            os.unlink(meet)
    if o.cpu:
        print("--cpu: the figures above are NOT of a GPU and mean nothing.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
