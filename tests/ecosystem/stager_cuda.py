# SPDX-License-Identifier: MIT
# needs: torch
# gpu: yes
# timeout: 600
"""CairnStager and DCP with tensors on a GPU. Without one: skipped."""

import os

import torch
import torch.distributed.checkpoint as dcp

import cairnfs
import eco
import staging
from cairnfs import CairnStager, CairnStorageReader, CairnStorageWriter

if not torch.cuda.is_available():
    eco.skip("no GPU here: torch.cuda.is_available() is False")


def numbers(*shape, dtype=torch.float32, seed=0, device="cuda"):
    return eco.numbers(shape, dtype, seed).to(device)


def state(step):
    base = numbers(512, 1024, seed=step)
    return {
        "base": base, "view": base[3:7, 2:9], "t": base.t(), "half": numbers(7, dtype=torch.half),
        "scalar": torch.tensor(step + 0.5, device="cuda"), "none": torch.empty(0, 3, device="cuda"),
        "f8": numbers(64, dtype=torch.float8_e4m3fn), "host": numbers(100, device="cpu"),
        "many": {f"w{i}": numbers(33, 17, seed=step + i) for i in range(200)},
    }


def flat(x, prefix=""):
    for k, v in x.items():
        if isinstance(v, dict):
            yield from flat(v, prefix + k + ".")
        else:
            yield prefix + k, v


def on_host(x):
    return {k: v.cpu().clone() for k, v in flat(x)}


def spoil(x):
    for _, v in flat(x):
        v.zero_()


def semantics(top):
    with CairnStager(top) as stager:
        for step in range(3):
            live = state(step)
            want = on_host(live)
            staged = stager.stage(live)
            spoil(live)
            assert staged["view"].untyped_storage()._cdata == staged["t"].untyped_storage()._cdata
            assert all(v.device.type == "cpu" for _, v in flat(staged))
            eco.same_dict(dict(flat(staged)), want)


def non_blocking(top):
    """Also in another stream's order, and from a thread of the stager's own."""
    with CairnStager(top) as stager:
        live = state(1)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(100_000_000)
            live["base"].add_(1)        # still queued when stage() is called
            staged = stager.stage(live, non_blocking=True)
            assert not stager.gate._readers == {}, "reading() lasts until the copies are done"
            stager.synchronize()
            want = on_host(live)
            spoil(live)
        eco.same_dict(dict(flat(staged)), want)
        live = state(2)
        staged = stager.stage(live, non_blocking=True)
        want = on_host(live)
        stager.disallow_state_dict_read()       # waits for the copies
        spoil(live)
        stager.allow_state_dict_read()
        eco.same_dict(dict(flat(staged)), want)
    with CairnStager(top, use_async_staging=True) as stager:
        live = state(3)
        torch.cuda._sleep(100_000_000)
        live["base"].add_(1)
        future = stager.stage(live)
        staged = future.result()
        want = on_host(live)
        spoil(live)
        eco.same_dict(dict(flat(staged)), want)


def files(top):
    where = "with" if cairnfs.library() else "without"
    with CairnStager(top) as stager:
        live = state(5)
        for step in range(5):
            stager.save(live, f"{top}/{where}.pt")
            cairnfs.wait(f"{top}/{where}.pt")
            stats = stager.memory.stats()
            if step == 2:
                before = stats
        assert stats["mapped"] == before["mapped"]
        assert stats.get("registrations") == before.get("registrations"), (before, stats)


def distributed(top):
    where = "with" if cairnfs.library() else "without"
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1,
                                         init_method=f"file://{os.environ['TMPDIR']}/{where}")
    try:
        writer = CairnStorageWriter(f"{top}/{where}")
        for step in range(3):
            live = state(step)
            future = dcp.async_save(live, checkpoint_id=f"{top}/{where}/step-{step}",
                                    storage_writer=writer)
            spoil(live)
            future.result()
        dcp.save(state(3), checkpoint_id=f"{top}/{where}/step-3", storage_writer=writer)
        writer.close()
    finally:
        torch.distributed.destroy_process_group()


def save(top):
    for row in (semantics, non_blocking, files, distributed):
        print("#", row.__name__, flush=True)
        staging.each_memory(row, top)


def check(top):
    for where in ("with", "without"):
        if not os.path.exists(f"{top}/{where}.pt"):
            continue
        want = state(5)
        for got in (torch.load(f"{top}/{where}.pt"), cairnfs.load(f"{top}/{where}.pt")):
            for name, t in flat(got):
                assert t.device == dict(flat(want))[name].device, name
            eco.same_dict(on_host(got), on_host(want))
        assert cairnfs.load(f"{top}/{where}.pt", "cpu")["base"].device.type == "cpu"
        for step in range(4):
            folder = f"{top}/{where}/step-{step}"
            for reader in (dcp.FileSystemReader, CairnStorageReader):
                got = state(9)
                dcp.load(got, storage_reader=reader(folder), no_dist=True)
                eco.same_dict(on_host(got), on_host(state(step)))
            got = cairnfs.load_checkpoint(folder)
            assert got["base"].is_cuda and not got["host"].is_cuda
            eco.same(got["base"].cpu(), state(step)["base"].cpu())


if __name__ == "__main__":
    eco.main(save, check)
