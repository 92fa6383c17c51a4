"""sliced_loss.py: cross-entropy without all logits at once, and checkpointing."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def sliced_loss(head, hidden, targets, size=2048):
    """Mean cross-entropy of head(hidden), where only `size` tokens' logits exist at any time.

    Targets of -100 do not count; without others it is 0. Under DDP call it inside the model's
    `forward`. Pure float16 overflows; pure bfloat16 rounds the loss, a sum (off by 5% in 64
    slices), and its gradients less (1%). Under autocast it adds up in float32.
    """
    if hidden.shape[:-1] != targets.shape:
        raise ValueError(f"hidden {[*hidden.shape]} needs a target for each of its rows")

    def part(h, t):
        return F.cross_entropy(head(h), t, reduction="sum")

    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    slices = zip(hidden.split(size), targets.split(size), strict=True)
    total = sum(checkpoint(part, h, t, use_reentrant=False) for h, t in slices)
    return total / (targets != -100).sum().clamp(min=1)


if __name__ == "__main__":
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        blocks = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 256, 0.0) for _ in range(3)))
        head, targets = nn.Linear(64, 1000), torch.randint(1000, (128, 8))
        hidden = torch.randn(128, 8, 64)
    plain = F.cross_entropy(head(blocks(hidden)).flatten(0, 1), targets.flatten())
    for block in blocks:  # each keeps its input only, and runs again in the backward pass
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    loss = sliced_loss(head, blocks(hidden), targets, 256)
    a, b = (torch.autograd.grad(x, blocks[0].linear1.weight)[0] for x in (plain, loss))
    print(f"loss off by {abs(plain - loss):.4f}, gradient by {(a - b).norm() / a.norm():.2%}")
