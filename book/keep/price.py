"""price.py: what a product, a copy or your own step costs: time, money, joules."""

from contextlib import suppress
from ctypes import CDLL, byref, c_ulonglong, c_void_p
from timeit import default_timer, timeit

import torch

# What an hour costs, in your currency (an example: replace it), and what it buys.
PRICE, GPU = 2.50, torch.accelerator.current_accelerator(check_available=True)


def gpu_joules():
    """Joules of the whole card since its driver loaded; 0 if NVML counts none."""
    gpu, total = c_void_p(), c_ulonglong()
    with suppress(OSError, AttributeError, AssertionError, RuntimeError):
        nvml, card = CDLL("libnvidia-ml.so.1"), torch.cuda.get_device_properties()
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetHandleByUUID(f"GPU-{card.uuid}".encode(), byref(gpu))
        nvml.nvmlDeviceGetTotalEnergyConsumption(gpu, byref(total))
    return total.value / 1e3


def measure(work, calls=100):
    """Seconds and joules of a call of ``work()``: one loop, garbage collector off.

    The counter moves some ten times a second: for joules, let the loop take two seconds or more.
    """
    before, start = gpu_joules(), default_timer()  # in this order: NVML loads first
    timeit(work, number=calls)
    torch.accelerator.is_available() and torch.accelerator.synchronize()
    return (default_timer() - start) / calls, (gpu_joules() - before) / calls


if __name__ == "__main__":
    # The energy counter moves every 0.1 s. On a CPU the copy may stay in the cache.
    n, seconds = (8192, 10) if GPU else (512, 0.5)
    x = torch.randn(4, n, n, device=GPU, dtype=torch.half if GPU else torch.float)
    # Add yours: "step": lambda: train_step(batch). Two loops of five warm
    # it up, and the faster one says how many calls to time.
    for name, work in {"product": lambda: x[0] @ x[0], "copy": x.clone}.items():
        s, j = measure(work, 1 + int(seconds / min(measure(work, 5), measure(work, 5))[0]))
        use = f"{j:.3g} J at {j / s:.0f} W" if j else "0 J: no counter or loop too short"
        print(f"{name}: {1e3 * s:.3g} ms, {PRICE * s / 36e-4:.3g} a million, {use}")
