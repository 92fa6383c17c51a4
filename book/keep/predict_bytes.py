"""predict_bytes.py: predict a time from bytes, then measure it."""

import time

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
wait = torch.cuda.synchronize if device == "cuda" else lambda: None


def seconds(run, calls=10):
    times = []
    for _ in range(calls):  # the shortest counts: the first call warms up, others are disturbed
        wait()
        start = time.perf_counter()
        run(), wait()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    x = torch.rand(2**28 if device == "cuda" else 2**25, device=device)  # larger than most caches
    y, z = torch.rand_like(x), torch.empty_like(x)
    trip = seconds(lambda: z.copy_(x)) / 2  # one tensor read, one written
    predictions = {  # trips through memory, what to run
        "y += x": (3, lambda: y.add_(x)),
        "z = x * y, out=z": (3, lambda: torch.mul(x, y, out=z)),
        "x.sum()": (1, lambda: x.sum()),
    }
    for name, (trips, run) in predictions.items():
        predicted, measured = trips * trip, seconds(run)
        print(f"{name:20} predicted {1e3 * predicted:.2f} ms, {measured / predicted:.2f} x that")
