"""amp.py: a training step in bfloat16, from one micro-batch or several."""

import torch


def train_step(model, micro_batches, optimizer, max_norm=1.0):
    """One update of float32 weights from pairs, [(x, y), ...]; logits have classes last.

    Returns the mean loss of all targets but -100. In an autocast block of yours around
    it your own passes see old weights.
    """
    pairs = [p for p in micro_batches if not torch.is_tensor(p)]  # none of (x, y)
    assert pairs and all(torch.is_tensor(t) for p in pairs for t in p), "not (x, y)"
    counted = sum((y != -100).sum() for _, y in pairs)  # of the whole batch
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad()
    total = 0.0
    for x, y in pairs:
        # No cache: in a block of the caller's it would keep copies of old weights. So a
        # layer that is called several times is cast each time.
        with torch.autocast(x.device.type, dtype=torch.bfloat16, cache_enabled=False):
            # Forward and loss, nothing else. In float32: the logits' 16 bits would
            # round each target's loss.
            summed = torch.nn.CrossEntropyLoss(reduction="sum")
            # The logits have no name: it would keep them until the next batch's.
            loss = summed(model(x).float().flatten(0, -2), y.flatten())
        # Not in the caller's block, which would choose other types.
        torch.autocast(x.device.type, enabled=False)((loss / counted).backward)()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(trained, max_norm)  # of float32
    for gradient in [p.grad for p in trained if p.grad is not None]:
        gradient.nan_to_num_(0.0, 0.0, 0.0)  # clipping has spread a NaN to all
    torch.autocast(x.device.type, enabled=False)(optimizer.step)()  # the weights are float32
    return total / counted + 0 * norm  # NaN if a gradient was not finite


if __name__ == "__main__":
    x = torch.eye(8, device=torch.accelerator.current_accelerator(True))
    model = torch.nn.Linear(8, 8).to(x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = [train_step(model, [(x, x.argmax(1))], optimizer) for _ in range(21)]
    print(f"on the {x.device}: loss {losses[0]:.2f}, then {losses[-1]:.2f}")
