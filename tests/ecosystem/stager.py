# SPDX-License-Identifier: MIT
# needs: torch
# timeout: 600
"""CairnStager: each row of StateDictStager's semantics, with libcairn and without; the files it
commits, read by torch.load and cairnfs.load."""

import collections
import copy
import dataclasses
import os
import typing
import unittest.mock
import zipfile

import torch

import cairnfs
import eco
import staging
from cairnfs import CairnStager
from staging import collect, equal, raises

TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]


class Point(typing.NamedTuple):
    x: torch.Tensor
    y: int


@dataclasses.dataclass(frozen=True)
class Inner:
    weight: torch.Tensor
    name: str = "inner"


@dataclasses.dataclass
class Outer:
    inner: Inner
    rest: list


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class Plain:
    def __init__(self, t):
        self.t = t
        self.me = self


class Named(torch.Tensor):
    pass


class OwnCopy:
    def __init__(self, value):
        self.value, self.copied = value, False

    def __deepcopy__(self, memo):
        y = OwnCopy(copy.deepcopy(self.value, memo))
        y.copied = True
        return y


class Scaled(torch.Tensor):
    """A wrapper around two tensors, as quantized weights are."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data, scale):
        assert data.shape[0] == scale.shape[0]
        self.data_, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["data_", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Scaled(inner["data_"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].data_, args[0].scale)
        raise NotImplementedError(str(func))


def numbers(*shape, dtype=torch.float32, seed=0):
    return eco.numbers(shape, dtype, seed)


# --- structure ---------------------------------------------------------------------------------


def structure(top):
    t = numbers(10, 3)
    ordered = collections.OrderedDict(a=t)
    ordered._metadata = {"version": 2}
    state = {
        "list": [t, 1, "s"], "tuple": (1, (t, None)), "same tuple": (1, 2), "point": Point(t, 3),
        "outer": Outer(Inner(t), [Inner(t, "two")]), "slots": Slots(t, {"k": t}),
        "ordered": ordered, "default": collections.defaultdict(list, {1: [t]}),
        "set": {1, 2}, "dtype": torch.bfloat16, "size": t.size(), "device": t.device,
        "function": structure, 7: (t,), ("k", 1): 2.5,
    }
    staged = CairnStager(top).stage(state)
    assert list(staged) == list(state)
    one = staged["list"][0]
    assert one is not t
    for other in (staged["tuple"][1][0], staged["point"].x, staged["outer"].inner.weight,
                  staged["outer"].rest[0].weight, staged["slots"].a, staged["slots"].b["k"],
                  staged["ordered"]["a"], staged["default"][1][0], staged[7][0]):
        assert other is one, "one tensor became two"
    assert type(staged["point"]) is Point and staged["point"].y == 3
    assert type(staged["outer"]) is Outer and staged["outer"].rest[0].name == "two"
    raises(dataclasses.FrozenInstanceError, setattr, staged["outer"].inner, "name", "x")
    assert staged["same tuple"] is state["same tuple"]
    assert staged["ordered"]._metadata == {"version": 2}
    assert staged["ordered"]._metadata is not ordered._metadata
    assert staged["default"].default_factory is list
    assert staged["set"] == {1, 2} and staged["set"] is not state["set"]
    for name in ("dtype", "size", "device", "function", ("k", 1)):
        assert staged[name] == state[name]
    eco.same(one, t)


def cycles(top):
    plain = Plain(numbers(4))
    state = {"p": plain, "list": []}
    state["list"].append(state["list"])
    state["self"] = state
    staged = CairnStager(top).stage(state)
    assert staged["self"] is staged and staged["list"][0] is staged["list"]
    assert staged["p"].me is staged["p"] is not plain
    eco.same(staged["p"].t, plain.t)


def others(top):
    state = {"own": OwnCopy([1]), "method": [].append, "t": numbers(3)}
    del state["method"]
    staged = CairnStager(top).stage(state)
    assert staged["own"].copied and staged["own"].value == [1]
    with CairnStager(top) as stager:
        # What cannot be copied is told, and nothing is left behind.
        raises(TypeError, stager.stage, {"t": numbers(9), "x": (i for i in "abc")})
        assert not stager._pending
        equal(stager.stage({"t": numbers(9)}), {"t": numbers(9)})


# --- tensors -----------------------------------------------------------------------------------


def shared(top):
    base = numbers(6, 8)
    state = {
        "base": base, "rows": base[1:3], "columns": base[:, 2:5], "t": base.t(),
        "step": base.view(-1)[3::5], "flat": base.view(-1), "other": base.clone(),
        "expanded": base[0, :1].expand(5), "strided": base.as_strided((2, 2), (7, 3), 4),
    }
    want = {k: v.clone() for k, v in state.items()}
    staged = CairnStager(top).stage(state)
    assert staging.storages(staged) == 2
    for name, t in state.items():
        assert staged[name].stride() == t.stride(), name
        assert staged[name].storage_offset() == t.storage_offset(), name
        eco.same(staged[name], want[name], name)
    assert staged["base"].untyped_storage().nbytes() == base.untyped_storage().nbytes()
    staged["rows"].zero_()
    assert not staged["base"][1:3].any() and base[1:3].any()


def small(top):
    grown = torch.empty(0).resize_(3).fill_(2)
    state = {"zero": torch.empty(0), "none": torch.empty(3, 0, 5), "scalar": torch.tensor(4.5),
             "one": torch.ones(1), "grown": grown, "int": torch.tensor(7)}
    with CairnStager(top) as stager:
        equal(stager.stage(state), state)
        equal(stager.stage({}), {})
        equal(stager.stage({"e": torch.empty(0, 2)}), {"e": torch.empty(0, 2)})
        equal(stager.stage(torch.tensor(3)), torch.tensor(3))
    freed = torch.ones(10)
    freed.untyped_storage().resize_(0)      # what FSDP does with what it has freed
    assert CairnStager(top).stage([freed])[0].untyped_storage().nbytes() == 0


def types(top):
    state = {str(d): numbers(3, 40, dtype=d, seed=i) for i, d in enumerate(TYPES)}
    equal(CairnStager(top).stage(state), state)


def kinds(top):
    p = torch.nn.Parameter(numbers(5))
    p.note = ["kept"]
    named = numbers(2, 3).as_subclass(Named)
    named.other = numbers(4)
    scaled = Scaled(numbers(4, 4, dtype=torch.int8), numbers(4))
    scaled.extra = "e"
    z = numbers(6, dtype=torch.complex64)
    sparse = torch.sparse_coo_tensor([[0, 2], [1, 0]], [1.5, 2.5], (3, 3)).coalesce()
    csr = torch.eye(3).to_sparse_csr()
    quantized = torch.quantize_per_tensor(torch.randn(9), 0.1, 3, torch.qint8)
    state = {"p": p, "named": named, "scaled": scaled, "conj": z.conj(), "neg": z.conj().imag,
             "z": z, "sparse": sparse, "csr": csr, "q": quantized, "meta": torch.ones(3,
             device="meta"), "grad": torch.ones(2, requires_grad=True) * 2,
             "storage": numbers(3).untyped_storage()}
    got = CairnStager(top).stage(state)
    assert type(got["p"]) is torch.nn.Parameter and got["p"].requires_grad
    assert got["p"].note == ["kept"] and got["p"].note is not p.note
    assert type(got["named"]) is Named and got["named"].other is not named.other
    equal(got["named"].other, named.other)
    assert type(got["scaled"]) is Scaled and got["scaled"].extra == "e"
    equal(got["scaled"].data_, scaled.data_)
    assert got["scaled"].scale.data_ptr() != scaled.scale.data_ptr()
    assert got["conj"].is_conj() and torch.equal(got["conj"], z.conj()) and got["neg"].is_neg()
    assert torch.equal(got["neg"], z.conj().imag)
    assert got["conj"].untyped_storage()._cdata == got["z"].untyped_storage()._cdata
    assert got["sparse"].is_coalesced() and torch.equal(got["sparse"].to_dense(), sparse.to_dense())
    assert torch.equal(got["csr"].to_dense(), torch.eye(3))
    assert torch.equal(got["q"].int_repr(), quantized.int_repr()) and got["q"].q_scale() == 0.1
    assert got["meta"].is_meta and got["meta"].shape == (3,)
    assert not got["grad"].requires_grad and got["grad"].tolist() == [2, 2]
    assert bytes(got["storage"]) == bytes(state["storage"])
    assert got["storage"].data_ptr() != state["storage"].data_ptr()
    # Nothing of it lies on the tensors it came from.
    p.data.zero_(), z.zero_(), sparse.values().zero_(), scaled.data_.zero_()
    assert got["p"].any() and got["z"].any() and got["sparse"].values().all()


def dtensors(rank, ranks, top):
    import model
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    from torch.distributed.tensor import DTensor
    state = model.sharded(3, ranks)
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(ranks)])
    old = sharded_tensor.rand(spec, 10, 4)
    state["sharded"] = old
    shard = old.local_shards()[0].tensor.clone()
    staged = CairnStager(top).stage(state)
    assert staged["model"]["head"] is staged["model"]["embed"]
    for name, t in state["model"].items():
        s = staged["model"][name]
        assert type(s) is DTensor and s.placements == t.placements and s.shape == t.shape
        assert s.device_mesh is t.device_mesh and s._local_tensor is not t._local_tensor
    model.spoil(state)
    old.local_shards()[0].tensor.zero_()
    model.expect(staged, 3)
    got = staged["sharded"]
    assert type(got) is type(old) and got.metadata() == old.metadata()
    equal(got.local_shards()[0].tensor, shard)


# --- memory ------------------------------------------------------------------------------------


def changed_after(top):
    state = {f"w{i}": numbers(50, 50, seed=i) for i in range(20)}
    want = {k: v.clone() for k, v in state.items()}
    staged = CairnStager(top).stage(state)
    for t in state.values():
        t.fill_(-1)
    equal(staged, want)


def again(top):
    """The same tensors: the same memory. Others, also of the same shapes: memory of their own."""
    stager = CairnStager(top)
    model = {"a": numbers(1000), "b": numbers(7, 7)}
    average = {k: v + 1 for k, v in model.items()}
    first = stager.stage(model)
    address = first["a"].data_ptr()
    model["a"].add_(1)
    second = stager.stage(model)
    assert second["a"].data_ptr() == address and stager.memory.stats()["mapped"] == 1
    equal(second, model)
    third = stager.stage(average)
    equal(second, model), equal(third, average)
    assert stager.memory.stats()["buffers"] == 2
    # Half of them are others: what was staged of those stays as it was.
    half = {"a": model["a"], "b": average["b"]}
    fourth = stager.stage(half)
    equal(fourth, half), equal(second, model), equal(third, average)


def steady(top):
    """From the third step on nothing is mapped or registered."""
    with CairnStager(top) as stager:
        model = {f"w{i}": numbers(64, 1024, seed=i) for i in range(10)}
        for step in range(6):
            # A new scalar each step, as optimizers have, changes nothing.
            model["step"] = torch.tensor(float(step))
            staged = stager.stage(model)
            stager.commit(f"{top}/steady.pt", staged)
            cairnfs.wait(f"{top}/steady.pt")
            stats = stager.memory.stats()
            if step == 2:
                before = stats
        for name in ("mapped", "registrations"):
            assert stats.get(name) == before.get(name), (before, stats)
        equal(torch.load(f"{top}/steady.pt"), model)


def dropped(top):
    """Memory goes with the tensors, and not before the staged ones are gone."""
    for layout in ("torch", "dcp"):
        stager = CairnStager(top, layout=layout)
        model = {"a": numbers(5000), "b": numbers(5000, seed=1)}
        staged = stager.stage(model)
        collect()
        assert stager.memory.stats()["buffers"] == 1
        kept = staged["b"]
        del staged, model
        collect()
        eco.same(kept, numbers(5000, seed=1))
        assert stager.memory.stats()["buffers"] == 1
        del kept
        collect()
        assert stager.memory.stats()["buffers"] == 0, stager.memory.stats()
        assert not stager._pending and not stager._layouts
        # One of them lives: it may be staged again.
        model = {"a": numbers(5000), "b": numbers(5000, seed=1)}
        stager.stage(model)
        del model["b"]
        collect()
        assert stager.memory.stats()["buffers"] == 1
        model = None
        collect()
        assert stager.memory.stats()["buffers"] == 0
    keeper = CairnStager(top, keep_memory=True)
    for _ in range(3):
        keeper.stage({"a": numbers(5000)})
        collect()
    assert keeper.memory.stats()["mapped"] == 1


def grown(top):
    """Storages that change their size, tensors that come and go."""
    stager = CairnStager(top)
    model = {"a": numbers(100), "b": numbers(10)}
    for step in range(8):
        model["a"].resize_(100 + 3000 * step).fill_(step)
        if step == 4:
            model["c"] = numbers(3, 3)
        if step == 6:
            del model["b"]
        # Clones: a storage that numpy has seen cannot be resized.
        want = {k: v.clone() for k, v in model.items()}
        staged = stager.stage(model)
        equal(staged, want)
        stager.commit(f"{top}/grown.pt", staged)
        equal(torch.load(f"{top}/grown.pt"), want)


def closed(top):
    stager = CairnStager(top)
    model = {"a": numbers(5000)}
    staged = stager.stage(model)
    stager.close()
    stager.close()
    equal(staged, model)
    raises(ValueError, stager.stage, model)


def later(top):
    """use_async_staging and non_blocking."""
    with CairnStager(top, use_async_staging=True) as stager:
        model = {"a": numbers(100, 1000)}
        future = stager.stage(model)
        equal(future.result(), model)
        stager.disallow_state_dict_read()
        future = stager.stage(model)
        assert not future.done()
        model["a"].add_(1)
        stager.allow_state_dict_read()
        equal(future.result(), model)
        stager.synchronize_staging()
    with CairnStager(top) as stager:
        staged = stager.stage(model, non_blocking=True)
        stager.synchronize()
        equal(staged, model)


# --- files -------------------------------------------------------------------------------------


def state_for_file():
    base = numbers(60, 50, seed=9)
    return {
        "base": base, "view": base[3:5, 1:7], "t": base.t(), "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 4), "types": {str(d): numbers(4, 9, dtype=d) for d in TYPES},
        "list": [1, "two", (base, None)], "bytes seen otherwise": base.view(torch.int32),
        "conj": numbers(4, dtype=torch.complex64).conj(),
        "large": numbers(1 << 20, seed=4),
    }


def files(top):
    top = os.path.join(top, "with" if cairnfs.library() else "without")
    os.mkdir(top)
    devices = staging.keeps_devices(top)
    with CairnStager(top) as stager:
        for step in range(3):
            staged = stager.stage(state_for_file())
            stager.commit(f"{top}/step-{step}.pt", staged)
            if devices:
                assert cairnfs.device_of(f"{top}/step-{step}.pt") == "cpu"
        # What stage() returned, changed: still a file of all of it.
        staged = stager.stage({"a": numbers(1 << 18), "b": numbers(1 << 19), "c": numbers(9)})
        staged["new"], staged["a"] = numbers(1 << 17), None
        stager.commit(f"{top}/edited.pt", staged)
        stager.commit(f"{top}/twice.pt", staged)
        stager.save({"x": numbers(11)}, f"{top}/saved.pt")
        stager.save({"x": numbers(12)}, f"{top}/saved.pt")
        raises(FileExistsError, stager.save, {"x": numbers(1)}, f"{top}/saved.pt", exclusive=True)
        # another process makes it after it was looked for
        with unittest.mock.patch("os.path.lexists", return_value=False):
            before = os.stat(f"{top}/saved.pt").st_ino
            raises(FileExistsError, stager.save, {"x": numbers(1)}, f"{top}/saved.pt", exclusive=True)
            assert os.stat(f"{top}/saved.pt").st_ino == before
            assert not [n for n in os.listdir(top) if n.startswith(".saved.pt")], os.listdir(top)
        raises(FileNotFoundError, stager.save, {"x": numbers(1)}, f"{top}/nowhere/x.pt")
        stager.save({"x": numbers(13)}, f"{top}/excl.pt", exclusive=True)
        stager.save({"x": torch.eye(5).to_sparse()}, f"{top}/sparse.pt")
        del staged
        collect()
        assert not stager._pending
        many = {f"t{i}": numbers(3, seed=i) for i in range(300)}
        stager.save({"many": many, "text": "x" * 400000}, f"{top}/many.pt")
        stager.save({"many": many, "text": "x" * 400000}, f"{top}/many.pt")
    with CairnStager(top, crc32=True) as stager:
        stager.save(state_for_file(), f"{top}/crc.pt")
        with zipfile.ZipFile(f"{top}/crc.pt") as z:
            assert z.testzip() is None
    # No path: the first commit shows where to.
    with CairnStager() as stager:
        for _ in range(3):
            stager.save({"x": numbers(14)}, f"{top}/late.pt")
        assert (stager.memory.mount is None) or stager.memory.mount == os.environ["MOUNT"]
    # Recorded as torch.save would; here there is none, so the CPU.
    with CairnStager(top) as stager:
        staged = stager.stage({"x": numbers(15)})
        stager._pending[0].devices[0] = "cuda:1"
        stager.commit(f"{top}/device.pt", staged)
        if devices:
            assert cairnfs.device_of(f"{top}/device.pt") == "cuda:1"
    assert [n for n in os.listdir(top) if n.endswith(".tmp")] == []


def read(top):
    for where in ("with", "without"):
        folder = os.path.join(top, where)
        if not os.path.isdir(folder):
            continue
        for step in range(3):
            path = f"{folder}/step-{step}.pt"
            for got in (torch.load(path), torch.load(path, mmap=True), cairnfs.load(path),
                        cairnfs.load(path, weights_only=False)):
                want = state_for_file()
                assert torch.equal(got.pop("conj"), want.pop("conj"))
                equal(got, want)
                assert got["list"][2][0] is got["base"]
                assert got["view"].untyped_storage()._cdata == got["t"].untyped_storage()._cdata
                got["base"].zero_()
                assert not got["view"].any() and not got["bytes seen otherwise"].any()
        eco.same(torch.load(f"{folder}/crc.pt")["large"], state_for_file()["large"])
        for name in ("edited", "twice"):
            for load in (torch.load, cairnfs.load):
                equal(load(f"{folder}/{name}.pt"), {
                    "a": None, "b": numbers(1 << 19), "c": numbers(9), "new": numbers(1 << 17)})
        for name, n in (("saved", 12), ("excl", 13), ("late", 14), ("device", 15)):
            equal(cairnfs.load(f"{folder}/{name}.pt"), {"x": numbers(n)})
        assert len(torch.load(f"{folder}/many.pt")["many"]) == 300
        for load in (torch.load, cairnfs.load):
            assert torch.equal(load(f"{folder}/sparse.pt")["x"].to_dense(), torch.eye(5))
        seen = []
        cairnfs.load(f"{folder}/device.pt", map_location=lambda d, to=seen: to.append(d) or "cpu")
        assert seen == ["cuda:1"], seen
        eco.cairn_agrees(f"{folder}/saved.pt", {"x": numbers(12)})
        eco.cairn_agrees(f"{folder}/many.pt", {f"many.t{i}": numbers(3, seed=i)
                                               for i in range(300)})


def foreign(top):
    """cairnfs.load of what torch.save wrote, and of what is no such file."""
    torch.save(state_for_file()["types"], f"{top}/torch.pt")
    equal(cairnfs.load(f"{top}/torch.pt"), state_for_file()["types"])
    torch.save({"x": numbers(3)}, f"{top}/old.pt", _use_new_zipfile_serialization=False)
    equal(cairnfs.load(f"{top}/old.pt"), {"x": numbers(3)})
    with open(f"{top}/torch.pt", "rb") as f:
        whole = f.read()
    generator = __import__("random").Random(5)
    for i in range(150):
        broken = bytearray(whole)
        for _ in range(1 + i % 5):
            # Mostly where the directory and the pickle are.
            at = generator.randrange(len(broken) - 2500 if i % 2 else 0, len(broken))
            broken[at] = generator.randrange(256)
        if i % 7 == 0:
            del broken[generator.randrange(len(broken)):]
        with open(f"{top}/broken.pt", "wb") as f:
            f.write(broken)
        try:
            cairnfs.load(f"{top}/broken.pt")
        except Exception:       # any, so long as it is one
            pass
    for name in ("torch", "old", "broken"):
        os.unlink(f"{top}/{name}.pt")


ROWS = [structure, cycles, others, shared, small, types, kinds, changed_after, again, steady,
        dropped, grown, closed, later, foreign, files]


def save(top):
    for row in ROWS:
        print("#", row.__name__, flush=True)
        staging.each_memory(row, top)
        collect()
    staging.each_memory(eco.ranks, 2, dtensors, top)


def check(top):
    read(top)


if __name__ == "__main__":
    eco.main(save, check)
