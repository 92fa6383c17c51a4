"""repeatable.py: one seed, one result."""

import random

import numpy as np
import torch


def seed_everything(seed, deterministic=True):
    """Seed this process; if deterministic, raise where an operation cannot repeat itself.

    Returns one ``DataLoader``'s generator; a second takes ``torch.Generator().manual_seed(n)``.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # the CPU's generator, and every GPU's
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(deterministic)
    # Otherwise deterministic mode fills fresh memory with NaN, for GPT-2 most of its price.
    torch.utils.deterministic.fill_uninitialized_memory = False
    return torch.Generator().manual_seed(seed + 2**31)  # not the numbers of torch.manual_seed


def train(device):
    """The sum of a gradient that has a hundred different rows added up in each place."""
    rows = torch.randperm(1000, generator=seed_everything(0)).to(device)
    table = torch.ones(10, 64, device=device, requires_grad=True)
    chosen = table.index_select(0, rows % 10)  # a hundred times each row
    (chosen * torch.randn(1000, 64, device=device)).sum().backward()
    return table.grad.double().sum().item()


if __name__ == "__main__":
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"three runs from one seed, {len({train(device) for _ in range(3)})} result")
