"""amp_fp16.py: a training step in float16, with a scaler."""

import torch
from torch.nn import functional as F


def train_step(model, micro_batches, optimizer, scaler, max_norm=1.0):
    """One update from pairs (x, y); logits have classes last. The mean loss of all y but -100."""
    batches, trained = list(micro_batches), [p for g in optimizer.param_groups for p in g["params"]]
    pairs = [[*map(torch.is_tensor, (b, *b))] == [False, True, True] for b in batches]
    assert pairs and all(pairs), "give pairs of tensors (x, y)"  # b itself is no tensor
    optimizer.zero_grad()
    counted, total = sum((y != -100).sum() for _, y in batches), 0.0  # of the whole batch
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            # In float32: the logits' 16 bits would round each target's loss.
            loss = F.cross_entropy(model(x).float().flatten(0, -2), y.flatten(), reduction="sum")
        scaler.scale(loss / counted).backward()  # scaled gradients add up, all with one scale
        total += loss.detach()
    scaler.unscale_(optimizer)  # once, when the gradient is complete
    try:
        torch.nn.utils.clip_grad_norm_(trained, max_norm)  # only these are unscaled
        scaler.step(optimizer)  # skips if a gradient is not finite
    finally:  # after an error, too, or the next call would find the scaler stuck
        scaler.update()  # last: the scale may change only between updates
    return total / counted


if __name__ == "__main__":
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model, scaler = torch.nn.Linear(16, 4).to(device), torch.amp.GradScaler(device.type)
    x, optimizer = torch.randn(8, 16, device=device), torch.optim.SGD(model.parameters(), lr=0.1)
    print(f"loss {train_step(model, [(x, x[:, :4].argmax(-1))] * 2, optimizer, scaler):.2f}")
