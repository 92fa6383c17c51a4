"""Pick a device, describe the machine, ask the NVIDIA driver, and notice a GPU that is held back.

The driver is asked with its own tools: they answer where torch cannot start. So this module imports
torch only where it uses it.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def pick(prefer: str | None = None) -> torch.device:
    """Return the device to compute on: ``prefer`` if given, else an accelerator, else the CPU.

    Parameters
    ----------
    prefer : str, optional
        A device such as ``"cpu"`` or ``"cuda:1"``; it is checked, unlike ``torch.device(...)``.

    Raises
    ------
    RuntimeError
        If ``prefer`` names a device that this machine does not have.
    """
    import torch

    # Without check_available this answers what the wheel was built for, not what is here.
    here = torch.accelerator.current_accelerator(check_available=True)
    if prefer is None:
        return here or torch.device("cpu")
    device = torch.device(prefer)
    if device.type == "cpu":
        return device
    count = torch.accelerator.device_count() if here else 0
    if here is None or device.type != here.type or (device.index or 0) >= count:
        have = f"{count} x {here.type}" if here else "no accelerator"
        raise RuntimeError(f"{prefer} was asked for, but this machine has {have}")
    return device


def gpu_count() -> int:
    """Return how many CUDA GPUs this process can use; 0 where there is no working driver."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def capability() -> tuple[int, int]:
    """Return the compute capability of the current CUDA GPU, such as ``(9, 0)``."""
    import torch

    return torch.cuda.get_device_capability()


def cpu_name() -> str:
    """Return the processor's model name as the operating system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())):
        return found[1].strip()
    return platform.processor() or platform.machine()


def provenance() -> dict:
    """Return what a measurement must say about the machine it was made on.

    Returns
    -------
    dict
        ``gpu`` (None on a CPU-only machine), ``gpu_count``, ``driver``, ``torch``, ``cuda``,
        ``cudnn``, ``nccl`` (None below two GPUs), ``python``, ``cpu``, ``cpu_cores`` and ``date``
        (UTC).
    """
    import torch

    count = gpu_count()
    driver = nvidia_smi("driver_version") if count else None
    own_cores = hasattr(os, "sched_getaffinity")
    return {
        "gpu": torch.cuda.get_device_name() if count else None,
        "gpu_count": count,
        "driver": driver[0] if driver else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if count else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if count > 1 else None,
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cpu_cores": len(os.sched_getaffinity(0)) if own_cores else os.cpu_count(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def _run_smi(*options: str) -> subprocess.CompletedProcess | None:
    """What became of nvidia-smi; None if it is not installed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        return subprocess.run(
            [tool, *options], capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = f"it did not run ({type(error).__name__})"
        return subprocess.CompletedProcess(tool, -1, said, "")


def nvidia_smi(query: str) -> list[str] | None:
    """Return ``nvidia-smi --query-gpu=<query>``, a line per GPU; None if the driver is not there.

    The tool comes with the driver and asks it directly, so it works where torch cannot.
    """
    done = _run_smi(f"--query-gpu={query}", "--format=csv,noheader,nounits")
    return done.stdout.strip().splitlines() if done and done.returncode == 0 else None


def smi_error() -> str | None:
    """Return what nvidia-smi says first when it fails; None if it works or is not installed."""
    done = _run_smi()
    if done is None or done.returncode == 0:
        return None
    said = (done.stdout + done.stderr).strip().splitlines()
    return said[0] if said else f"exit status {done.returncode}"


def newest_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version that libcuda supports; None if that library is not there."""
    try:
        ask = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuDriverGetVersion
    except (OSError, AttributeError):  # no such library, or one that is not the driver's
        return None
    version = ctypes.c_int()
    if ask(ctypes.byref(version)) != 0:  # needs no initialization
        return None
    return version.value // 1000, version.value % 1000 // 10  # 13020 means 13.2


def held_back() -> str | None:
    """Return why a GPU is slower than its power limit explains; None if none is.

    Under a second of large matrix products a healthy card is at its highest clock or at its limit
    of power. One that is at neither is held back by heat, or by the machine around it, and its
    measurements would be real and misleading.
    """
    found = (_held_back(index) for index in range(gpu_count()))
    return next((why for why in found if why), None)


def _held_back(index: int) -> str | None:
    import torch

    a = torch.randn(4096, 4096, device=f"cuda:{index}", dtype=torch.float16)
    said, until = None, time.perf_counter() + 1
    while said is None:
        for _ in range(50):
            a @ a
        if time.perf_counter() > until:  # ask while the queue is full
            said = nvidia_smi("uuid,clocks.sm,clocks.max.sm,power.draw,power.limit") or [""]
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
