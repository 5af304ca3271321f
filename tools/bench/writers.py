#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""writers.py [-n ROUNDS] [-s SIZE] [-w REGEX] [--fio FILE] LABEL=DIR...: what a save of real writers costs a trainer.

The row `writers` of tools/bench/run, which mounts what is measured. One process has SIZE bytes of tensors and
saves them with each writer into each place, in turn, -n times after the first. Samples go to stdout as
LABEL<tab>METRIC<tab>UNIT<tab>VALUE, LABEL being "WRITER in PLACE":

	blocked   until the call returns, and the trainer may change its tensors
	durable   until all of it is on stable storage
	CPU       processor time of this process until then
	first ... the same of the first checkpoint after the mount, of sizes that nothing knows

--table SAMPLES FIGURE prints the Markdown table of such samples and writes a figure's source for docs/figures/draw.
"""

import argparse
import ctypes
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TENSOR = 64 << 20
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
STEP = "step-{}"


def size_of(text):
    return int(float(text.rstrip("KMG")) * UNITS.get(text[-1:], 1))


def sample(label, metric, value, unit="s"):
    print(label, metric, unit, f"{value:.6g}", sep="\t", flush=True)


# --- writers: each returns when the trainer may go on, with what is still to be waited for ------


def no_wait():
    pass


def torch_save(state, path):
    import torch
    os.mkdir(path)
    torch.save(state, os.path.join(path, "model.pt"))
    return no_wait


def safetensors_save(state, path):
    from safetensors.torch import save_file
    os.mkdir(path)
    save_file(state, os.path.join(path, "model.safetensors"))
    return no_wait


def dcp_save(sync_files):
    def save(state, path):
        import torch.distributed.checkpoint as dcp
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path, sync_files=sync_files))
        return no_wait
    return save


def dcp_async(state, path):
    import torch.distributed.checkpoint as dcp
    return dcp.async_save(state, storage_writer=dcp.FileSystemWriter(path)).result


class Cairn:
    """One writer for all steps of a place, as a trainer has it."""

    def __init__(self, is_async):
        self.is_async = is_async
        self.writers = {}

    def __call__(self, state, path):
        import torch.distributed.checkpoint as dcp
        from cairnfs import CairnStorageWriter
        writer = self.writers.setdefault(os.path.dirname(path), None) or CairnStorageWriter(path)
        self.writers[os.path.dirname(path)] = writer
        if self.is_async:
            return dcp.async_save(state, checkpoint_id=path, storage_writer=writer).result
        dcp.save(state, checkpoint_id=path, storage_writer=writer)
        return no_wait

    def close(self):
        for writer in self.writers.values():
            writer.close()


# name, function, only on a mount
def all_writers():
    return [("torch.save", torch_save, False), ("safetensors save_file", safetensors_save, False),
            ("DCP save", dcp_save(True), False), ("DCP save sync_files=False", dcp_save(False), False),
            ("DCP async_save", dcp_async, False), ("CairnStorageWriter save", Cairn(False), True),
            ("CairnStorageWriter async_save", Cairn(True), True)]


# --- measuring ----------------------------------------------------------------------------------


def is_mount(directory):
    return os.path.exists(os.path.join(directory, ".cairn"))


def make_durable(path):
    if is_mount(os.path.dirname(os.path.dirname(path))):
        import cairnfs
        cairnfs.wait(path)
        return
    fd = os.open(path, os.O_RDONLY)
    err = ctypes.CDLL(None, use_errno=True).syncfs(fd)
    os.close(fd)
    if err:
        raise OSError(ctypes.get_errno(), "syncfs")


def cpu():
    t = os.times()
    return t.user + t.system


def measure(save, state, path):
    """(blocked, durable, CPU) of one checkpoint."""
    began, cpu_began = time.monotonic(), cpu()
    rest = save(state, path)
    blocked = time.monotonic() - began
    rest()
    make_durable(path)
    return blocked, time.monotonic() - began, cpu() - cpu_began


def fio_seconds(path, nbytes):
    out = subprocess.run(["fio", "--name=bench", f"--filename={path}", f"--size={nbytes}", "--bs=4M", "--iodepth=8",
                          "--ioengine=io_uring", "--direct=1", "--rw=write", "--fallocate=native", "--end_fsync=1",
                          "--minimal"], check=True, capture_output=True, text=True).stdout
    os.unlink(path)
    return nbytes / (float(out.strip().splitlines()[-1].split(";")[47]) * 1024)


def make_state(nbytes):
    import torch
    n = max(1, nbytes // TENSOR)
    state = {f"layer.{i}.weight": torch.empty(nbytes // n // 4 // 1024, 1024).fill_(i + 0.5) for i in range(n)}
    return state


def warm(writers):
    """Modules are loaded, and what PyTorch makes at its first save exists."""
    import torch
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
        os.mkdir(os.path.join(top, "x"))
        for i, (_, save, mounts_only) in enumerate(writers):
            if not mounts_only:
                save({"x": torch.ones(4)}, os.path.join(top, "x", str(i)))()


def one_round(n, writers, places, state):
    blocked_in = {}
    for name, save, mounts_only in writers:
        for label, directory in places:
            if mounts_only and not is_mount(directory):
                continue
            top = os.path.join(directory, name.replace(" ", "-"))
            os.makedirs(top, exist_ok=True)
            figures = measure(save, state, os.path.join(top, STEP.format(n)))
            shutil.rmtree(os.path.join(top, STEP.format(n)))
            if is_mount(directory):
                time.sleep(1)   # the memory of the removed one becomes that of the next
            for metric, value in zip(("blocked", "durable", "CPU"), figures):
                sample(f"{name} in {label}", metric if n else f"first {metric}", value)
            blocked_in[name, label] = figures[0]
    return blocked_in


def run(o):
    import torch.distributed as dist
    with tempfile.NamedTemporaryFile() as meet:
        dist.init_process_group("gloo", init_method="file://" + meet.name + ".meet", rank=0, world_size=1)
    places = [p.split("=", 1) for p in o.places]
    writers = [w for w in all_writers() if re.search(o.writers, w[0])]
    state = make_state(size_of(o.size))
    nbytes = sum(t.nbytes for t in state.values())
    warm(writers)
    for n in range(o.rounds + 1):
        blocked = one_round(n, writers, places, state)
        limits = [b for (name, label), b in blocked.items() if (name, label) == ("DCP save", "tmpfs")]
        if o.fio:
            limits.append(fio_seconds(o.fio, nbytes))
            sample("fio", "durable", limits[-1])
        if n and limits:
            sample("limit", "time", max(limits))
    for _, save, _ in writers:
        if isinstance(save, Cairn):
            save.close()
    dist.destroy_process_group()


# --- the table and the figure -------------------------------------------------------------------


METRICS = ("blocked", "durable", "CPU", "first blocked", "first durable")
PLACES = ("disk", "tmpfs", "mount strict", "mount staged")


def medians(path):
    """{run: {label: {metric: median}}}; how many samples the least of them has."""
    found = {}
    with open(path, encoding="utf-8") as f:
        for line in f:
            row, label, metric, _, value = line.rstrip("\n").split("\t")
            if row.startswith("writers"):
                found.setdefault(row, {}).setdefault(label, {}).setdefault(metric, []).append(float(value))
    return {row: {label: {m: statistics.median(v) for m, v in metrics.items()} for label, metrics in labels.items()}
            for row, labels in found.items()}


def print_table(row, labels):
    print(f"\n{row}, medians, s:\n\n| writer | place | " + " | ".join(METRICS) + " |")
    print("|---|---|" + "---|" * len(METRICS))
    for name, _, _ in all_writers():
        for place in PLACES:
            metrics = labels.get(f"{name} in {place}")
            if metrics:
                cells = (f"{metrics[m]:.2f}" if m in metrics else "" for m in METRICS)
                print(f"| {name} | {place} | " + " | ".join(cells) + " |")
    if "fio" in labels:
        print(f"| fio, the same bytes | disk | | {labels['fio']['durable']:.2f} | | | |")


def figure(row, labels, source):
    """Of one size; `source` is empty where no document has these figures yet."""
    size = row.split("-", 1)[1].replace("G", " GiB").replace("M", " MiB")
    yield f'times "A save of {size}: how long the trainer is blocked, and until it is durable"'
    if source:
        yield f"source {source}"
    for name, _, _ in all_writers():
        yield f'group "{name}"'
        for place in PLACES:
            metrics = labels.get(f"{name} in {place}")
            if metrics and "blocked" in metrics:
                ours = " ours" if place.startswith("mount") else ""
                yield f'time {metrics["blocked"]:.2f} {metrics["durable"]:.2f} "{place}"{ours}'
    if "fio" in labels:
        yield f'group "fio, the same bytes"\ntime 0.00 {labels["fio"]["durable"]:.2f} "disk"'


def table(samples, out, machine):
    with open(machine, encoding="utf-8") as f:
        about = [line.strip() for line in f]
    for row, labels in medians(samples).items():
        print_table(row, labels)
        name = f"{out}-{row.split('-', 1)[1]}.txt"
        with open(name, "w", encoding="utf-8") as f:
            f.write("# Written by tools/bench/writers.py.\n" + "\n".join(figure(row, labels, "")) + "\n")
            for line in about[:2] + about[3:4]:
                f.write('note "' + line.replace('"', "'") + '"\n')
        subprocess.run([sys.executable, os.path.join(HERE, "../../docs/figures/draw"), name], check=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("-n", dest="rounds", type=int, default=5)
    a.add_argument("-s", dest="size", default="1G")
    a.add_argument("-w", dest="writers", metavar="REGEX", default="", help="only the writers whose names match")
    a.add_argument("--fio", metavar="FILE", help="also fio's time for the same bytes, into FILE")
    a.add_argument("--table", nargs=3, metavar=("SAMPLES", "FIGURE", "MACHINE"))
    a.add_argument("places", nargs="*", metavar="LABEL=DIR")
    o = a.parse_args()
    if o.table:
        table(*o.table)
    else:
        run(o)


main()
