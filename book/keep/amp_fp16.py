"""amp_fp16.py: the training loop in float16, with a scaler."""

import torch
from torch import nn
from torch.nn import functional as F


def train_step(model, micro_batches, optimizer, scaler, max_norm=1.0):
    """One fp16 update from several micro-batches, in the right order."""
    optimizer.zero_grad()
    for x, y in micro_batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = F.mse_loss(model(x), y) / len(micro_batches)  # mean over all, if of equal size
        scaler.scale(loss).backward()  # scaled gradients add up, all with one scale
    scaler.unscale_(optimizer)  # once, when the gradient is complete
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # of the true gradient
    scaler.step(optimizer)  # skips if a gradient is not finite
    scaler.update()  # last: the scale may change only between updates
    return norm


device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 4).to(device)
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler(device)
halves = torch.ones(2, 8, 16, device=device), torch.ones(2, 8, 4, device=device)
norm = train_step(model, list(zip(*halves, strict=True)), optimizer, scaler)
print("the step was", "taken" if norm.isfinite() else "skipped", f"at scale {scaler.get_scale():g}")
