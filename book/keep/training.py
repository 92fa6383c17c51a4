"""training.py: one pass over the data, which trains or validates, and survives a NaN."""

import torch


def one_pass(model, batches, device, optimizer=None):
    """Mean loss and share right over batches (x, int64 class numbers); an optimizer makes it train.

    Never train under autocast around this call: each batch would use casts of the first weights.
    Autocast to bfloat16 belongs inside model.forward, which should then return logits.float();
    float16 needs a gradient scaler, which this has not.
    It clips the gradient's norm to 1, with plain SGD like a lower rate: float("inf") never clips.
    A batch that is not finite has a gradient of zero, but spoils a batch norm's running averages.
    Freeze what the optimizer does not train, or its gradients, never cleared, count in the norm;
    a frozen batch norm still follows the batches, as train() is called on the whole model.
    No sparse gradients. Train before you validate if forward caches tensors when first called.
    """
    model.train(optimizer is not None)  # dropout and batch norm
    sums = torch.zeros(3, device=device)  # stays on the device: nobody waits for a step
    for batch in batches:
        fit = all(map(torch.is_tensor, batch)) and not batch[1].is_floating_point()
        assert fit, "batches are pairs of tensors (x, y), y of class numbers: no dicts, no floats"
        x, y = (t.to(device, non_blocking=True) for t in batch)
        with torch.inference_mode(optimizer is None):
            logits, counted = model(x), (y != -100).sum()
            loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")  # no softmax
        if optimizer is not None:
            optimizer.zero_grad()
            (loss / counted.clamp(1)).backward()  # one NaN makes all NaN, and the loss, too:
            loss = loss + 0 * torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            # ... and then zero: the batch teaches nothing
            [p.grad.nan_to_num_(0.0, 0.0, 0.0) for p in model.parameters() if p.grad is not None]
            optimizer.step()
        sums += torch.stack([loss.detach(), (logits.argmax(1) == y).sum(), counted])
    return (sums[:2] / sums[2]).tolist()  # the one wait; nan: a bad batch, or no target counts


if __name__ == "__main__":
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    # Your data and model:
    x, model = torch.randn(2500, 20, generator=torch.manual_seed(0)), torch.nn.Linear(20, 2)
    pairs = list(zip(x.split(96), (x.sum(1) > 0).long().split(96), strict=True))
    one_pass(model.to(device), pairs[:20], device, torch.optim.Adam(model.parameters(), lr=0.1))
    print(f"right in validation: {one_pass(model, pairs[20:], device)[1]:.0%}")
