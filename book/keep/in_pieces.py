"""in_pieces.py: a batch that does not fit, in as many pieces as it takes."""

import gc

import torch
from torch import distributed, nn


def in_pieces(backward, size, pieces=1):
    """Call backward(pieces), with twice as many, at most `size`, after each OutOfMemoryError.

    Where torch.distributed is in use the error is raised: a rank that tries again alone would meet
    the others in the wrong all-reduce. Begin with as many pieces on every rank.
    """
    while True:
        try:
            backward(pieces)
            return pieces
        except torch.OutOfMemoryError:
            if pieces >= size or (distributed.is_available() and distributed.is_initialized()):
                raise
        pieces = min(2 * pieces, size)  # after the block: here the failed tensors are gone
        gc.collect()  # also those in reference cycles


def backward(model, inputs, targets, pieces):
    """The gradient of the mean loss: what may be done again, as optimizer.step() may not.

    For tensors, and logits with the classes last. Batch norm in training would see pieces, those
    of failed tries, too. Called again, it starts anew: one call for each optimizer.step().
    """
    model.zero_grad()  # a failed backward pass leaves gradients behind
    n = (targets != -100).sum()  # in the whole batch: each piece weighs by what it counts
    for x, y in zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True):
        (nn.CrossEntropyLoss(reduction="sum")(model(x).flatten(0, -2), y.flatten()) / n).backward()


if __name__ == "__main__":
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = nn.Linear(100, 10, device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = torch.randn(64, 100, device=device), torch.arange(64, device=device) % 10
    print("pieces:", in_pieces(lambda n: backward(model, inputs, targets, n), len(inputs)))
    optimizer.step()  # outside: an error in here may have changed some of the weights
