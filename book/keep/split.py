"""split.py: a step's time: data, Python, computing."""

import time

import torch
from torch.profiler import ProfilerActivity, profile

STEPS = 40


def clock(step):
    """Milliseconds of a step."""
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.accelerator.synchronize() if torch.accelerator.is_available() else None
    return 1e3 * (time.perf_counter() - start) / STEPS


def split(load, train):
    """Milliseconds of train(load()) by part; 81 loads, 160 steps, the last 80 on one batch."""
    clock(lambda: train(load()))  # warm up, and empty the queue of a loader's workers
    whole, batch = clock(lambda: train(load())), load()
    cached = device = clock(lambda: train(batch))
    if torch.cuda.is_available():  # elsewhere, Python cannot be told from computing
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
            clock(lambda: train(batch))
        on_gpu = (e for e in seen.events() if "CUDA" in str(e.device_type))
        device = sum(e.device_time_total for e in on_gpu if not e.is_user_annotation) / STEPS / 1e3
    return {"data": whole - cached, "Python": cached - device, "computing": device}


if __name__ == "__main__":
    net = torch.nn.Linear(1024, 1024, device="cuda" if torch.cuda.is_available() else "cpu")
    parts = split(lambda: torch.randn(99, 1024).to(net.weight), lambda x: net(x).sum().backward())
    print(", ".join(f"{part} {ms:.3f} ms" for part, ms in parts.items()))
