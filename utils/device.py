"""Pick a device, and describe the machine."""

import datetime
import os
import platform
import re
from pathlib import Path

import torch

from utils.driver import nvidia_smi as nvidia_smi


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
    if prefer is None:
        # Without check_available this answers what the wheel was built for, not what is here.
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    device = torch.device(prefer)
    if device.type == "cpu":
        return device
    here = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if here is not None else 0
    if here is None or device.type != here.type or (device.index or 0) >= count:
        have = f"{count} x {here.type}" if here is not None else "no accelerator"
        raise RuntimeError(f"{prefer} was asked for, but this machine has {have}")
    return device


def gpu_count() -> int:
    """Return how many CUDA GPUs this process can use; 0 where there is no working driver."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def capability() -> tuple[int, int]:
    """Return the compute capability of the current CUDA GPU, such as ``(9, 0)``."""
    return torch.cuda.get_device_capability()


def cpu_name() -> str:
    """Return the processor's model name as the operating system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())
        if found:
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
    count = gpu_count()
    driver = nvidia_smi("driver_version") if count else None
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
        "cpu_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }
