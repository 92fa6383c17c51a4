"""Train a small network that may be killed at any moment: started again, it goes on.

    python resumable.py cpu run.pt        # from the beginning, or from run.pt if it is there
    python resumable.py cpu run.pt 37     # the process ends itself, at once, after step 37

The device is cpu or cuda.
"""

import argparse
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "keep"))

from checkpoint import save
from order import Order
from progress import Progress
from resume import resume

STEPS, EVERY, BATCH = 60, 10, 32  # 320 examples make 10 steps an epoch


def build(seed, device):
    """All that changes while training, new: a checkpoint is loaded into this."""
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
    layers = nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
        "scaler": torch.amp.GradScaler(device, growth_interval=4),
        "progress": Progress(),
    }


def train(parts, until, device, path=None, die_after=None, own_generator=True):
    """Train from wherever `parts` are to the step `until`; save to `path` every EVERY steps."""
    model, optimizer, scheduler, scaler, progress = parts.values()
    examples = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(320, 20, generator=examples), torch.arange(320) % 3)
    order = Order(len(data), BATCH, step=progress.step)
    generator = torch.Generator() if own_generator else None
    for inputs, labels in DataLoader(data, batch_sampler=order, generator=generator):
        if progress.step == until:
            break
        inputs = inputs + 0.1 * torch.randn(inputs.shape)  # three ways to augment,
        inputs = inputs * np.random.uniform(0.9, 1.1) + random.gauss(0, 0.1)  # dropout is a fourth
        with torch.autocast(device, torch.float16):
            loss = F.cross_entropy(model(inputs.to(device, torch.float32)), labels.to(device))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        progress.step += 1
        if path and progress.step % EVERY == 0:
            save(path, **parts)
        if progress.step == die_after:
            os._exit(1)  # no farewell: as after kill -9, or when the time is up


def main(device, path, die_after=None):
    """Train to the last step; return the step after which it began."""
    if device == "cuda":  # what runs here repeats on a CPU as it is
        torch.use_deterministic_algorithms(True)
    parts = build(1, device)
    if os.path.exists(path):
        resume(path, **parts)
    begin = parts["progress"].step
    print("begins after step", begin)
    train(parts, STEPS, device, path, die_after)
    return begin


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("path", help=f"the checkpoint, written every {EVERY} steps")
    parser.add_argument("die_after", nargs="?", type=int, help="the step after which to die")
    main(**vars(parser.parse_args()))
