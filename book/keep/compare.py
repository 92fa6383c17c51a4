"""compare.py: is B faster than A, and by how much."""

import statistics
import time

import torch


def stopwatch(work, repeats=30, batch=1, warmup=3):
    """Quartiles of the seconds that one ``work()`` takes: first, median, third."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(warmup):
        work()
    seconds = []
    for _ in range(repeats):
        wait()  # for what was queued before
        start = time.perf_counter()
        for _ in range(batch):
            work()
        wait()  # for the work itself
        seconds.append((time.perf_counter() - start) / batch)
    return statistics.quantiles(seconds, n=4)


x = torch.randn(512, 512, device="cuda" if torch.cuda.is_available() else "cpu")
low, median, high = (1e3 * s for s in stopwatch(lambda: x @ x, batch=10))
print(f"{x.device}: {median:.3f} ms ({low:.3f} to {high:.3f})")
