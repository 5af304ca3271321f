# SPDX-License-Identifier: MIT
# needs: torch safetensors
# timeout: 600
"""safetensors, from 0.5 on: each release writes, each reads what every other wrote."""

import glob
import os
import sys

import torch

import eco


def tensors():
    return {
        "a": eco.numbers((300, 513), seed=1), "b": eco.numbers((7, 5), torch.bfloat16, seed=2),
        "c": eco.numbers((2 << 20,), torch.int8, seed=3), "d": torch.empty(0, 3),
        "e": torch.tensor(7, dtype=torch.int64),
        "f": eco.numbers((3, 8), torch.float8_e4m3fn, seed=4),
    }


def releases():
    """{version: where it lies, None = in the environment}."""
    found = {"0.8.0": None}
    for path in glob.glob(os.environ["ECOSYSTEM"] + "/safetensors==*"):
        found[path.split("==")[1]] = path
    return found


def with_release(version, folder, body, top):
    """In a child: torch is there already, safetensors comes from the release's own folder."""
    assert "safetensors" not in sys.modules
    if folder:
        sys.path.insert(0, folder)
    body(top, version)


def one_save(top, version):
    import safetensors
    from safetensors.torch import save_file
    assert safetensors.__version__ == version, safetensors.__version__
    os.makedirs(f"{top}/{version}")
    path, mine = f"{top}/{version}/model.safetensors", tensors()
    save_file({k: torch.zeros_like(v) for k, v in mine.items()}, path)
    save_file(mine, path, metadata={"format": "pt", "by": version})    # over the first
    for t in mine.values():
        t.zero_()


def one_check(top, version):
    from safetensors import safe_open
    from safetensors.torch import load_file
    want = tensors()
    for writer in releases():
        path = f"{top}/{writer}/model.safetensors"
        assert os.listdir(os.path.dirname(path)) == ["model.safetensors"]
        eco.same_dict(load_file(path), want)
        with safe_open(path, framework="pt") as f:
            assert f.metadata()["by"] == writer
            eco.same(f.get_slice("a")[17:101, 3:200], want["a"][17:101, 3:200], "slice")
        with open(path, "rb") as f:
            from safetensors.torch import load
            eco.same_dict(load(f.read()), want)


def each(body, top):
    for version, folder in releases().items():
        eco.finish(eco.child(with_release, version, folder, body, top))


def save(top):
    assert len(releases()) >= 4, releases()
    each(one_save, top)


def check(top):
    each(one_check, top)
    for version in releases():
        eco.cairn_agrees(f"{top}/{version}", tensors())


eco.main(save, check)
