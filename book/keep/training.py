"""training.py: one pass over the data, which trains or validates, and survives a NaN."""

import torch


def one_pass(model, batches, device, optimizer=None, clip=1.0):
    """Mean loss and share right over batches (x, int64 class numbers); an optimizer makes it train.

    While it trains, both count with dropout and before each step: no match for validation's.
    model(x) returns logits, a tensor whose dimension 1 is the classes.
    Autocast to bfloat16 belongs in model.forward (around this call it works, but backward() runs
    under it, too); float16 needs a gradient scaler, which this has not.
    It clips the norm of what the optimizer trains, with plain SGD like a lower rate:
    clip=float("inf") never does. Validation clears the model's gradients, too.
    A batch whose gradient is not finite counts as zero; its input spoils a batch norm for good,
    and a frozen batch norm still follows the batches, as train() is called on the whole model.
    No sparse gradients, no LBFGS, no FSDP2; under DDP it returns its own rank's numbers.
    Counts are exact to 16.7 million targets. Train before you validate if forward caches tensors
    when first called.
    """
    x, sums = None, torch.zeros(3, device=device)
    model.train(optimizer is not None)  # dropout and batch norm
    for x, y in batches:  # pairs of tensors: no dicts, no triples
        assert torch.is_tensor(x) and y.dtype == torch.int64, "no pairs (x, y) of tensors, y int64"
        x, y = (t.to(device, non_blocking=True) for t in (x, y))
        model.zero_grad()  # before the forward pass needs the memory
        with torch.inference_mode(optimizer is None):
            logits, counted = model(x).float(), (y != -100).sum()
            loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")  # no softmax
        if optimizer is not None:
            (loss / counted.clamp(1)).backward()  # one NaN makes all NaN, and the loss, too:
            trained = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            loss = loss + 0 * torch.nn.utils.clip_grad_norm_(trained, clip)
            [p.grad.nan_to_num_(0.0, 0.0, 0.0) for p in trained]  # then zero: it teaches nothing
            optimizer.step(), torch.clear_autocast_cache()  # of 16-bit copies of the old weights
        # The sums stay on the device: nobody waits for a step.
        sums += torch.stack([loss.detach(), (logits.argmax(1) == y).sum(), counted])
    assert x is not None, "no batch: make a generator, as prefetch(...), anew for each pass"
    return (sums[:2] / sums[2]).tolist()  # the one wait; nan: a bad batch, or no target counts


if __name__ == "__main__":
    # Your data and model:
    data = [(x, 1 * (x.sum(1) > 0)) for x in torch.randn(26, 96, 9, generator=torch.manual_seed(0))]
    device, model = torch.accelerator.current_accelerator(True) or "cpu", torch.nn.Linear(9, 2)
    one_pass(model.to(device), data[:20], device, torch.optim.Adam(model.parameters(), lr=0.1))
    print(f"right in validation: {one_pass(model, data[20:], device)[1]:.0%}")
