"""split.py: a step's time: data (what loading adds), Python, computing."""

import time

import torch
from torch.profiler import ProfilerActivity, profile


def clock(load, train, steps):
    """Milliseconds of a step, and the batches that it trained on."""
    start, seen = time.perf_counter(), []
    for _ in range(steps):
        seen.append(load())
        train(seen[-1])
    torch.accelerator.synchronize() if torch.accelerator.is_available() else None
    return 1e3 * (time.perf_counter() - start) / steps, seen


def split(load, train, steps=40):
    """Milliseconds of train(load()) by part; train runs 4 * steps times, changing no batch.

    load runs 2 * steps times (StopIteration: ask for fewer). It waits for the current GPU only.
    """
    clock(load, train, steps)  # warm up, and empty the queue of a loader's workers
    whole, kept = clock(load, train, steps)
    cached, _ = clock(iter(kept).__next__, train, steps)  # the same batches again
    if not torch.cuda.is_available():
        return {"data": whole - cached, "Python and computing": cached}
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        clock(iter(kept).__next__, train, steps)
    ran = (e for e in seen.events() if "CUDA" in str(e.device_type))
    gpu = sum(e.device_time for e in ran if not e.is_user_annotation) / steps / 1e3
    return {"data": whole - cached, "Python": cached - gpu, "computing": gpu}


if __name__ == "__main__":
    w = torch.rand(999, 999, device="cuda" if torch.cuda.is_available() else "cpu")
    parts = split(lambda: torch.rand(99, 999).to(w), lambda x: torch.relu(x @ w))
    print(", ".join(f"{part} {ms:.3f} ms" for part, ms in parts.items()))
