"""Find out why torch cannot use a GPU, and what to do about it.

``python -m utils.diagnosis`` prints the diagnosis of the machine at hand. Three parties must agree:
the driver, the wheel and the card. :func:`gather` asks each of them; :func:`diagnose` only reasons,
so that every cause can be tried without the machine that has it.
"""

import argparse
import ctypes
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from utils.device import nvidia_smi

# The oldest Linux driver branch that runs every minor release of a CUDA major version ("minor
# version compatibility"). https://docs.nvidia.com/deploy/cuda-compatibility/
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True)
class Facts:
    """What the operating system, the driver, the wheel and torch say about GPUs.

    The defaults describe a machine without any trace of an NVIDIA GPU.

    Attributes
    ----------
    pci_gpus : int
        NVIDIA display controllers on the PCI bus; 0 where that cannot be read (Windows, WSL).
    container, wsl : bool
        Whether this process runs in a container, or in the Windows Subsystem for Linux.
    kernel_driver : str or None
        Version of the loaded kernel module.
    driver_cuda : tuple of int or None
        Newest CUDA version that the driver's library (libcuda) supports; None without the library.
    driver_version : str or None
        What nvidia-smi gives.
    driver_gpus : tuple of (str, tuple of int or None)
        Name and compute capability of every GPU that nvidia-smi lists.
    smi_error : str or None
        What nvidia-smi says if it fails.
    visible_devices : str or None
        ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    wheel : str
        ``torch.__version__``.
    wheel_cuda : str or None
        CUDA version the wheel was built with; None for a build without CUDA.
    wheel_archs : tuple of str
        Architectures it holds machine code (``sm_90``) or PTX (``compute_90``) for.
    torch_gpus : tuple of (str, tuple of int)
        Name and compute capability of every GPU that torch can use.
    torch_error : str or None
        What torch raises when it can use none.
    """

    pci_gpus: int = 0
    container: bool = False
    wsl: bool = False
    kernel_driver: str | None = None
    driver_cuda: tuple[int, int] | None = None
    driver_version: str | None = None
    driver_gpus: tuple[tuple[str, tuple[int, int] | None], ...] = ()
    smi_error: str | None = None
    visible_devices: str | None = None
    wheel: str = torch.__version__
    wheel_cuda: str | None = None
    wheel_archs: tuple[str, ...] = ()
    torch_gpus: tuple[tuple[str, tuple[int, int]], ...] = ()
    torch_error: str | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that keeps torch from using a GPU: a short name for it, what it is, what to do."""

    cause: str
    problem: str
    remedy: str


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Return whether code built for ``arch`` runs on a GPU of this compute capability.

    Machine code (``sm_XY``) runs on its own major version, from its own minor version on. With the
    suffix ``a`` it runs on exactly its own version, with ``f`` on its family, which so far is the
    same major version again. PTX (``compute_XY``) is compiled by the driver for any GPU from its
    own version on. (Integrated Jetson GPUs have rules of their own.)

    Parameters
    ----------
    arch : str
        An entry of ``torch.cuda.get_arch_list()``.
    capability : tuple of int
        Such as ``(8, 9)``.

    Raises
    ------
    ValueError
        If ``arch`` is not the name of an architecture.

    Notes
    -----
    Rules: CUDA Programming Guide, "The CUDA platform", on cubin and PTX compatibility.
    """
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
    if found is None:
        raise ValueError(f"{arch!r} is no architecture: expected something like sm_90")
    built_for = (int(found[2]), int(found[3]))
    if found[4] == "a":
        return capability == built_for
    if found[1] == "compute" and not found[4]:
        return capability >= built_for
    return capability[0] == built_for[0] and capability[1] >= built_for[1]


def visible(value: str | None, count: int) -> list[int] | None:
    """Return which of ``count`` GPUs ``CUDA_VISIBLE_DEVICES=value`` leaves, in their new order.

    The list ends at the first entry that names no GPU; an entry given twice empties it.

    Parameters
    ----------
    value : str or None
        The variable's value; None if it is not set.
    count : int
        GPUs in the machine.

    Returns
    -------
    list of int or None
        Old numbers; the first becomes ``cuda:0``. None if ``value`` names GPUs by UUID, which only
        the driver can resolve.
    """
    if value is None:
        return list(range(count))
    if value.startswith(("GPU-", "MIG-")):
        return None
    chosen: list[int] = []
    for entry in value.split(","):
        number = re.match(r"\s*\+?(\d+)", entry)
        if number is None or int(number[1]) >= count:
            break
        if int(number[1]) in chosen:
            return []
        chosen.append(int(number[1]))
    return chosen


def wheel_archs() -> tuple[str, ...]:
    """Return the architectures that the installed torch holds code for; needs no GPU.

    ``torch.cuda.get_arch_list()`` answers ``[]`` without a GPU in torch 2.11, though no longer in
    2.15; hence the function beneath it.
    """
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return tuple((flags or "").split())


def _driver_cuda() -> tuple[int, int] | None:
    """Newest CUDA version that libcuda supports; None if the driver's library is not there."""
    try:
        libcuda = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if libcuda.cuDriverGetVersion(ctypes.byref(version)) != 0:  # needs no initialization
        return None
    return version.value // 1000, version.value % 1000 // 10  # 13020 means 13.2


def _smi_error() -> str | None:
    """First line of what nvidia-smi says when it fails; None if it works or is not there."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run([tool], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it did not run ({type(error).__name__})"
    said = (done.stdout + done.stderr).strip().splitlines()
    return (said[0] if said else f"exit status {done.returncode}") if done.returncode else None


def _driver_gpus() -> tuple[str | None, tuple[tuple[str, tuple[int, int] | None], ...]]:
    """Driver version, and name and capability of each GPU, as nvidia-smi gives them."""
    lines = nvidia_smi("driver_version,name,compute_cap")
    if lines is None:  # drivers before 2021 do not know compute_cap
        lines = nvidia_smi("driver_version,name")
    version, gpus = None, []
    for line in lines or []:
        version, name, *rest = (part.strip() for part in line.split(","))
        number = re.fullmatch(r"(\d+)\.(\d+)", rest[0]) if rest else None
        gpus.append((name, (int(number[1]), int(number[2])) if number else None))
    return version, tuple(gpus)


def _torch_gpus() -> tuple[tuple[tuple[str, tuple[int, int]], ...], str | None]:
    """Name and capability of each GPU that torch can use, or what it says if there is none.

    This initializes CUDA in the process: what is forked from it later cannot use CUDA.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # init raises what it warns of
        try:
            torch.cuda.init()
            found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
            return tuple((gpu.name, (gpu.major, gpu.minor)) for gpu in found), None
        except (RuntimeError, AssertionError) as error:
            return (), str(error).splitlines()[0]


def gather(root: Path = Path("/")) -> Facts:
    """Ask the operating system, the driver, the wheel and torch.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are; tests give another folder.
    """
    pci = 0
    for card in root.glob("sys/bus/pci/devices/*"):
        try:
            vendor, kind = (card / "vendor").read_text(), (card / "class").read_text()
        except OSError:
            continue
        pci += vendor.strip() == "0x10de" and kind.startswith("0x03")  # NVIDIA; display controller
    module = root / "proc/driver/nvidia/version"
    loaded = re.search(r"\d+\.\d+(\.\d+)?", module.read_text()) if module.exists() else None
    kernel = root / "proc/sys/kernel/osrelease"
    driver_version, driver_gpus = _driver_gpus()
    torch_gpus, torch_error = _torch_gpus()
    return Facts(
        pci_gpus=pci,
        container=any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv"))
        or "KUBERNETES_SERVICE_HOST" in os.environ,
        wsl=kernel.exists() and "microsoft" in kernel.read_text().lower(),
        kernel_driver=loaded[0] if loaded else None,
        driver_cuda=_driver_cuda(),
        driver_version=driver_version,
        driver_gpus=driver_gpus,
        smi_error=None if driver_gpus else _smi_error(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        wheel_cuda=torch.version.cuda,
        wheel_archs=wheel_archs(),
        torch_gpus=torch_gpus,
        torch_error=torch_error,
    )


def _no_kernels(
    gpus: Sequence[tuple[str, tuple[int, int] | None]], archs: Sequence[str]
) -> list[Finding]:
    """A finding for each of ``gpus`` that no entry of ``archs`` runs on."""
    findings = []
    for name, capability in gpus:
        if capability is None or not archs or any(runs_on(a, capability) for a in archs):
            continue
        oldest = min(int(re.sub(r"\D", "", arch)) for arch in archs)
        older = capability[0] * 10 + capability[1] < oldest
        findings.append(
            Finding(
                "no-kernels",
                f"{name} has compute capability {capability[0]}.{capability[1]}, and this wheel "
                f"holds code for {', '.join(archs)} only",
                "install an older release, for CUDA 12, that still holds it: "
                "pip install torch --index-url https://download.pytorch.org/whl/cu126"
                if older
                else "install a newer release of torch: pip install --upgrade torch",
            )
        )
    return findings


def _driver_finding(facts: Facts) -> Finding | None:
    """Why the driver offers no GPU at all, though there are signs of one; None if it offers one."""
    said = facts.smi_error or ""
    if facts.driver_gpus:
        return None
    if "mismatch" in said:
        return Finding(
            "driver-mismatch",
            f"the driver was updated under a running system: its library and its kernel module"
            f"{f' ({facts.kernel_driver})' if facts.kernel_driver else ''} differ in version",
            "restart the machine, which loads the new module",
        )
    if facts.container and facts.driver_cuda is None:
        return Finding(
            "container",
            "this container was started without GPUs: the driver's library is not in it",
            "start it with docker run --gpus all (the host needs the NVIDIA Container Toolkit), "
            "or request nvidia.com/gpu in Kubernetes",
        )
    if facts.driver_cuda is None and facts.kernel_driver is None and not said:
        return Finding(
            "no-driver",
            f"{facts.pci_gpus} NVIDIA GPU(s) on the PCI bus, but no NVIDIA driver",
            "install the driver (Ubuntu: sudo ubuntu-drivers install; others: "
            "https://www.nvidia.com/drivers), then restart; no CUDA toolkit is needed",
        )
    if "No devices" in said:
        return Finding(
            "no-device",
            "the driver runs, but finds no GPU",
            "look for NVRM and Xid in the kernel's log (sudo dmesg); check power and seating; in a "
            "container or virtual machine, pass the GPU through",
        )
    if facts.driver_cuda is not None and not said and facts.kernel_driver:
        return None  # nvidia-smi is not installed, as in slim containers: nothing is known
    return Finding(
        "driver-not-running",
        f"the driver is installed, but its kernel module does not answer: {said or 'not loaded'}",
        "sudo modprobe nvidia shows why: after a kernel update install the driver again, with "
        "Secure Boot sign or enroll its module",
    )


def _wheel_findings(facts: Facts) -> list[Finding]:
    """Where the wheel does not fit the driver or the cards."""
    if facts.wheel_cuda is None:
        return [
            Finding(
                "cpu-wheel",
                f"torch {facts.wheel} was built without CUDA",
                "pip uninstall torch, then install the CUDA build: on Linux pip install torch, on "
                "Windows add --index-url https://download.pytorch.org/whl/cu130",
            )
        ]
    findings = []
    major = int(facts.wheel_cuda.split(".")[0])
    if facts.driver_cuda and facts.driver_cuda[0] < major:
        oldest = f" to branch {OLDEST_DRIVER[major]} or newer" if major in OLDEST_DRIVER else ""
        # The wheels for CUDA 12 hold no code for Blackwell, so there is no way around the driver.
        newest = max((c for _, c in facts.driver_gpus if c), default=(0, 0))
        older_wheel = (
            "; or, where you cannot, install an older release, for CUDA 12: "
            "pip install torch --index-url https://download.pytorch.org/whl/cu126"
            if facts.driver_cuda[0] == 12 and newest < (10, 0)
            else ""
        )
        findings.append(
            Finding(
                "old-driver",
                f"the wheel was built with CUDA {facts.wheel_cuda}, and driver "
                f"{facts.driver_version or facts.kernel_driver or ''} supports CUDA up to "
                f"{facts.driver_cuda[0]}.{facts.driver_cuda[1]}",
                f"update the driver{oldest}{older_wheel}",
            )
        )
    return findings + _no_kernels(facts.driver_gpus, facts.wheel_archs)


def diagnose(facts: Facts) -> list[Finding]:
    """Return what keeps torch from using the GPUs; an empty list means healthy.

    A GPU that torch sees needs only code for its architecture. Where torch sees none, the causes
    are looked for from the hardware up: card, driver, wheel, environment.

    Parameters
    ----------
    facts : Facts
        From :func:`gather`, or made up.
    """
    if facts.torch_gpus:
        return _no_kernels(facts.torch_gpus, facts.wheel_archs)
    if not (facts.pci_gpus or facts.kernel_driver or facts.driver_gpus or facts.smi_error):
        hint = "check lspci, or what the machine's provider promised"
        if facts.wsl:
            hint = "if Windows has one, install its driver in Windows, not inside WSL"
        elif facts.container:
            hint = "if the host has one, start the container with docker run --gpus all"
        return [
            Finding(
                "no-gpu",
                "there is no NVIDIA GPU here, or nothing shows it",
                f"none is needed to read this book; {hint}",
            )
        ]
    driver = _driver_finding(facts)
    findings = ([driver] if driver else []) + _wheel_findings(facts)
    count = len(facts.driver_gpus) or facts.pci_gpus or 1
    if visible(facts.visible_devices, count) == []:
        findings.append(
            Finding(
                "hidden",
                f"CUDA_VISIBLE_DEVICES={facts.visible_devices!r} hides "
                f"{'the only GPU' if count == 1 else f'all {count} GPUs'}",
                "unset CUDA_VISIBLE_DEVICES, or name GPUs that exist, before Python starts",
            )
        )
    return findings or [
        Finding(
            "unknown",
            f"the driver, the wheel and the card fit, but torch says: "
            f"{facts.torch_error or 'no GPU'}",
            "Error 802: start the fabric manager (sudo systemctl start nvidia-fabricmanager); "
            "otherwise check the UUIDs in CUDA_VISIBLE_DEVICES, the rights on /dev/nvidia*, and "
            "restart the machine",
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print facts and findings; return 1 if there is something to repair, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m utils.diagnosis",
        description="Say what driver, wheel and GPU report, and what keeps torch from using a GPU.",
        epilog="Exit status: 0 if a GPU works or there is none, 1 if there is something to repair.",
    )
    parser.parse_args(arguments)
    facts = gather()
    for name, value in dataclasses.asdict(facts).items():
        print(f"{name:16} {value}")
    findings = diagnose(facts)
    for finding in findings:
        print(f"\nProblem: {finding.problem}.\nRemedy:  {finding.remedy}.")
    if not findings:
        print(f"\nNothing to repair: torch can use {len(facts.torch_gpus)} GPU(s).")
    return int(any(finding.cause != "no-gpu" for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
