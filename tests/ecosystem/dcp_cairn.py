# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 1200
"""CairnStorageWriter and CairnStorageReader: what one writes, PyTorch's own reads, and the other
way round; save and async_save, 2 gloo processes, tensors changed as soon as it returns."""

import contextlib
import gc
import os
import shutil
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import cairnfs
import eco
import model
import staging
from cairnfs import CairnStager, CairnStorageReader, CairnStorageWriter
from cairnfs.dcp import inside

PLAIN = dcp.FileSystemReader
KINDS = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.bool,
    torch.complex64, torch.int8, torch.float64,
]


def more(rank, step, blank=False):
    """What model.sharded has not: replicas, views, small and odd ones, no tensors."""
    def t(*shape, dtype=torch.float32, seed=0):
        x = eco.numbers(shape, dtype, 77 * step + seed)
        return torch.zeros_like(x) if blank else x

    base = t(64, 64, seed=1)
    return {
        # Of the same bits on both ranks: one of them saves it.
        "replica": t(300, 1000, seed=2), "replica2": t(301, 1000, seed=3),
        "view": base[3:9], "column": base[:, 5], "t": base.t(),
        "types": {str(d): t(5, 6, dtype=d, seed=4) for d in KINDS},
        "own": {f"rank{rank}": t(40, 50, seed=10 + rank)},
        "empty": torch.empty(0, 3), "scalar": torch.tensor(-1.0 if blank else step + 0.5),
        "conj": (t(4, dtype=torch.complex64, seed=5).conj() if not blank else
                 torch.zeros(4, dtype=torch.complex64)),
        "text": "" if blank else f"step {step} of rank {rank}", "list": [0 if blank else step],
    }


def state(rank, ranks, step, fill=None):
    found = model.sharded(step, ranks, fill=fill)
    if fill is not None:
        found["note"] = ""
    found["more"] = more(rank, step, blank=fill is not None)
    return found


def spoil(s):
    model.spoil(s)

    def zero(x):
        if isinstance(x, torch.Tensor):
            x.zero_()
        elif isinstance(x, dict):
            for v in x.values():
                zero(v)

    zero(s["more"])
    s["more"]["list"][0] = -9


def expect(s, rank, step):
    model.expect(s, step)
    want = more(rank, step)
    got = s["more"]
    # A value that is no tensor is the last rank's or the first's: each has written it.
    assert got.pop("text").startswith(f"step {step}") and want.pop("text")
    assert torch.equal(got.pop("conj"), want.pop("conj"))
    for name in want:
        if isinstance(want[name], dict):
            eco.same_dict(got[name], want[name])
        elif isinstance(want[name], torch.Tensor):
            eco.same(got[name], want[name], name)
        else:
            assert got[name] == want[name], (name, got[name])


# --- writing -----------------------------------------------------------------------------------


def rotated(rank, ranks, top):
    """The first checkpoint, whose directory the writer was made for, is removed before the next."""
    writer = CairnStorageWriter(f"{top}/rotated/step-0")
    for step in (0, 1):
        folder = f"{top}/rotated/step-{step}"
        dcp.save(state(rank, ranks, 1), checkpoint_id=folder, storage_writer=writer)
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
        dist.barrier()
    writer.close()


def sync(rank, ranks, top):
    writer = CairnStorageWriter(f"{top}/sync/step-1")
    for step in (1, 2):
        s = state(rank, ranks, step)
        dcp.save(s, checkpoint_id=f"{top}/sync/step-{step}", storage_writer=writer)
        spoil(s)
    rotated(rank, ranks, top)
    # In place, as DCP does it; what is half replaced is not committed.
    write, seen = writer.write_data, []
    writer.write_data = lambda *args: seen.append(os.listdir(f"{top}/sync/step-1")) or write(*args)
    dcp.save(state(rank, ranks, 3), checkpoint_id=f"{top}/sync/step-1", storage_writer=writer)
    assert seen and ".metadata" not in seen[0], seen
    writer.close()
    refused = CairnStorageWriter(f"{top}/sync/step-1", overwrite=False)
    staging.raises(BaseException, dcp.save, state(rank, ranks, 4), storage_writer=refused)


def names(folder, rank):
    return sorted(n for n in os.listdir(folder) if n.startswith(f"__{rank}_"))


def background(rank, ranks, top):
    """The same tensors each step, as a trainer has them: what is learned from a plan is used."""
    writer = CairnStorageWriter(f"{top}/async/step-1")
    live = state(rank, ranks, 1)
    for step in range(1, 6):
        fresh = state(rank, ranks, step)
        assign(live, fresh)
        path = f"{top}/async/step-{step}"
        future = dcp.async_save(live, checkpoint_id=path, storage_writer=writer)
        spoil(live)
        future.result()
        del future
        # The thread that saved answers first, and lets go of what it saved after that.
        eco.until(lambda: gc.collect() >= 0 and not writer.stager._pending, "nothing is pending")
        assert names(path, rank) == [f"__{rank}_0.distcp"], names(path, rank)
        cairnfs.wait(path)
        dist.barrier()
        stats = writer.stager.memory.stats()
        if step == 4:
            before = stats
    assert stats["mapped"] == before["mapped"], (before, stats)
    # What both ranks have is in one file only, and the tied weight once.
    files = sum(os.stat(f"{top}/async/step-5/__{r}_0.distcp").st_size for r in range(ranks))
    whole = [t for n, t in model.full(5).items() if n != "head"]
    whole += [t for t in flat(more(0, 5)) + flat(more(1, 5)["own"]) if isinstance(t, torch.Tensor)]
    nbytes = sum(t.numel() * t.element_size() for t in whole)
    assert nbytes < files < nbytes + (1 << 18), (nbytes, files)
    writer.close()


def flat(x):
    return [v for y in x.values() for v in (flat(y) if isinstance(y, dict) else [y])]


def assign(live, fresh):
    """fresh's values into live's tensors."""
    if isinstance(fresh, dict):
        for k, v in fresh.items():
            if isinstance(v, torch.Tensor):
                local = getattr(live[k], "_local_tensor", live[k])
                if local.is_conj() or not local.numel():
                    live[k] = v
                else:
                    local.copy_(getattr(v, "_local_tensor", v))
            elif isinstance(v, dict):
                assign(live[k], v)
            else:
                live[k] = v


def other_ways(rank, ranks, top):
    kinds = {"thread": {}, "process": {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}}
    if sys.platform == "linux":
        for name, kwargs in kinds.items():
            writer = CairnStorageWriter(f"{top}/{name}", use_async_staging=name == "thread")
            s = state(rank, ranks, 6)
            answer = dcp.async_save(s, storage_writer=writer, **kwargs)
            if hasattr(answer, "staging_completion"):
                answer.staging_completion.result()
                answer = answer.upload_completion
            writer.synchronize_staging()
            spoil(s)
            answer.result()
            writer.close()
    # A stager of the trainer's own; CRCs; each rank its own .metadata; PyTorch's writer.
    with CairnStager(top, layout="dcp", crc32=True) as stager:
        writer = CairnStorageWriter(f"{top}/own", stager=stager, sync_files=True)
        s = state(rank, ranks, 6)
        future = dcp.async_save(s, storage_writer=writer, async_stager=stager)
        spoil(s)
        future.result()
        writer.close()
        assert not stager._closed
    dcp.save(state(rank, ranks, 6), storage_writer=CairnStorageWriter(f"{top}/local"),
             use_collectives=False)
    dcp.save(state(rank, ranks, 6), checkpoint_id=f"{top}/torch")


def save(top):
    for where, memory in (("with", contextlib.nullcontext), ("without", staging.no_library)):
        if where == "with" and cairnfs.library() is None:
            continue
        os.mkdir(f"{top}/{where}")
        with memory():
            for body in (sync, background, other_ways):
                print("#", where, body.__name__, flush=True)
                eco.ranks(2, body, f"{top}/{where}")


# --- reading -----------------------------------------------------------------------------------


def load(rank, ranks, top, readers):
    for path, step in (("sync/step-1", 3), ("sync/step-2", 2), ("async/step-1", 1),
                       ("async/step-2", 2), ("async/step-5", 5), ("thread", 6), ("process", 6),
                       ("own", 6), ("torch", 6)):
        for reader in readers:
            s = state(rank, ranks, step, fill=3)
            dcp.load(s, storage_reader=reader(f"{top}/{path}"))
            expect(s, rank, step)
    s = state(rank, ranks, 6, fill=3)
    dcp.load(s, storage_reader=CairnStorageReader(f"{top}/local"))
    expect(s, rank, 6)


ALONE = """
import sys, torch, torch.distributed.checkpoint as dcp
sys.modules["cairnfs"] = None
reader = dcp.FileSystemReader(sys.argv[1])
metadata = reader.read_metadata()
devices = {getattr(i, "cairn_device", None) for i in metadata.storage_data.values()}
assert devices == {"cpu", None}, devices
state = {"more.replica": torch.zeros(300, 1000)}
dcp.load(state, storage_reader=reader, no_dist=True)
assert state["more.replica"].any()
"""


def check(top):
    checked = False
    # The bare store has the bytes that were read through the mount (case.sh compares them); only the
    # reader of our own goes another way there.
    readers = (PLAIN, CairnStorageReader) if top == os.environ["MOUNT"] else (CairnStorageReader,)
    for where in ("with", "without"):
        folder = f"{top}/{where}"
        if not os.path.isdir(folder):
            continue
        eco.ranks(2, load, folder, readers)
        # One rank reads what two wrote, with nothing to load into.
        got = cairnfs.load_checkpoint(f"{folder}/async/step-5")
        eco.same_dict({n: got[n] for n in model.names(5)}, model.names(5))
        assert got["more.text"].startswith("step 5 of rank")
        assert cairnfs.device_of(f"{folder}/async/step-5/__1_0.distcp") in ("cpu", None)
        for path, step in (("sync/step-2", 2), ("async/step-1", 1), ("async/step-5", 5),
                           ("own", 6)):
            known = eco.by_cairn(f"{folder}/{path}")
            eco.same_dict({n: known[n] for n in model.names(step)}, model.names(step))
            done = subprocess.run([eco.CAIRN, "check", f"{folder}/{path}"], capture_output=True,
                                  text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        if not checked:
            checked = True
            env = {**os.environ, "PYTHONPATH": ""}
            subprocess.run([sys.executable, "-c", ALONE, f"{folder}/async/step-5"], check=True,
                           env=env)
    for name in ("../x", "/etc/passwd", "a/../../x"):
        staging.raises(ValueError, inside, top, name)


if __name__ == "__main__":
    eco.main(save, check)
