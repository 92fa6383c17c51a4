"""amp_fp16.py: a training step in float16, with a scaler."""

import torch
from torch.nn import functional as F


def train_step(model, micro_batches, optimizer, scaler, max_norm=1.0):
    """One update from pairs (x, y), in the right order; the mean loss of all targets but -100."""
    batches = list(micro_batches)
    assert all(torch.is_tensor(t) for pair in batches for t in pair), "give pairs of tensors (x, y)"
    optimizer.zero_grad()
    counted, total = sum((y != -100).sum() for _, y in batches), 0.0  # of the whole batch
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            logits = model(x).flatten(0, -2)  # tokens of sequences, too, are rows
            loss = F.cross_entropy(logits, y.flatten(), reduction="sum") / counted
        scaler.scale(loss).backward()  # scaled gradients add up, all with one scale
        total += loss.detach()
    scaler.unscale_(optimizer)  # once, when the gradient is complete
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # of the true gradient
    scaler.step(optimizer)  # skips if a gradient is not finite
    scaler.update()  # last: the scale may change only between updates
    return total


if __name__ == "__main__":
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model, scaler = torch.nn.Linear(16, 4).to(device), torch.amp.GradScaler(device.type)
    halves = torch.ones(2, 8, 16, device=device), torch.ones(2, 8, dtype=torch.long, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = train_step(model, zip(*halves, strict=True), optimizer, scaler)
    print("finite" if loss.isfinite() else "not finite", f"at a scale of {scaler.get_scale():g}")
