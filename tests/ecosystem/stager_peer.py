# SPDX-License-Identifier: MIT
# needs: torch
# modes: fast
# timeout: 300
"""CairnStager beside PyTorch's own StateDictStager, on the same inputs: the same structure, the same
objects shared, the same storages shared, the same bits; and where they differ, how."""

import collections
import ctypes
import dataclasses
import types
import typing

import torch
from torch.distributed.checkpoint._state_dict_stager import StateDictStager

import cairnfs
import eco
import staging
from cairnfs import CairnStager
from staging import collect, equal, raises


class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: typing.Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    w: torch.Tensor
    deep: typing.Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    w: torch.Tensor
    deep: typing.Any = None


@dataclasses.dataclass(slots=True)
class WithSlots:
    w: torch.Tensor
    deep: typing.Any


class Base:
    __slots__ = ("a",)


class Derived(Base):
    __slots__ = ("b", "__dict__")


class State:
    """Rebuilt by code of its own, which looks at the tensor."""

    def __init__(self, t):
        self.t, self.low, self.left_out = t, t.min().item(), 1

    def __getstate__(self):
        return {"t": self.t, "low": self.low}

    def __setstate__(self, state):
        assert state["t"].min().item() == state["low"], "the bytes are not there yet"
        self.__dict__.update(state)


class Checked(list):
    """Takes only what it has looked at."""

    def append(self, t):
        assert t.sum().item() == 6, "the bytes are not there yet"
        super().append(t)


class Reduced:
    def __init__(self, t):
        assert t.sum().item() == 6, "the bytes are not there yet"
        self.t = t

    def __reduce__(self):
        return Reduced, (self.t,)


class Bound:
    def __init__(self, t):
        self.t = t

    def method(self):
        return self.t


class SubList(list):
    pass


class SubDict(dict):
    pass


class SubTuple(tuple):
    pass


def six():
    return torch.tensor([1., 2., 3.])


def slots():
    x = Derived()
    x.a, x.b, x.c = six(), [six()], "c"
    return x


def attributes():
    t = six()
    t.note, t.other = ["n"], torch.ones(2)
    return t


def optimizer():
    p = torch.nn.Parameter(torch.ones(3))
    found = torch.optim.Adam([p])
    p.grad = torch.ones(3)
    found.step()
    return found.state_dict()


def cycle():
    x = [six()]
    x.append({"me": x, "t": (x, x[0])})
    return x


def shared():
    base = eco.numbers((6, 8), torch.float32, 1)
    return {
        "base": base, "again": base, "rows": base[1:3], "columns": base[:, 2:5], "t": base.t(),
        "flat": base.view(-1), "step": base.view(-1)[3::5], "seen as": base.view(torch.int32),
        "odd": base.as_strided((2, 2), (7, 3), 4), "expanded": base[0, :1].expand(5),
        "still": torch.ones(3, 1).expand(3, 4), "other": base.clone(),
        "last": base.view(-1)[47:], "none": base[6:],
    }


def inference():
    with torch.inference_mode():
        return torch.ones(3)


TYPES = [getattr(torch, n) for n in (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool complex32 "
    "complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2 bits8").split() if hasattr(torch, n)]


def of_type(d):
    return torch.arange(1, 17, dtype=torch.uint8).view(d)


# Each gives the same from both.
SAME = {
    "named tuple": lambda: Pair(six(), Pair(six(), 1)),
    "frozen": lambda: Frozen(six(), Frozen(six(), [1])),
    "frozen slots": lambda: FrozenSlots(six(), [FrozenSlots(six())]),
    "slots": lambda: WithSlots(six(), WithSlots(six(), {})),
    "derived slots": slots,
    "state": lambda: State(six()), "reduced": lambda: Reduced(six()),
    "checked": lambda: Checked([six()]),
    "list": lambda: [six(), [six()]], "sub list": lambda: SubList([six()]),
    "sub dict": lambda: SubDict(a=six()), "sub tuple": lambda: SubTuple((six(), 1)),
    "ordered": lambda: collections.OrderedDict(b=six(), a=1),
    "default": lambda: collections.defaultdict(list, {1: [six()]}),
    "user dict": lambda: collections.UserDict({"a": six()}),
    "chain": lambda: collections.ChainMap({"a": six()}, {"b": 1}),
    "deque": lambda: collections.deque([six(), 2], maxlen=3),
    "space": lambda: types.SimpleNamespace(t=six(), n=1),
    "method": lambda: Bound(six()).method, "set": lambda: {1, "a", (2, 3)},
    "frozenset": lambda: frozenset([1]), "bytearray": lambda: bytearray(b"xyz"),
    "atoms": lambda: (None, 1, 2.5, True, 1j, b"b", "s", range(3), int, len, six, ...,
                      torch.float8_e5m2, torch.device("cpu"), torch.Size([1, 2]),
                      torch.channels_last),
    "same tuple": lambda: (1, ("a", None)), "cycle": cycle, "shared": shared,
    "module": lambda: torch.nn.BatchNorm1d(3).state_dict(), "optimizer": optimizer,
    "attributes": attributes, "generator": lambda: torch.Generator().manual_seed(77),
    "zero": lambda: [torch.empty(0), torch.empty(3, 0, 5), torch.ones(4)[4:]],
    "scalars": lambda: [torch.tensor(2.5), torch.tensor(7), torch.tensor(True), torch.ones(1)],
    "types": lambda: {str(d): of_type(d) for d in TYPES},
    "storage": lambda: six().untyped_storage(), "typed": lambda: six().storage(),
    "inference": inference, "not leaf": lambda: torch.ones(2, requires_grad=True) * 2,
    "packed": lambda: torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]),
    "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "tensor as a key": lambda: {"k": {six(): 1}},
}


def raw(s):
    """A storage's bytes."""
    return ctypes.string_at(s.data_ptr(), s.nbytes()) if s.nbytes() else b""


class Picture:
    """What can be told of a structure: which objects it has, which are one, which lie on one storage."""

    def __init__(self, whole_storages):
        self.whole = whole_storages
        self.objects, self.storages, self.keep = {}, {}, []

    def storage(self, s):
        if s._cdata not in self.storages:
            self.storages[s._cdata] = len(self.storages)
            self.keep.append(s)
        return ("storage", self.storages[s._cdata] if s.nbytes() else None,
                raw(s) if self.whole else None)

    def tensor(self, t):
        bits = t
        if not bits.is_contiguous() or bits.is_neg():
            bits = bits.resolve_neg().contiguous()
        bits = bits.detach().clone().as_subclass(torch.Tensor)
        place = (t.stride(), t.storage_offset()) if self.whole else ()
        return (t.dtype, tuple(t.size()), *place, t.is_neg(), t.requires_grad, str(t.device),
                self.storage(t.untyped_storage()) if self.whole else None,
                raw(bits.untyped_storage()) if bits.numel() else b"")

    def __call__(self, x):
        if isinstance(x, (type(None), int, float, complex, str, bytes, type, types.FunctionType,
                          types.BuiltinFunctionType, torch.dtype, torch.device)):
            return repr(x)
        if id(x) in self.objects:
            return "one that was seen", self.objects[id(x)]
        self.objects[id(x)] = len(self.objects)
        self.keep.append(x)
        return (type(x).__name__, *self.parts(x))

    def parts(self, x):
        own = self(dict(getattr(x, "__dict__", {})) or None)
        if isinstance(x, torch.Tensor):
            return self.tensor(x), own
        if isinstance(x, torch.storage.TypedStorage):
            return self.storage(x._untyped_storage), x.dtype
        if isinstance(x, torch.UntypedStorage):
            return (self.storage(x),)
        if isinstance(x, torch.Generator):
            return (raw(x.get_state().untyped_storage()),)
        if isinstance(x, types.MethodType):
            return self(x.__func__), self(x.__self__)
        found = [self(getattr(x, n)) for c in type(x).__mro__ for n in getattr(c, "__slots__", ())
                 if n != "__dict__" and hasattr(x, n)]
        if isinstance(x, (dict, types.MappingProxyType)):
            found += [(self(k), self(v)) for k, v in x.items()]
        elif isinstance(x, (set, frozenset)):
            found.append(sorted(map(repr, x)))
        elif isinstance(x, (list, tuple, collections.deque)):
            found += [self(v) for v in x]
        elif type(x) in (bytearray, range, torch.Size, type(...), torch.memory_format):
            found.append(repr(x))
        return own, found


def picture(x, whole_storages=True):
    return Picture(whole_storages)(x)


def tensors(x, found=None, seen=None):
    """All tensors and storages below x."""
    found, seen = [] if found is None else found, set() if seen is None else seen
    if id(x) in seen:
        return found
    seen.add(id(x))
    if isinstance(x, torch.Tensor):
        found.append(x)
    elif isinstance(x, torch.storage.TypedStorage):
        found.append(torch.empty(0, dtype=torch.uint8).set_(x._untyped_storage))
    elif isinstance(x, torch.UntypedStorage):
        found.append(torch.empty(0, dtype=torch.uint8).set_(x))
    elif isinstance(x, (dict, collections.UserDict)):
        for k, v in x.items():
            tensors(k, found, seen), tensors(v, found, seen)
    elif isinstance(x, (list, tuple, collections.deque)):
        for v in x:
            tensors(v, found, seen)
    elif isinstance(x, types.MethodType):
        tensors(x.__self__, found, seen)
    for v in getattr(x, "__dict__", {}).values():
        tensors(v, found, seen)
    for c in type(x).__mro__:
        for n in c.__dict__.get("__slots__", ()):
            if n != "__dict__" and hasattr(x, n):
                tensors(getattr(x, n), found, seen)
    return found


def spoil(x):
    for t in tensors(x):
        if t.numel() and not t.is_inference():
            torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).fill_(0xee)


def same(top):
    """By the picture, before and after the originals were written over."""
    for name, make in SAME.items():
        want = picture({"x": StateDictStager().stage({"x": make()})["x"]})
        for layout in ("torch", "dcp"):
            state = {"x": make()}
            # With "dcp" each tensor fills a storage of its own.
            whole = layout == "torch"
            expected = want if whole else picture(
                {"x": StateDictStager().stage({"x": make()})["x"]}, False)
            with CairnStager(top, layout=layout) as stager:
                for step in range(2):       # the second into memory that is known
                    staged = stager.stage(state)
                    spoil(state)
                    assert picture(staged, whole) == expected, (name, layout, step)
                    state = {"x": make()}
                del staged


def memo(top):
    """What is one object stays one, and what need not be copied is not."""
    t = six()
    state = {"a": t, "b": [t], "same": (1, 2), "f": Frozen(t), "f2": None}
    state["f2"] = state["f"]
    for stager in (StateDictStager(), CairnStager(top)):
        got = stager.stage(state)
        assert got["a"] is got["b"][0] is got["f"].w and got["f"] is got["f2"]
        assert got["same"] is state["same"] and got["f"] is not state["f"]


def reused(top):
    """The same tensors again: both into the memory of before. A storage that was resized: the peer
    gives up, ours makes space."""
    for stager in (StateDictStager(), CairnStager(top)):
        model = {"a": torch.ones(100), "b": torch.ones(50)[10:]}
        first = stager.stage(model)
        model["a"].fill_(2)
        second = stager.stage(model)
        assert second["a"].data_ptr() == first["a"].data_ptr() and first["a"][0] == 2
    peer, ours = StateDictStager(), CairnStager(top)
    t = torch.ones(8)
    peer.stage([t]), ours.stage([t])
    t.untyped_storage().resize_(64)
    t.set_(t.untyped_storage(), 0, (16,), (1,)).fill_(3)
    raises(AssertionError, peer.stage, [t])
    eco.same(ours.stage([t])[0], torch.full((16,), 3.))


def dropped(top):
    """The peer's cache and our memory go with the tensors."""
    peer, ours = StateDictStager(), CairnStager(top)
    model = {"a": torch.ones(5000), "b": torch.ones(5000)}
    peer.stage(model), ours.stage(model)
    assert len(peer._cached_storage_mapping) == 2 and ours.memory.stats()["buffers"] == 1
    del model
    collect()
    assert len(peer._cached_storage_mapping) == 0 and ours.memory.stats()["buffers"] == 0


def beyond(top):
    """What the peer refuses or loses, and ours keeps."""
    peer, ours = StateDictStager(), CairnStager(top)

    def both(x):
        return peer.stage({"x": x})["x"], ours.stage({"x": x})["x"]

    z = torch.tensor([1 + 2j, 3 - 1j])
    lost, kept = both(z.conj())
    assert not torch.equal(lost, z.conj()), "the peer keeps conjugation now"
    assert kept.is_conj() and torch.equal(kept, z.conj())
    lost, kept = both(z.conj().imag)
    assert not torch.equal(lost, z.conj().imag), "the peer keeps negation now"
    assert kept.is_neg() and torch.equal(kept, z.conj().imag)
    lost, kept = both(torch.nn.Parameter(six()))
    assert type(lost) is torch.Tensor and not lost.requires_grad
    assert type(kept) is torch.nn.Parameter and kept.requires_grad
    kept = ours.stage([torch.nn.Parameter(six(), requires_grad=False)])[0]
    assert type(kept) is torch.nn.Parameter and not kept.requires_grad
    for x in (torch.eye(4).to_sparse(), torch.sparse_coo_tensor([[0, 0], [1, 1]], [1., 2.], (3, 3)),
              torch.eye(4).to_sparse_csr(), torch.eye(4).to_sparse_csc(),
              torch.eye(4).to_sparse_bsr((2, 2)), torch.eye(4).to_sparse_bsc((2, 2))):
        raises(RuntimeError, peer.stage, {"x": x})
        kept = ours.stage({"x": x})["x"]
        want = x.to_dense()
        x.values().zero_() if x.layout != torch.sparse_coo else x._values().zero_()
        assert kept.layout == x.layout and torch.equal(kept.to_dense(), want)
        if x.layout == torch.sparse_coo:
            assert kept.is_coalesced() == x.is_coalesced()
    raises(NotImplementedError, peer.stage, [torch.empty(3, device="meta")])
    assert ours.stage([torch.empty(3, 2, device="meta")])[0].is_meta
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    raises(RuntimeError, peer.stage, [ragged])
    got = ours.stage([ragged])[0]
    assert [t.tolist() for t in got.unbind()] == [[1, 1], [1, 1, 1]]
    for x in (torch.quantize_per_tensor(torch.ones(3), .1, 1, torch.qint8),
              torch.quantize_per_channel(torch.ones(2, 2), torch.tensor([.1, .2]),
                                         torch.tensor([0, 1]), 0, torch.qint8)):
        lost, kept = both(x)
        raises(RuntimeError, lost.qscheme)
        assert kept.qscheme() == x.qscheme() and torch.equal(kept.int_repr(), x.int_repr())
        assert torch.equal(kept.dequantize(), x.dequantize())
        assert kept.data_ptr() != x.data_ptr()
    freed = torch.ones(10)
    freed.untyped_storage().resize_(0)
    assert ours.stage([freed])[0].untyped_storage().nbytes() == 0


def refused(top):
    """What neither can stage: told by a TypeError or ValueError that names it, and nothing is left."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    cases = [(nested, TypeError, "nested"),
             (torch.nn.parameter.UninitializedParameter(), ValueError, "uninitialized"),
             ((i for i in "abc"), TypeError, "generator")]
    if torch.backends.mkldnn.is_available():
        cases.append((torch.ones(3, 3).to_mkldnn(), TypeError, "mkldnn"))
    for layout in ("torch", "dcp"):
        with CairnStager(top, layout=layout) as stager:
            for x, kind, word in cases:
                e = raises(kind, stager.stage, {"t": six(), "x": x})
                assert word in str(e), e
                assert not stager._pending and stager.memory.stats()["buffers"] == 0, word
                staging.equal(stager.stage({"t": six()}), {"t": six()})
                collect()
                stager.memory.trim()
    with CairnStager(top, layout="dcp") as stager:
        e = raises(TypeError, stager.stage, [torch.empty(4, dtype=torch.uint4)])
        assert "uint4" in str(e)


ROWS = [same, memo, reused, dropped, beyond, refused]


def save(top):
    for row in ROWS:
        print("#", row.__name__, flush=True)
        staging.each_memory(row, top)
        collect()
    with CairnStager(top) as stager:
        stager.save({n: SAME[n]() for n in ("shared", "types", "optimizer", "scalars", "zero")},
                    f"{top}/peer.pt")


def check(top):
    for load in (torch.load, cairnfs.load):
        got = load(f"{top}/peer.pt")
        for name in ("shared", "types", "optimizer", "scalars", "zero"):
            equal(got[name], SAME[name]())
        assert staging.storages(got["shared"]) == 3


if __name__ == "__main__":
    eco.main(save, check)
