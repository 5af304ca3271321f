# SPDX-License-Identifier: MIT
# needs: torch trainers
# timeout: 600
"""Lightning: save_top_k with save_last, as a copy and as a link; resuming. `cairn import` of its file."""

import logging
import os
import subprocess

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import eco


class Net(lightning.LightningModule):
    def __init__(self, width=256, shape=torch.Size([32, 4])):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(shape[0], width), torch.nn.Tanh(),
                                          torch.nn.Linear(width, shape[1]))

    def training_step(self, batch, _):
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def fit(folder, last, steps, resume=None):
    torch.manual_seed(7)
    net = Net()
    rows = torch.utils.data.TensorDataset(eco.numbers((4, 32), torch.uint8, seed=1).float().repeat(8, 1))
    keep = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=2, save_top_k=2,
                           monitor="step", mode="max", save_last=last)
    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", devices=1, logger=False,
                                enable_progress_bar=False, enable_model_summary=False,
                                callbacks=[keep], default_root_dir=folder)
    trainer.fit(net, torch.utils.data.DataLoader(rows, batch_size=4), ckpt_path=resume)
    return {n: t.detach().clone() for n, t in net.state_dict().items()}


def save(top):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    want = fit(f"{top}/copy", True, 8)
    torch.save(want, f"{top}/want.pt")
    fit(f"{top}/link", "link", 6)
    assert os.path.islink(f"{top}/link/last.ckpt")
    eco.same_dict(fit(f"{top}/link", "link", 8, f"{top}/link/last.ckpt"), want)
    subprocess.run([eco.CAIRN, "import", f"{top}/copy/step=8.ckpt", f"{top}/imported"], check=True)


def check(top):
    want = torch.load(f"{top}/want.pt", weights_only=True)
    for name in ("copy", "link"):
        files = sorted(os.listdir(f"{top}/{name}"))
        assert "last.ckpt" in files and "step=8.ckpt" in files, files
        for path in (f"{top}/{name}/last.ckpt", f"{top}/{name}/step=8.ckpt"):
            got = torch.load(path, weights_only=True)
            assert got["global_step"] == 8 and got["hyper_parameters"]["shape"] == torch.Size([32, 4])
            eco.same_dict(got["state_dict"], want)
    assert os.readlink(f"{top}/link/last.ckpt") == "step=8.ckpt"
    found = eco.by_cairn(f"{top}/copy/step=8.ckpt")
    eco.same_dict({n: found["state_dict." + n] for n in want}, want)
    again = eco.as_dict(f"{top}/imported")
    eco.same_dict(again["state_dict"], want)
    assert again["hyper_parameters"] == {"width": 256, "shape": torch.Size([32, 4])}, again["hyper_parameters"]


if __name__ == "__main__":
    eco.main(save, check)
