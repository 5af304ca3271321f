# SPDX-License-Identifier: MIT
"""What a checkpoint of the campaign contains: it follows from the seed alone, for who writes and who judges."""
import io
import pickle
import random
import re
import sys
import types

SHARDS = 2
_NAME = "torch.distributed.checkpoint.metadata"


def _class(name):
    """A class that pickles as DCP's own; torch is not needed."""
    for part in ("torch", "torch.distributed", "torch.distributed.checkpoint", _NAME):
        sys.modules.setdefault(part, types.ModuleType(part))
    made = type(name, (), {"__module__": _NAME, "__init__": lambda self, **k: self.__dict__.update(k)})
    setattr(sys.modules[_NAME], name, made)
    return made


Metadata, MetadataIndex, _StorageInfo = map(_class, ("Metadata", "MetadataIndex", "_StorageInfo"))


class Content:
    """Sizes are from `smallest` to `largest`, most of them near the smallest."""

    def __init__(self, seed, nodes, smallest, largest, shards=SHARDS):
        self.seed, self.nodes, self.smallest, self.largest, self.shards = seed, nodes, smallest, largest, shards
        self.base = random.Random(seed).randbytes(1 << 20)

    def names(self, node):
        return [f"__{node}_{i}.distcp" for i in range(self.shards)]

    def all_names(self):
        return [n for node in range(self.nodes) for n in self.names(node)]

    def size(self, step, name):
        rng = random.Random(f"{self.seed} {step} {name}")
        return self.smallest + int((self.largest - self.smallest) * rng.random() ** 4)

    def shard(self, step, name):
        size = self.size(step, name)
        rng = random.Random(f"{self.seed} {step} {name} at")
        at = rng.randrange(len(self.base))
        head = f"{self.seed} {step} {name}\n".encode()
        body = head + self.base[at:] + self.base[:at]
        return (body * (size // len(body) + 1))[:size]

    def tensor(self, step, name):
        return f"model.{name}"

    def metadata(self, step):
        data = {}
        for name in self.all_names():
            data[MetadataIndex(fqn=self.tensor(step, name), offset=None, index=0)] = _StorageInfo(
                relative_path=name, offset=0, length=self.size(step, name))
        out = io.BytesIO()
        pickle.Pickler(out, protocol=4).dump(Metadata(state_dict_metadata={}, planner_data=None, storage_data=data))
        return out.getvalue()


class SameSize(Content):
    """Each save has the same names and sizes, and bytes of its own."""

    def size(self, step, name):
        return max(super().size(0, name), 200)

    def tensor(self, step, name):
        return f"save.{step}.{name}"

    def save_of(self, name, data):
        """Of which save these bytes are; None: of none."""
        pattern = rb"save\.(\d+)\." if name == ".metadata" else rf"{self.seed} (\d+) {name}\n".encode()
        found = re.search(pattern, data[:4096])
        if not found:
            return None
        save = int(found[1])
        want = self.metadata(save) if name == ".metadata" else self.shard(save, name)
        return save if data == want else None
