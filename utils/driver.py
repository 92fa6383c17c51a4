"""Ask the NVIDIA driver, with its own tools: without torch, and where torch cannot start."""

import ctypes
import os
import shutil
import subprocess


def _run(
    *options: str,
) -> subprocess.CompletedProcess | OSError | subprocess.SubprocessError | None:
    """What became of nvidia-smi; an error if it did not run, None if it is not installed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        return subprocess.run(
            [tool, *options], capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return error


def nvidia_smi(query: str) -> list[str] | None:
    """Return ``nvidia-smi --query-gpu=<query>``, a line per GPU; None if the driver is not there.

    The tool comes with the driver and asks it directly, so it works where torch cannot.
    """
    done = _run(f"--query-gpu={query}", "--format=csv,noheader,nounits")
    if not isinstance(done, subprocess.CompletedProcess) or done.returncode != 0:
        return None
    return done.stdout.strip().splitlines()


def smi_error() -> str | None:
    """Return what nvidia-smi says first when it fails; None if it works or is not installed."""
    done = _run()
    if done is None:
        return None
    if isinstance(done, Exception):
        return f"it did not run ({type(done).__name__})"
    said = (done.stdout + done.stderr).strip().splitlines()
    return (said[0] if said else f"exit status {done.returncode}") if done.returncode else None


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
