"""in_pieces.py: a batch that does not fit, in as many pieces as it takes."""

import gc

import torch
from torch import nn


def in_pieces(train, pieces=1, most=64):
    """Call train(pieces), with twice as many pieces whenever memory runs out."""
    while True:
        try:
            train(pieces)
            return pieces
        except torch.OutOfMemoryError:
            if 2 * pieces > most:
                raise
        pieces *= 2  # after the block: here the failed step's tensors are gone
        gc.collect()  # also those in reference cycles


def train(pieces):
    optimizer.zero_grad()  # a failed backward pass leaves gradients behind
    for x, y in zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        (loss * len(x) / len(inputs)).backward()  # each piece by its share of the batch
    optimizer.step()


device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(100, 10, device=device)
optimizer = torch.optim.AdamW(model.parameters())
inputs, targets = torch.randn(64, 100), torch.randint(10, (64,))
print("pieces:", in_pieces(train))
