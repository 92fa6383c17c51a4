"""amp.py: a training step in bfloat16, from one micro-batch or several."""

import torch
from torch.nn import functional as F


def train_step(model, micro_batches, optimizer, max_norm=1.0):
    """One update from pairs (x, y); logits have classes last. The mean loss of all y but -100."""
    batches, trained = list(micro_batches), [p for g in optimizer.param_groups for p in g["params"]]
    pairs = [[*map(torch.is_tensor, (b, *b))] == [False, True, True] for b in batches]
    assert pairs and all(pairs), "give pairs of tensors (x, y)"  # b itself is no tensor
    optimizer.zero_grad()
    counted, total = sum((y != -100).sum() for _, y in batches), 0.0  # of the whole batch
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):  # forward and loss, nothing else
            # In float32: the logits' 16 bits would round each target's loss.
            loss = F.cross_entropy(model(x).float().flatten(0, -2), y.flatten(), reduction="sum")
        (loss / counted).backward()  # each operation in the type that its forward chose
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(trained, max_norm)  # the gradients are float32
    for gradient in [p.grad for p in trained if p.grad is not None]:
        gradient.nan_to_num_(0.0, 0.0, 0.0)  # clipping has spread a NaN to all
    optimizer.step()  # the weights are float32
    return total / counted + 0 * norm  # NaN if a gradient was not finite


if __name__ == "__main__":
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.to(device).parameters(), lr=1e-2)
    for x in torch.randn(200, 2, 256, 64, device=device):  # your batches go here, in two halves
        loss = train_step(model, zip(x, x[..., :10].argmax(-1), strict=True), optimizer)
    print(f"on the {device}: loss {loss:.2f} after 200 steps")
