"""amp_fp16.py: a training step in float16, with a scaler."""

import torch


def scaled_step(model, micro_batches, optimizer, scaler, max_norm=1.0):
    """One update of float32 weights from pairs, [(x, y), ...]; logits have classes last.

    Returns the mean loss of all targets but -100. In an autocast block of yours around
    it your own passes see old weights.
    """
    pairs = [p for p in micro_batches if not torch.is_tensor(p)]  # none of (x, y)
    assert pairs and all(torch.is_tensor(t) for p in pairs for t in p), "not (x, y)"
    counted, total = sum((y != -100).sum() for _, y in pairs), 0.0  # of all
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad()
    for x, y in pairs:
        # No cache: in a block of the caller's it would keep copies of old weights. So a
        # layer that is called several times is cast each time.
        with torch.autocast(x.device.type, dtype=torch.float16, cache_enabled=False):
            # Forward and loss, nothing else. In float32: the logits' 16 bits would
            # round each target's loss.
            summed = torch.nn.CrossEntropyLoss(reduction="sum")
            # The logits have no name: it would keep them until the next batch's.
            loss = summed(model(x).float().flatten(0, -2), y.flatten())
        # All with one scale. Not in the caller's block, which would choose other types.
        torch.autocast(x.device.type, enabled=False)(scaler.scale(loss / counted).backward)()
        total += loss.detach()
    scaler.unscale_(optimizer)  # once, when the gradient is complete
    try:
        torch.nn.utils.clip_grad_norm_(trained, max_norm)  # only these are unscaled
        # Skips if a gradient is not finite. Muon and Adafactor have products, too.
        torch.autocast(x.device.type, enabled=False)(scaler.step)(optimizer)
    finally:  # after an error, too, or the next call would find the scaler stuck
        scaler.update()  # last: the scale may change only between updates
    return total / counted


if __name__ == "__main__":
    x = torch.eye(8, device=torch.accelerator.current_accelerator(True))
    model, scaler = torch.nn.Linear(8, 8).to(x), torch.amp.GradScaler(x.device.type)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    print(f"{scaled_step(model, [(x, x.argmax(1))] * 2, optimizer, scaler):.2f}")
