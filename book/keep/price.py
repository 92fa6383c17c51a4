"""price.py: what an operation costs here."""

import time

import torch

PRICE = 2.50  # per hour, in your currency: an example, replace it
device = "cuda" if torch.cuda.is_available() else "cpu"
wait = torch.cuda.synchronize if device == "cuda" else lambda: None


def per_second(work, amount, seconds=0.5):
    """How much of ``amount`` the calls of ``work`` do per second."""
    work()
    wait()
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(10):  # one wait for ten calls: the GPU is hardly ever idle
            work()
        wait()
        calls += 10
    return calls * amount / (time.perf_counter() - start)


if __name__ == "__main__":
    n = 8192 if device == "cuda" else 512
    half = torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float16  # V100, T4
    x = torch.randn(n, n, device=device, dtype=half if device == "cuda" else torch.float32)
    y = torch.empty(2**28 if device == "cuda" else 2**24, dtype=torch.uint8, device=device)
    flops, moved = per_second(lambda: x @ x, 2 * n**3), per_second(y.clone, 2 * y.nbytes)
    print(f"{flops / 1e12:.3g} TFLOP/s: {PRICE / (flops * 3600) * 1e18:,.2f} per exaFLOP")
    print(f"{moved / 1e9:,.1f} GB/s: {PRICE / (moved * 3600) * 1e15:.2f} per PB read or written")
