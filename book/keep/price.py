"""price.py: what an operation and a byte cost here, in money and in joules."""

import contextlib
from ctypes import CDLL, byref, c_ulonglong, c_void_p
from timeit import default_timer, timeit

import torch

PRICE = 2.50  # per hour, in your currency: an example, replace it


def gpu_joules():
    """Joules of the whole card since its driver was loaded; 0 without a GPU, on Windows, on MIG."""
    gpu, total = c_void_p(), c_ulonglong()
    with contextlib.suppress(OSError, AssertionError, RuntimeError):  # no NVML, no CUDA
        nvml, uuid = CDLL("libnvidia-ml.so.1"), torch.cuda.get_device_properties().uuid
        nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), byref(gpu))
        nvml.nvmlDeviceGetTotalEnergyConsumption(gpu, byref(total))
    return total.value / 1e3


if __name__ == "__main__":
    gpu = torch.accelerator.current_accelerator(check_available=True)
    n, calls, seconds = (16384, 10, 10) if gpu else (1024, 10, 0.5)
    x = torch.randn(n, n, device=gpu, dtype=torch.half if gpu else torch.float)
    works = [("TFLOP", 2e-12 * n**3, lambda: x @ x), ("GB", 2e-9 * x.nbytes, x.clone)]
    for unit, per, work in works[: 2 if gpu else 1]:  # on a CPU the copy would stay in its cache
        work()[0, 0].item()  # the first call loads its kernel
        done, start, before = 0, default_timer(), gpu_joules()  # NVML loads on the clock
        while default_timer() - start < seconds:  # the energy counter moves every 0.1 s
            timeit(work, number=calls)
            x[0, 0].item()  # each loop of copies lost 0.2 ms on an H200; why was not measured
            done += calls * per
        rate, each = done / (default_timer() - start), (gpu_joules() - before) / done
        energy = f"{each:.3g} J per {unit} at {each * rate:.0f} W" if before else f"on {x.device}"
        print(f"{rate:,.4g} {unit}/s: {PRICE / rate / 36e-4:,.2f} per million {unit}, {energy}")
