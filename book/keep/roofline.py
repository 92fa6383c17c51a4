"""roofline.py: this machine's bandwidth and peak, and where they cross."""

import time

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
wait = torch.cuda.synchronize if device == "cuda" else lambda: None


def seconds(work, calls):
    """Seconds per call in the fastest of six rounds."""
    rounds = []
    for _ in range(6):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        wait()
        rounds.append((time.perf_counter() - start) / calls)
    return min(rounds)


if __name__ == "__main__":
    gpu = device == "cuda"
    native = gpu and torch.cuda.is_bf16_supported(including_emulation=False)  # not on T4, V100
    half = torch.bfloat16 if native else torch.float16
    big, n, dtype = (2**14, 2**13, half) if gpu else (2**13, 2**10, torch.float32)
    x, y = torch.randn(2, big, big, dtype=dtype, device=device)  # exceeds most caches
    a = x[:n, :n].contiguous()
    copy = 2 * x.nbytes / seconds(lambda: y.copy_(x), calls=5)  # read and written
    rate = 2 * n**3 / seconds(lambda: a @ a, calls=5)
    print(f"{device}: copy {copy / 1e9:,.0f} GB/s, matmul {rate / 1e12:.3g} TFLOP/s")
    print(f"below {rate / copy:.0f} FLOP per byte, memory is the limit")
