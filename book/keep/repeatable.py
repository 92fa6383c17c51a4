"""repeatable.py: one seed, one result."""

import os
import random

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts; for old torch

import numpy as np
import torch


def seed_everything(seed, deterministic=True):
    """Seed this process; if deterministic, raise where an operation cannot repeat itself."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # the CPU's generator, and every GPU's
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(deterministic)
    return torch.Generator().manual_seed(seed)  # for DataLoader(..., generator=...)


def train(device):
    rows = torch.randperm(1000, generator=seed_everything(0)).to(device)
    table = torch.ones(10, 64, device=device, requires_grad=True)
    chosen = table.index_select(0, rows % 10)  # a hundred times each row
    (chosen * torch.randn(1000, 64, device=device)).sum().backward()
    return table.grad.double().sum().item()


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print(f"three runs from one seed, {len({train(device) for _ in range(3)})} result")
