"""Whether a GPU is slower than it can be, so that what it measures would mislead."""

import time

import torch

from utils import device


def held_back() -> str | None:
    """Return why a GPU is slower than its power limit explains; None if none is.

    Under a second of large matrix products a healthy card is at its highest clock or at its limit
    of power. One that is at neither is held back by heat, or by the machine around it, and its
    measurements would be real and misleading.
    """
    found = (_held_back(index) for index in range(device.gpu_count()))
    return next((why for why in found if why), None)


def _held_back(index: int) -> str | None:
    a = torch.randn(4096, 4096, device=f"cuda:{index}", dtype=torch.float16)
    said, until = None, time.perf_counter() + 1
    while said is None:
        for _ in range(50):
            a @ a
        if time.perf_counter() > until:  # ask while the queue is full
            said = device.nvidia_smi("uuid,clocks.sm,clocks.max.sm,power.draw,power.limit") or [""]
        torch.cuda.synchronize(a.device)
    # CUDA_VISIBLE_DEVICES hides cards from PyTorch, but not from nvidia-smi.
    mine = str(torch.cuda.get_device_properties(index).uuid)
    told = next((line.split(",")[1:] for line in said if mine in line), [])
    try:
        clock, highest, power, limit = map(float, told)
    except ValueError:  # some cards do not tell
        return None
    if clock > 0.7 * highest or power > 0.8 * limit:
        return None
    return (
        f"under full load GPU {index} runs at {clock:.0f} of {highest:.0f} MHz and draws "
        f"{power:.0f} of {limit:.0f} W, so something other than its power limit holds it back"
    )
