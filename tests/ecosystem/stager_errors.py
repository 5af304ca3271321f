# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""CairnStager where something goes wrong or comes in between: errors in the middle of a save, a
second one while the first is under way, and the protocol of async_save."""

import contextlib
import os
import threading
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import AsyncStager

import cairnfs
import eco
import staging
from cairnfs import CairnStager, CairnStorageWriter
from cairnfs.stager import Streams
from staging import collect, equal, raises

LONG = 60


def model(step, n=5):
    return {f"w{i}": torch.full((300, 100), float(step * 100 + i)) for i in range(n)}


def empty(stager):
    """Nothing is pending, no memory is lent, the gate is open."""
    collect()
    assert not stager._pending and not stager._inflight and not stager._held
    assert stager.gate._readers == {} and stager.gate.is_state_dict_read_allowed
    stager.memory.trim()
    assert stager.memory.stats()["buffers"] == 0, stager.memory.stats()


class Fails:
    """Cannot be copied from the nth time on."""

    def __init__(self, after):
        self.after = after

    def __reduce_ex__(self, protocol):
        self.after -= 1
        if self.after < 0:
            raise KeyError("this one cannot be copied")
        return Fails, (1 << 20,)


# --- errors ------------------------------------------------------------------------------------


def while_staging(top):
    """In the walk that learns, in the one that copies, in a later one; in the stager's own thread."""
    for threads in (False, True):
        for after in range(4):
            with CairnStager(top, use_async_staging=threads) as stager:
                state = {**model(1), "x": Fails(after), "last": torch.ones(9)}
                with contextlib.suppress(KeyError):
                    for _ in range(2):
                        got = stager.stage(state)
                        got = got.result() if threads else got
                    assert after == 3, f"no error where walk {after} fails"
                state = got = None
                if threads and after < 3:
                    raises(KeyError, stager.synchronize_staging)
                    stager.synchronize_staging()    # told once
                empty(stager)                       # nor does a Future keep its result
                state = model(2)
                got = stager.stage(state)
                equal(got.result() if threads else got, state)


def no_memory(top):
    for layout in ("torch", "dcp"):
        with CairnStager(top, layout=layout) as stager:
            with mock.patch.object(stager.memory, "create", side_effect=MemoryError):
                raises(MemoryError, stager.stage, model(1))
            empty(stager)
            state = model(1)
            equal(stager.stage(state), state)


def no_file(top):
    """A commit that fails leaves no file or the old one, and no memory; the next one works."""
    with CairnStager(top) as stager:
        stager.save(model(1), f"{top}/kept.pt")
        os.mkdir(f"{top}/directory")
        for path, kind in ((f"{top}/no/where.pt", FileNotFoundError),
                           (f"{top}/directory", IsADirectoryError),
                           (f"{top}/{'n' * 256}", OSError)):
            raises(kind, stager.save, model(2), path)
            empty(stager)
        # What cannot be pickled is found before anything has a name; what is staged stays staged.
        state = {**model(3), "f": lambda: 1}
        staged = stager.stage(state)
        raises(Exception, stager.commit, f"{top}/kept.pt", staged)
        equal(torch.load(f"{top}/kept.pt"), model(1))
        del staged["f"]
        stager.commit(f"{top}/kept.pt", staged)
        equal(torch.load(f"{top}/kept.pt"), model(3))
        raises(KeyError, stager.save, {"x": Fails(0)}, f"{top}/kept.pt")
        equal(torch.load(f"{top}/kept.pt"), model(3))
        os.rmdir(f"{top}/directory")
    assert [n for n in os.listdir(top) if n.startswith(".")] in ([], [".cairn"])


class BadPlanner(dcp.DefaultSavePlanner):
    """Fails at the nth item that is resolved."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def resolve_data(self, item):
        self.after -= 1
        if self.after < 0:
            raise KeyError("a planner that fails")
        return super().resolve_data(item)


def while_saving(top):
    """async_save whose thread fails: no .metadata, nothing is left, and the next one works."""
    writer = CairnStorageWriter(f"{top}/bad")
    for after in (0, 3):
        future = dcp.async_save(model(1), checkpoint_id=f"{top}/bad", storage_writer=writer,
                                planner=BadPlanner(after), no_dist=True)
        raises(CheckpointException, future.result)
        assert not os.path.exists(f"{top}/bad/.metadata")
        del future
        eco.until(lambda: collect() or not writer.stager._pending, "nothing is pending")
        empty(writer.stager)
    with mock.patch.object(type(writer.stager.memory.create(1 << 20)), "_commit",
                           side_effect=OSError(28, "no space")):
        future = dcp.async_save(model(1), checkpoint_id=f"{top}/full", storage_writer=writer,
                                no_dist=True)
        raises(CheckpointException, future.result)
    assert not os.path.exists(f"{top}/full/.metadata")
    del future
    dcp.async_save(model(2), checkpoint_id=f"{top}/good", storage_writer=writer,
                   no_dist=True).result()
    got = model(0)
    dcp.load(got, checkpoint_id=f"{top}/good", no_dist=True)
    equal(got, model(2))
    writer.close()


# --- a second one while the first is under way -------------------------------------------------


def two_at_once(top):
    """The next state dict is staged, and saved by another writer, while the first is being written."""
    with CairnStager(top, layout="dcp") as stager:
        writers = [CairnStorageWriter(f"{top}/at-once-{i}", stager=stager) for i in range(2)]
        go, held = threading.Event(), threading.Event()
        write = writers[0].write_data

        def wait_first(*args):
            held.set()
            assert go.wait(LONG)
            return write(*args)

        writers[0].write_data = wait_first
        live = model(1)
        first = dcp.async_save(live, storage_writer=writers[0], async_stager=stager, no_dist=True)
        assert held.wait(LONG)
        for i, t in enumerate(live.values()):
            t.fill_(200 + i)
        second = dcp.async_save(live, storage_writer=writers[1], async_stager=stager, no_dist=True)
        for t in live.values():
            t.zero_()
        second.result()
        go.set()
        first.result()
        for i in range(2):
            got = model(0)
            dcp.load(got, checkpoint_id=f"{top}/at-once-{i}", no_dist=True)
            equal(got, model(i + 1))


def commits_meanwhile(top):
    """A thread commits what another stages over: each file is all of one step."""
    with CairnStager(top) as stager:
        live = model(0, 40)
        step = 0
        staged = stager.stage(live)
        for step in range(1, 25):
            thread = threading.Thread(target=stager.commit, args=(f"{top}/whole.pt", staged))
            thread.start()
            for i, t in enumerate(live.values()):
                t.fill_(float(step * 100 + i))
            staged = stager.stage(live)
            thread.join()
            got = torch.load(f"{top}/whole.pt")
            equal(got, model(got["w0"][0, 0].item() // 100, 40))
            equal(staged, live)


def claimed(top):
    """While a commit reads what is staged, stage() of the same tensors waits for it."""
    with CairnStager(top) as stager:
        live = model(1)
        staged = stager.stage(live)
        inside, go = threading.Event(), threading.Event()
        from cairnfs import stager as module
        finish = module._finish

        def slow(*args):
            inside.set()
            assert go.wait(LONG)
            return finish(*args)

        with mock.patch.object(module, "_finish", slow):
            commit = threading.Thread(target=stager.commit, args=(f"{top}/claimed.pt", staged))
            commit.start()
            assert inside.wait(LONG)
            for t in live.values():
                t.zero_()
            again = threading.Thread(target=stager.stage, args=(live,))
            again.start()
            again.join(0.2)
            assert again.is_alive(), "staged over what is being committed"
            go.set()
            commit.join()
            again.join()
        equal(torch.load(f"{top}/claimed.pt"), model(1))


# --- the gate and the stager's thread ----------------------------------------------------------


def disallowed_at_once(top):
    """disallow_state_dict_read() right after stage(): its thread may not even run yet."""
    with CairnStager(top, use_async_staging=True) as stager:
        go = threading.Event()
        stager._executor.submit(go.wait, LONG)      # its only thread is busy
        live = model(1)
        future = stager.stage(live)
        changed = threading.Event()

        def change():
            stager.disallow_state_dict_read()
            for t in live.values():
                t.zero_()
            changed.set()
            stager.allow_state_dict_read()

        trainer = threading.Thread(target=change)
        trainer.start()
        assert not changed.wait(0.2), "the state was changed before it was staged"
        go.set()
        equal(future.result(), model(1))
        trainer.join()
        # One that is cancelled before it began lets go too.
        go.clear()
        stager._executor.submit(go.wait, LONG)
        future = stager.stage(live)
        assert future.cancel()
        stager.disallow_state_dict_read(timeout=LONG)
        stager.allow_state_dict_read()
        go.set()


class Side:
    """Stands for a CUDA stream: what was queued is done when somebody has waited."""

    def __init__(self, *_):
        self.queued, self.done = 0, 0

    def wait_stream(self, _):
        pass

    wait_event = wait_stream

    def synchronize(self):
        self.done = self.queued


def side_streams(_top):
    """Whoever else synchronizes in between, the last synchronize() waits for all that was queued."""
    device, sides = torch.device("cuda", 0), []

    def stream(*_):
        sides.append(Side())
        return sides[-1]

    with mock.patch("torch.cuda.Stream", stream), \
            mock.patch("torch.cuda.stream", lambda _: contextlib.nullcontext()), \
            mock.patch("torch.cuda.current_stream", stream):
        streams = Streams()
        for other in (0, 1, 2):
            streams.begin()
            for i in range(3):
                with streams.on(device, {}):
                    if i == other:
                        streams.synchronize()       # as disallow_state_dict_read() does
                    streams._side[device].queued += 1
                if i == other:
                    streams.synchronize()
                    with streams.on(device, {}):
                        streams._side[device].queued += 1
            assert streams.busy()
            streams.synchronize()
            side = streams._side[device]
            assert side.done == side.queued, (other, side.done, side.queued)
            assert not streams.busy()


# --- the protocol ------------------------------------------------------------------------------


def kept(answer, live, path, seed):
    """What is changed once it is staged, while it is saved, is saved as it was."""
    for t in live.values():
        t.zero_()
    answer.result()
    got = model(0)
    dcp.load(got, checkpoint_id=path, no_dist=True)
    equal(got, model(seed))


def protocol(top):
    """As torch.distributed.checkpoint.async_save uses a stager."""
    for threads in (False, True):
        stager = CairnStager(top, layout="dcp", use_async_staging=threads)
        writer = CairnStorageWriter(f"{top}/protocol", stager=stager)
        for x in (stager, writer):
            assert isinstance(x, AsyncStager)
            assert x.should_synchronize_after_execute is False
        live = model(4)
        answer = dcp.async_save(live, storage_writer=writer, async_stager=stager, no_dist=True)
        if threads:
            answer.staging_completion.result()
            stager.synchronize_staging()
            answer = answer.upload_completion
        kept(answer, live, f"{top}/protocol", 4)
        writer.close()
        equal(stager.stage(live) if not threads else stager.stage(live).result(), live)
        stager.close()
        raises(ValueError, stager.stage, live)
    # PyTorch's own writer with our stager.
    with CairnStager(top) as stager:
        live = model(5)
        future = dcp.async_save(live, checkpoint_id=f"{top}/theirs", async_stager=stager,
                                no_dist=True)
        kept(future, live, f"{top}/theirs", 5)
    # An error of the staging is the save's.
    for threads in (False, True):
        with CairnStager(top, layout="dcp", use_async_staging=threads) as stager:
            try:
                answer = dcp.async_save({"x": Fails(0)}, checkpoint_id=f"{top}/fails",
                                        storage_writer=CairnStorageWriter(f"{top}/fails",
                                                                          stager=stager),
                                        async_stager=stager, no_dist=True)
                answer.upload_completion.result()
                raise AssertionError("no error")
            except KeyError:
                pass
            empty(stager)
    assert not os.path.exists(f"{top}/fails/.metadata")


ODD = {"q": lambda: torch.quantize_per_tensor(torch.ones(300), .1, 1, torch.qint8),
       "storage": lambda: torch.arange(9.).untyped_storage(),
       "rng": lambda: torch.Generator().manual_seed(5).get_state()}


def odd(top):
    """What DCP stores as no plain tensor, staged beside the file."""
    writer = CairnStorageWriter(f"{top}/odd")
    for step in range(3):
        state = {**model(6), **{n: make() for n, make in ODD.items()}}
        future = dcp.async_save(state, checkpoint_id=f"{top}/odd", storage_writer=writer,
                                no_dist=True)
        state["q"].copy_(torch.zeros(300)), state["w0"].zero_(), state["rng"].zero_(), state["storage"].fill_(0)
        future.result()
    writer.close()


ROWS = [while_staging, no_memory, no_file, while_saving, two_at_once, commits_meanwhile, claimed,
        disallowed_at_once, protocol, odd]


def save(top):
    side_streams(top)
    for row in ROWS:
        print("#", row.__name__, flush=True)
        where = f"{top}/{row.__name__}"
        for memory in ("with", "without"):
            os.makedirs(f"{where}/{memory}")
        if cairnfs.library() is not None:
            row(f"{where}/with")
        with staging.no_library():
            row(f"{where}/without")
        collect()


def check(top):
    for memory in ("with", "without"):
        folder = f"{top}/odd/{memory}/odd"
        if not os.path.exists(folder):
            continue
        for reader in (dcp.FileSystemReader, cairnfs.CairnStorageReader):
            got = {**model(0), "q": torch.quantize_per_tensor(torch.zeros(300), .1, 1, torch.qint8),
                   "storage": None, "rng": torch.zeros_like(ODD["rng"]())}
            dcp.load(got, storage_reader=reader(folder), no_dist=True)
            assert torch.equal(got["q"].int_repr(), ODD["q"]().int_repr())
            assert bytes(got["storage"]) == bytes(ODD["storage"]())
            eco.same(got["rng"], ODD["rng"]())
            equal(got["w0"], model(6)["w0"])
        equal(torch.load(f"{top}/no_file/{memory}/kept.pt"), model(3))
        equal(torch.load(f"{top}/claimed/{memory}/claimed.pt"), model(1))


if __name__ == "__main__":
    eco.main(save, check)
