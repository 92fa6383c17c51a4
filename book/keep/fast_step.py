"""fast_step.py: a 2-d CNN's training step with the fast settings."""

import torch
from torch import nn
from torch.nn import functional as F


def fast(model, device):
    """Return the model on the device, in channels_last; from now on the program may use TF32."""
    # Not cudnn.benchmark: it costs seconds, and pays only if all shapes repeat, and for long.
    torch.set_float32_matmul_precision("high")
    return model.to(device, memory_format=torch.channels_last)


def fast_step(model, optimizer, images, labels):
    """Train on a batch, in bfloat16 where the GPU has it; return the loss without waiting for it.

    Images are (n, channels, height, width), labels what `F.cross_entropy` takes; both best pinned.
    """
    optimizer.zero_grad()  # what a step that ran out of memory left behind
    device = next(model.parameters()).device
    half = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    x = images.to(device, memory_format=torch.channels_last, non_blocking=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        loss = F.cross_entropy(model(x), labels.to(device, non_blocking=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


if __name__ == "__main__":
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = [nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(True), nn.AdaptiveAvgPool2d(1)]
    model = fast(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10)), device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)  # your loader's, pinned
    losses = [fast_step(model, optimizer, images, labels) for _ in range(20)]
    print(f"loss {losses[0].item():.3f}, after 20 steps {losses[-1].item():.3f}")  # waits, once
