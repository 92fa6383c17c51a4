"""Lines that may wait for the GPU, and what they work on: of chapter 6.3 and of its trials."""

import warnings
from types import SimpleNamespace

import torch
from torch.nn import functional as F


def things():
    """What the lines below work on: `host`, `pinned` and `few` are the host's, the rest is not."""
    weight = torch.ones(16, device="cuda", requires_grad=True)
    weight.sum().backward()
    x = torch.rand(2**20, device="cuda")
    return SimpleNamespace(
        x=x,
        y=x.clone(),
        mask=x > 0.5,
        i=torch.randint(1000, (1000,), device="cuda"),
        k=torch.tensor(3, device="cuda"),
        loss=torch.tensor(0.5, device="cuda"),
        square=torch.eye(8, device="cuda"),
        weights=[weight],
        host=torch.rand(2**20),
        few=torch.rand(16),
        pinned=torch.rand(2**20).pin_memory(),
    )


def value_lines(t):
    """Lines that may need a number that only the GPU knows."""
    clip = torch.nn.utils.clip_grad_norm_
    return {
        "loss.item()": lambda: t.loss.item(),
        "float(loss)": lambda: float(t.loss),
        "print(loss)": lambda: repr(t.loss),
        "if loss > 0": lambda: bool(t.loss > 0),
        "i.tolist()": lambda: t.i.tolist(),
        "torch.equal(x, y)": lambda: torch.equal(t.x, t.y),
        "x[k]": lambda: t.x[t.k],
        "x[:k]": lambda: t.x[: t.k],
        "x.index_select(0, k)": lambda: t.x.index_select(0, t.k),
        "Normal(loss, loss)": lambda: torch.distributions.Normal(t.loss, t.loss),
        "torch.linalg.inv(square)": lambda: torch.linalg.inv(t.square),
        "clip_grad_norm_(p, 1)": lambda: clip(t.weights, 1.0),
        "… error_if_nonfinite=True": lambda: clip(t.weights, 1.0, error_if_nonfinite=True),
    }


def size_lines(t):
    """Lines whose result may have a shape that only the GPU knows."""
    counts = torch.ones(1000, dtype=torch.long, device="cuda")
    return {
        "x.nonzero()": lambda: t.x.nonzero(),
        "torch.where(mask)": lambda: torch.where(t.mask),
        "torch.where(mask, x, y)": lambda: torch.where(t.mask, t.x, t.y),
        "torch.where(mask, loss, x)": lambda: torch.where(t.mask, t.loss, t.x),
        "x[mask]": lambda: t.x[t.mask],
        "x[mask] = loss": lambda: t.x.__setitem__(t.mask, t.loss),
        "x[mask] = 0.5": lambda: t.x.__setitem__(t.mask, 0.5),
        "x.masked_fill(mask, loss)": lambda: t.x.masked_fill(t.mask, t.loss),
        "x[i]": lambda: t.x[t.i],
        "x.topk(10)": lambda: t.x.topk(10),
        "torch.unique(i)": lambda: torch.unique(t.i),
        "torch.bincount(i)": lambda: torch.bincount(t.i),
        "torch.bincount(i, minlength=1000)": lambda: torch.bincount(t.i, minlength=1000),
        "one_hot(i)": lambda: F.one_hot(t.i),
        "one_hot(i, 1000)": lambda: F.one_hot(t.i, 1000),
        "i.repeat_interleave(counts)": lambda: t.i.repeat_interleave(counts),
        "… output_size=1000": lambda: t.i.repeat_interleave(counts, output_size=1000),
    }


def copy_lines(t):
    """Lines that move something between the memories."""
    return {
        "x.cpu()": lambda: t.x.cpu(),
        'x.to("cpu", non_blocking=True)': lambda: t.x.to("cpu", non_blocking=True),
        "host.copy_(x, non_blocking=True)": lambda: t.host.copy_(t.x, non_blocking=True),
        'host.to("cuda")': lambda: t.host.to("cuda"),
        'host.to("cuda", non_blocking=True)': lambda: t.host.to("cuda", non_blocking=True),
        'few.to("cuda", non_blocking=True)': lambda: t.few.to("cuda", non_blocking=True),
        'pinned.to("cuda")': lambda: t.pinned.to("cuda"),
        'pinned.to("cuda", non_blocking=True)': lambda: t.pinned.to("cuda", non_blocking=True),
        'torch.tensor([1.0], device="cuda")': lambda: torch.tensor([1.0], device="cuda"),
        'torch.full((1,), 1.0, device="cuda")': lambda: torch.full((1,), 1.0, device="cuda"),
        "x[[0, 5, 7]]": lambda: t.x[[0, 5, 7]],
        "x * 0.5": lambda: t.x * 0.5,
    }


def explicit_lines(t):
    """Lines that say that they wait."""
    event = torch.cuda.Event()
    return {
        "torch.cuda.synchronize()": torch.cuda.synchronize,
        "stream.synchronize()": lambda: torch.cuda.current_stream().synchronize(),
        "event.synchronize()": lambda: (event.record(), event.synchronize()),
    }


def warned(call):
    """How often `set_sync_debug_mode` warns of a synchronization during one call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)
