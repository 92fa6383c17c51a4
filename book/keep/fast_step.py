"""fast_step.py: a 2-d CNN's training step with the fast settings."""

import torch
from torch import nn
from torch.nn import functional as F


def fast(model, device):
    """Return the model on the device, in channels_last.

    Call it before you make the optimizer. If you then load its state, saved in
    another order, call chapter 4.2's `follow`, or a fused one may train wrongly.
    """
    # Not cudnn.benchmark: it costs seconds, and may pay if shapes repeat for long.
    return model.to(device, memory_format=torch.channels_last)


def fast_step(model, optimizer, images, labels):
    """Train on one batch and return its loss, without waiting for it.

    In bfloat16 if a CUDA GPU has it, else in float32, even under autocast. Images
    are (n, channels, height, width), labels what `F.cross_entropy` takes; both best
    pinned. A batch is a step: gradients that you accumulated before are dropped.
    """
    assert torch.is_tensor(images), "unpack your batch: fast_step takes tensors"
    optimizer.zero_grad()  # what a step that ran out of memory left behind
    device = next(model.parameters()).device
    # False: not where it is emulated.
    half = device.type == "cuda" and torch.cuda.is_bf16_supported(False)
    x = images.to(device, memory_format=torch.channels_last, non_blocking=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        loss = F.cross_entropy(model(x), labels.to(device, non_blocking=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


if __name__ == "__main__":
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten()
    model = fast(nn.Sequential(*layers, nn.Linear(64 * 30**2, 10)), device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)  # yours, pinned
    losses = [fast_step(model, optimizer, images, labels) for _ in range(20)]
    # Not in every step: item() waits.
    print(f"loss {losses[0].item():.3f}, after 20 steps {losses[-1].item():.3f}")
