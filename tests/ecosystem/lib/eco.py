# SPDX-License-Identifier: MIT
"""What the cases share. A case is a file with save(dir) and check(dir), and `eco.main(save, check)`.

check() runs twice, on the mount and, when that is gone, on the bare store.
"""

import io
import json
import multiprocessing
import os
import subprocess
import sys
import time

import numpy as np
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

CAIRN = os.environ["CAIRN"]


def main(save, check):
    verbs = {"save": save, "check": check}
    for verb, top in zip(sys.argv[1::2], sys.argv[2::2]):
        verbs[verb](top)


def until(ready, what):
    """Of what another thread does some time after its answer. Long: never waited for where it does it."""
    end = time.monotonic() + 200
    while not ready():
        assert time.monotonic() < end, "never: " + what
        time.sleep(0.01)


def skip(why):
    print("SKIP: " + why)
    sys.exit(77)


def numbers(shape, dtype=torch.float32, seed=0):
    """The same every time, in every process; every bit pattern of the type may occur."""
    g = torch.Generator().manual_seed(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), generator=g, dtype=torch.uint8)
    return raw.view(dtype) if dtype != torch.bool else raw > 127


def raw(tensor):
    """Bits, so that NaN equals itself and -0 differs from 0."""
    t = tensor.detach().cpu().contiguous().reshape(-1)
    return t.view(torch.uint8).numpy().tobytes() if t.numel() else b""


def same(got, want, what=""):
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, not {want.dtype}"
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)}, not {tuple(want.shape)}"
    assert raw(got) == raw(want), f"{what}: other bits"


def same_dict(got, want):
    assert got.keys() == want.keys(), got.keys() ^ want.keys()
    for name in want:
        same(got[name], want[name], name)


def equal(got, want, what=""):
    """Of two nested states: the same bits, values and types. DCP makes every key a str."""
    if isinstance(want, torch.Tensor):
        same(got, want.detach(), what)
    elif isinstance(want, (np.ndarray, np.generic)):
        assert type(got) is type(want) and (got.dtype, got.shape) == (want.dtype, want.shape), (what, got)
        assert got.tobytes("A") == want.tobytes("A") and got.flags.f_contiguous == want.flags.f_contiguous, what
    elif isinstance(want, dict):
        got = {str(k): v for k, v in got.items()}
        assert sorted(got) == sorted(map(str, want)), (what, got.keys())
        for key in want:
            equal(got[str(key)], want[key], f"{what}.{key}")
    elif isinstance(want, (list, tuple)):
        assert type(got) is type(want) and len(got) == len(want), (what, got)
        for i, w in enumerate(want):
            equal(got[i], w, f"{what}.{i}")
    else:
        assert type(got) is type(want) and got == want, (what, got, want)


def as_dict(path):
    """A DCP checkpoint by its metadata alone, as PyTorch's own converter reads it."""
    out = os.path.join(os.environ["TMPDIR"], "converted.pt")
    dcp_to_torch_save(path, out)
    return torch.load(out, weights_only=False)


# --- what cairn says of it ---------------------------------------------------------------------


def piece(p, dtype, folder):
    """One piece as cairn tells where it lies; an item of torch's own zip is read by torch."""
    with open(os.path.join(folder, p["file"]), "rb") as f:
        f.seek(p["at"])
        data = bytearray(f.read(p["bytes"]))
    assert len(data) == p["bytes"], p
    if p["payload"] == "torch":
        return torch.load(io.BytesIO(data), weights_only=True)
    if not data:
        return torch.empty(p["shape"], dtype=dtype)
    flat = torch.frombuffer(data, dtype=dtype)
    if "stride" in p:
        return flat.as_strided(p["shape"], p["stride"])
    return flat.view(p["shape"])


def by_cairn(path):
    """{name: tensor} as gathered by `cairn tensors --json`."""
    out = subprocess.run([CAIRN, "tensors", "--json", path], check=True, capture_output=True)
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    found = {}
    for t in json.loads(out.stdout)["tensors"]:
        assert "problem" not in t, t
        dtype = getattr(torch, t["dtype"])
        whole, seen = torch.empty(t["shape"], dtype=dtype), 0
        for p in t["pieces"]:
            part = piece(p, dtype, folder)
            at = tuple(slice(o, o + n) for o, n in zip(p["offset"], p["shape"]))
            whole[at] = part
            seen += part.numel()
        assert seen == whole.numel(), (t["name"], seen)
        found[t["name"]] = whole
    return found


def quiet(path):
    """Nobody has changed it for long: all that tells of some formats that they are whole."""
    for name in os.listdir(path):
        os.utime(os.path.join(path, name), (1.7e9, 1.7e9))
    os.utime(path, (1.7e9, 1.7e9))


def cairn_agrees(path, want):
    """The same names, dtypes, shapes and bits, and nothing to find fault with."""
    same_dict(by_cairn(path), {k: v.detach() for k, v in want.items()})
    out = subprocess.run([CAIRN, "check", path], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stdout + out.stderr


def judged(path):
    """What `cairn ls` says of a checkpoint on the mount or in the store; {} where it sees none."""
    out = subprocess.run([CAIRN, "ls", "--json", path], check=True, capture_output=True)
    return json.loads(out.stdout)[0].get("checkpoint", {})


def whole(path, form, ranks):
    """Recognised as what it is, complete, and of that many ranks."""
    got = judged(path)
    assert (got.get("format"), got.get("state"), got.get("ranks"), got.get("ranks_expected")) == \
        (form, "complete", ranks, ranks), got


def needs_each(path, form, ranks, names, after=lambda _: None):
    """Without any one of these files it is not complete, and with all it is. after: done at each change."""
    aside = path.rstrip("/") + ".aside"
    for name in names:
        os.rename(os.path.join(path, name), aside)
        after(path)
        got = judged(path)
        assert got.get("state") != "complete" and not got.get("safe"), (name, got)
        os.rename(aside, os.path.join(path, name))
        after(path)
    whole(path, form, ranks)


# --- several ranks -----------------------------------------------------------------------------


def rank_main(rank, ranks, rendezvous, body, args):
    torch.distributed.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank,
                                         world_size=ranks)
    try:
        body(rank, ranks, *args)
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def child(body, *args):
    """body(*args) in a process of its own, forked, so that torch need not be imported again.

    It ends with its starter: one that waits for what a failed starter never did would keep it.
    """
    p = multiprocessing.get_context("fork").Process(target=body, args=args, daemon=True)
    p.start()
    return p


def finish(p):
    p.join()
    assert p.exitcode == 0, f"a child ended with {p.exitcode}"


rendezvous_count = 0


def ranks(n, body, *args):
    """body(rank, n, *args) in n processes with a gloo group; what one raises is raised here."""
    global rendezvous_count
    rendezvous_count += 1
    meet = os.path.join(os.environ["TMPDIR"], f"meet.{os.getpid()}.{rendezvous_count}")
    # Forked: importing torch once takes as long as the rest of a case.
    torch.multiprocessing.start_processes(rank_main, (n, meet, body, args), nprocs=n,
                                          start_method="fork")
