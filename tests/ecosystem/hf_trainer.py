# SPDX-License-Identifier: MIT
# needs: torch trainers
# timeout: 600
"""Hugging Face Trainer (with accelerate): checkpoints, rotation, resuming; save_pretrained shards.

`cairn import` of its optimizer, schedule and generators."""

import os
import subprocess

import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, logging

import eco


logging.disable_progress_bar()


def model():
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=512,
                                      n_positions=32, bos_token_id=0, eos_token_id=0))


def data():
    g = torch.Generator().manual_seed(2)
    rows = torch.randint(0, 512, (64, 16), generator=g)
    return [{"input_ids": r, "labels": r} for r in rows]


def trainer(folder, steps):
    args = TrainingArguments(output_dir=folder, max_steps=steps, save_steps=2, save_total_limit=2,
                             per_device_train_batch_size=4, report_to=[], use_cpu=True,
                             disable_tqdm=True, logging_steps=1000, seed=3,
                             lr_scheduler_type="constant")
    return Trainer(model=model(), args=args, train_dataset=data())


def weights(net):
    return {n: t.detach().clone() for n, t in net.state_dict().items()}


# What lies beside the weights, numpy's generator among it.
OTHERS = ("optimizer.pt", "scheduler.pt", "rng_state.pth")


def checkpoints(folder):
    return sorted(n for n in os.listdir(folder) if n.startswith("checkpoint-"))


def save(top):
    straight = trainer(f"{top}/straight", 8)
    straight.train()
    torch.save(weights(straight.model), f"{top}/straight.pt")

    # Stopped after six steps and gone on with from there: the same weights, to the bit.
    trainer(f"{top}/run", 6).train()
    assert checkpoints(f"{top}/run") == ["checkpoint-4", "checkpoint-6"], os.listdir(f"{top}/run")
    resumed = trainer(f"{top}/run", 8)
    resumed.train(resume_from_checkpoint=True)
    eco.same_dict(weights(resumed.model), torch.load(f"{top}/straight.pt", weights_only=True))
    resumed.model.save_pretrained(f"{top}/sharded", max_shard_size="100KB")
    os.mkdir(f"{top}/imported")
    for name in OTHERS:
        subprocess.run([eco.CAIRN, "import", f"{top}/run/checkpoint-8/{name}", f"{top}/imported/{name}"], check=True)


def check(top):
    want = torch.load(f"{top}/straight.pt", weights_only=True)
    assert checkpoints(f"{top}/run") == ["checkpoint-6", "checkpoint-8"], os.listdir(f"{top}/run")
    for path in (f"{top}/run/checkpoint-8", f"{top}/straight/checkpoint-8", f"{top}/sharded"):
        got = GPT2LMHeadModel.from_pretrained(path)
        eco.same_dict(weights(got), want)
        assert got.lm_head.weight.data_ptr() == got.transformer.wte.weight.data_ptr()
    assert len([n for n in os.listdir(f"{top}/sharded") if n.endswith(".safetensors")]) > 2
    untied = {n: t for n, t in want.items() if n != "lm_head.weight"}
    eco.same_dict(load_file(f"{top}/run/checkpoint-8/model.safetensors"), untied)
    eco.cairn_agrees(f"{top}/run/checkpoint-8/model.safetensors", untied)
    eco.cairn_agrees(f"{top}/sharded", untied)
    for name in OTHERS:
        eco.equal(eco.as_dict(f"{top}/imported/{name}"),
                  torch.load(f"{top}/run/checkpoint-8/{name}", weights_only=False), name)


if __name__ == "__main__":
    eco.main(save, check)
