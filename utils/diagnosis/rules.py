"""Which of the things is wrong, and what to do about it: reasoning from the facts alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from utils.diagnosis.compatibility import (
    JETSON,
    OLDEST_DRIVER,
    cuda_of,
    runs_on,
    visible,
    wheel_for,
)
from utils.diagnosis.facts import Facts

READ_ON = "read on with book/12_gpus.ipynb"
INSTALL_DRIVER = (
    "sudo ubuntu-drivers install, then sudo reboot (not Ubuntu: https://www.nvidia.com/drivers)"
)
REINSTALL = "pip install --force-reinstall torch torchvision"
Gpus = Sequence[tuple[str, tuple[int, int] | None]]  # name and compute capability of each


@dataclass(frozen=True)
class Finding:
    """One thing that keeps torch from using a GPU.

    Attributes
    ----------
    cause : str
        A short name for it.
    problem, remedy : str
        What it is, and what can be done about it.
    step : str
        The first thing to do: a command wherever one exists.
    """

    cause: str
    problem: str
    remedy: str
    step: str


def what_is_wrong(facts: Facts) -> list[Finding]:
    """Return what keeps torch from using the GPUs; an empty list means healthy.

    A GPU that torch sees needs only code for its architecture. Where torch sees none, the causes
    are looked for from the hardware up: card, driver, wheel, environment. Repair the first first.

    Parameters
    ----------
    facts : Facts
        From :func:`~utils.diagnosis.gather`, or made up.
    """
    if facts.torch_gpus:
        return _no_kernels(facts, facts.torch_gpus)
    if not (facts.pci_gpus or facts.kernel_driver or facts.driver_gpus or facts.smi_error):
        return list(filter(None, [_no_import(facts), _no_gpu(facts)]))
    wheel = [_no_import(facts)] if facts.import_error else _wheel_findings(facts)
    return list(filter(None, [_no_driver(facts), *wheel, _hidden(facts)])) or [_unknown(facts)]


def _no_driver(facts: Facts) -> Finding | None:
    """Why the driver offers no GPU at all, though there are signs of one."""
    said = facts.smi_error or ""
    if facts.driver_gpus:
        return None
    if "mismatch" in said:
        module = f" ({facts.kernel_driver})" if facts.kernel_driver else ""
        return Finding(
            "driver-mismatch",
            "the driver was updated under a running system: its library and its kernel module"
            f"{module} differ in version",
            "restart the machine, which loads the new module",
            "sudo reboot",
        )
    if facts.container and facts.driver_cuda is None:
        return Finding(
            "container",
            "this container was started without GPUs: the driver's library is not in it",
            "start it with docker run --gpus all (the host needs the NVIDIA Container Toolkit), "
            "or request nvidia.com/gpu in Kubernetes",
            "docker run --gpus all, with the image of this container; in Kubernetes, request "
            "nvidia.com/gpu",
        )
    if facts.driver_cuda is None and facts.kernel_driver and not said:
        return Finding(
            "no-library",
            f"the driver's kernel module ({facts.kernel_driver}) is loaded, but its library "
            "(libcuda) is not installed",
            "install the whole driver, of the same version (Ubuntu: sudo ubuntu-drivers install; "
            "others: https://www.nvidia.com/drivers), then restart",
            INSTALL_DRIVER,
        )
    if facts.driver_cuda is None and not said:
        return Finding(
            "no-driver",
            f"{facts.pci_gpus} NVIDIA GPU(s) on the PCI bus, but no NVIDIA driver",
            "install the driver (Ubuntu: sudo ubuntu-drivers install; others: "
            "https://www.nvidia.com/drivers), then restart; no CUDA toolkit is needed",
            INSTALL_DRIVER,
        )
    if "No devices" in said:
        return Finding(
            "no-device",
            "the driver runs, but finds no GPU",
            "look for NVRM and Xid in the kernel's log (sudo dmesg); check power and seating; in a "
            "container or virtual machine, pass the GPU through",
            "sudo dmesg | grep -iE 'nvrm|xid'",
        )
    if facts.kernel_driver and not said:
        return None  # nvidia-smi is not installed, as in slim containers: nothing is known
    return Finding(
        "driver-not-running",
        f"the driver is installed, but its kernel module does not answer: {said or 'not loaded'}",
        "sudo modprobe nvidia shows why: after a kernel update install the driver again, with "
        "Secure Boot sign or enroll its module",
        "sudo modprobe nvidia",
    )


def _no_gpu(facts: Facts) -> Finding:
    hint = "check lspci, or what the machine's provider promised"
    if facts.wsl:
        hint = "if Windows has one, install its driver in Windows, not inside WSL"
    elif facts.container:
        hint = "if the host has one, start the container with docker run --gpus all"
    return Finding(
        "no-gpu",
        "there is no NVIDIA GPU here, or nothing shows it",
        f"none is needed to read this book; {hint}",
        f"{READ_ON}: it runs here, and shows what was measured on a GPU",
    )


def _hidden(facts: Facts) -> Finding | None:
    """Whether CUDA_VISIBLE_DEVICES leaves no GPU."""
    count = len(facts.driver_gpus) or facts.pci_gpus or 1
    if visible(facts.visible_devices, count) != []:
        return None
    return Finding(
        "hidden",
        f"CUDA_VISIBLE_DEVICES={facts.visible_devices!r} hides "
        f"{'the only GPU' if count == 1 else f'all {count} GPUs'}",
        "unset CUDA_VISIBLE_DEVICES, or name GPUs that exist, before Python starts",
        "unset CUDA_VISIBLE_DEVICES",
    )


def _unknown(facts: Facts) -> Finding:
    if "802" in (facts.torch_error or ""):
        step = "sudo systemctl start nvidia-fabricmanager"
    elif facts.visible_devices is not None:
        step = "unset CUDA_VISIBLE_DEVICES, then run this again"
    else:
        step = "ls -l /dev/nvidia*, to see whether you may read and write them"
    return Finding(
        "unknown",
        f"the driver, the wheel and the card fit, but torch says: {facts.torch_error or 'no GPU'}",
        "Error 802: start the fabric manager (sudo systemctl start nvidia-fabricmanager); "
        "otherwise check the UUIDs in CUDA_VISIBLE_DEVICES, the rights on /dev/nvidia*, and "
        "restart the machine",
        step,
    )


def _no_import(facts: Facts) -> Finding | None:
    """Why torch cannot be imported."""
    said = facts.import_error
    if said is None:
        return None
    if said.startswith("No module named"):
        return Finding(
            "no-torch",
            "torch is not installed in this Python",
            "activate the environment that has it, or install it: pip install -r requirements.txt",
            "source .venv/bin/activate, or pip install -r requirements.txt",
        )
    own = re.search(r"\(from (.+)\)$", said)
    if ".so" in said or "DLL" in said:
        step = REINSTALL
    elif own and "-packages" not in own[1]:
        step = f"rename {own[1]} if it is yours: Python takes it for torch"
    else:
        step = 'python -c "import torch", to see the whole error'
    return Finding(
        "broken-torch",
        f"torch is installed, but importing it fails: {said}",
        "unset LD_LIBRARY_PATH, which can put other libraries before the wheel's; rename a "
        "file or folder of your own called torch; if neither is it, install torch again: "
        f"{REINSTALL}",
        step,
    )


# --- the wheel, the driver and the cards ---------------------------------------------------------


def _install(index: str) -> str:
    # Without the option pip leaves an installed torch as it is, whatever CUDA it was built with.
    return f"{REINSTALL} --index-url https://download.pytorch.org/whl/{index}"


def _wheel_findings(facts: Facts) -> list[Finding]:
    """Where the wheel does not fit the driver or the cards."""
    index = wheel_for((found for _, found in facts.driver_gpus if found), facts.driver_cuda)
    if facts.wheel_cuda is None:
        remedy = f"install the CUDA build that this machine runs: {_install(index or 'cu130')}"
        if index is None or cuda_of(index)[0] > 12:
            remedy = (
                "pip uninstall torch torchvision, then install the CUDA build: on Linux "
                "pip install torch torchvision, on Windows add --index-url https://download.pytorch.org/whl/cu130"
            )
        problem = f"torch {facts.wheel} was built without CUDA"
        return [Finding("cpu-wheel", problem, remedy, _install(index or "cu130"))]
    kernels = _no_kernels(facts, facts.driver_gpus)
    major = int(facts.wheel_cuda.split(".")[0])
    if facts.driver_cuda is None or facts.driver_cuda[0] >= major:
        return kernels
    version = facts.driver_version or facts.kernel_driver
    branch = f" to branch {OLDEST_DRIVER[major]} or newer" if major in OLDEST_DRIVER else ""
    remedy = step = f"update the driver{branch}"
    if index:
        step = _install(index)
        older = f"install an older release, for CUDA {cuda_of(index)[0]}"
        remedy += f"; or, where you cannot, {older}: {step}"
    problem = (
        f"the wheel was built with CUDA {facts.wheel_cuda}, and "
        f"{f'driver {version}' if version else 'the driver'} supports CUDA up to "
        f"{'.'.join(map(str, facts.driver_cuda))}"
    )
    return [Finding("old-driver", problem, remedy, step), *kernels]


def _no_kernels(facts: Facts, gpus: Gpus) -> list[Finding]:
    """A finding for each of ``gpus`` that nothing in the wheel runs on."""
    if facts.wheel_cuda is None or not facts.wheel_archs:
        return []  # a wheel for AMD's GPUs, or one that does not say what it holds
    major, minor = map(int, facts.wheel_cuda.split(".")[:2])
    return [
        Finding(
            "no-kernels",
            f"{name} has compute capability {capability[0]}.{capability[1]}, and this wheel "
            f"holds code for {', '.join(facts.wheel_archs)} only",
            *_advice_for(facts, gpus, capability),
        )
        for name, capability in gpus
        if capability
        and not any(_may_run(a, capability, (major, minor)) for a in facts.wheel_archs)
    ]


def _may_run(arch: str, capability: tuple[int, int], cuda: tuple[int, int]) -> bool:
    """Whether code for ``arch`` runs, or is of a kind too new for us to say."""
    try:
        return runs_on(arch, capability, cuda)
    except ValueError:
        return True


def _advice_for(facts: Facts, gpus: Gpus, capability: tuple[int, int]) -> tuple[str, str]:
    """Remedy and step for one of ``gpus`` that the wheel holds no code for."""
    if capability in JETSON:
        return (
            "install a wheel built for this Jetson board, or update its JetPack: "
            "https://pypi.jetson-ai-lab.io",
            "look for a wheel that fits this JetPack: https://pypi.jetson-ai-lab.io",
        )
    oldest = min(int(re.sub(r"\D", "", arch)) for arch in facts.wheel_archs)
    too_old = capability[0] * 10 + capability[1] < oldest
    index = wheel_for((found for _, found in gpus if found), facts.driver_cuda)
    for_cuda_12 = index is not None and cuda_of(index)[0] == 12
    if too_old and for_cuda_12:
        remedy = "install an older release, for CUDA 12, that still holds it: "
        return remedy + _install(index), _install(index)
    if index and (too_old or for_cuda_12):
        remedy = "install a wheel that holds it and that this driver runs: "
        return remedy + _install(index), _install(index)
    if not too_old:
        command = "pip install --upgrade torch torchvision"
        return f"install a newer release of torch: {command}", command
    if len(gpus) > 1:
        return (
            "no wheel holds code for all of these GPUs: hide this one with CUDA_VISIBLE_DEVICES, "
            "before Python starts",
            "nvidia-smi -L, then export CUDA_VISIBLE_DEVICES with the UUIDs of the other GPUs",
        )
    return (
        "no wheel for CUDA 12 or newer holds it: compute on the CPU, or on a newer GPU",
        'use device="cpu"',
    )
