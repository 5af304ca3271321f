# SPDX-License-Identifier: MIT
# needs: torch orbax
# timeout: 600
"""Orbax with jax: asynchronous saves with rotation, restored to the bit."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import eco

STEPS = 6


def state(step):
    tree = {}
    for i, (shape, dtype) in enumerate([((300, 257), "float32"), ((64, 64), "bfloat16"),
                                        ((9,), "int32"), ((2048, 512), "float32")]):
        rng = np.random.default_rng(100 * step + i)
        tree[f"layer{i}"] = {"w": jnp.asarray(rng.integers(-1000, 1000, shape)).astype(dtype)}
    tree["step"] = jnp.asarray(step)
    return tree


def manager(top):
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True, enable_async_checkpointing=True)
    return ocp.CheckpointManager(f"{top}/orbax", options=options)


def save(top):
    with manager(top) as m:
        for step in range(1, STEPS + 1):
            assert m.save(step, args=ocp.args.StandardSave(state(step)))
        m.wait_until_finished()


def bits(x):
    return np.asarray(x).tobytes(), str(x.dtype), x.shape


def check(top):
    dirs = sorted(n for n in os.listdir(f"{top}/orbax") if n.isdigit())
    assert dirs == [str(STEPS - 1), str(STEPS)], os.listdir(f"{top}/orbax")
    assert not [n for n in os.listdir(f"{top}/orbax") if "tmp" in n], os.listdir(f"{top}/orbax")
    with manager(top) as m:
        for step in (STEPS - 1, STEPS):
            got = m.restore(step, args=ocp.args.StandardRestore(state(0)))
            want = state(step)
            jax.tree.map(lambda g, w: np.testing.assert_equal(bits(g), bits(w)), got, want)


if __name__ == "__main__":
    eco.main(save, check)
