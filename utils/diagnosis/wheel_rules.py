"""Whether the wheel can be imported, and fits the driver and the cards."""

import re
from collections.abc import Sequence

from utils.diagnosis.compatibility import JETSON, OLDEST_DRIVER, cuda_of, runs_on, wheel_for
from utils.diagnosis.facts import Facts
from utils.diagnosis.finding import Finding

Gpus = Sequence[tuple[str, tuple[int, int] | None]]  # name and compute capability of each


def _install(index: str) -> str:
    # Without the option pip leaves an installed torch as it is, whatever CUDA it was built with.
    return (
        "pip install --force-reinstall torch torchvision "
        f"--index-url https://download.pytorch.org/whl/{index}"
    )


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
    if index and too_old and cuda_of(index)[0] == 12:
        remedy = "install an older release, for CUDA 12, that still holds it: "
        return remedy + _install(index), _install(index)
    if index and (too_old or cuda_of(index)[0] == 12):
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


def no_kernels(facts: Facts, gpus: Gpus) -> list[Finding]:
    """A finding for each of ``gpus`` that nothing in the wheel runs on."""
    if facts.wheel_cuda is None or not facts.wheel_archs:
        return []  # a wheel for AMD's GPUs, or one that does not say what it holds
    major, minor = facts.wheel_cuda.split(".")[:2]
    cuda = (int(major), int(minor))
    findings = []
    for name, capability in gpus:
        if capability is None or any(_may_run(a, capability, cuda) for a in facts.wheel_archs):
            continue
        findings.append(
            Finding(
                "no-kernels",
                f"{name} has compute capability {capability[0]}.{capability[1]}, and this wheel "
                f"holds code for {', '.join(facts.wheel_archs)} only",
                *_advice_for(facts, gpus, capability),
            )
        )
    return findings


def import_findings(facts: Facts) -> list[Finding]:
    """Why torch cannot be imported."""
    said = facts.import_error
    if said is None:
        return []
    if said.startswith("No module named"):
        return [
            Finding(
                "no-torch",
                "torch is not installed in this Python",
                "activate the environment that has it, or install it: "
                "pip install -r requirements.txt",
                "source .venv/bin/activate, or pip install -r requirements.txt",
            )
        ]
    reinstall = "pip install --force-reinstall torch torchvision"
    own = re.search(r"\(from (.+)\)$", said)
    if ".so" in said or "DLL" in said:
        step = reinstall
    elif own and "-packages" not in own[1]:
        step = f"rename {own[1]} if it is yours: Python takes it for torch"
    else:
        step = 'python -c "import torch", to see the whole error'
    return [
        Finding(
            "broken-torch",
            f"torch is installed, but importing it fails: {said}",
            "unset LD_LIBRARY_PATH, which can put other libraries before the wheel's; rename a "
            "file or folder of your own called torch; if neither is it, install torch again: "
            f"{reinstall}",
            step,
        )
    ]


def wheel_findings(facts: Facts) -> list[Finding]:
    """Where the wheel does not fit the driver or the cards, or there is none that works."""
    if facts.import_error:
        return import_findings(facts)
    index = wheel_for((found for _, found in facts.driver_gpus if found), facts.driver_cuda)
    if facts.wheel_cuda is None:
        plain = index is None or cuda_of(index)[0] > 12
        return [
            Finding(
                "cpu-wheel",
                f"torch {facts.wheel} was built without CUDA",
                "pip uninstall torch torchvision, then install the CUDA build: on Linux "
                "pip install torch torchvision, on Windows add --index-url https://download.pytorch.org/whl/cu130"
                if plain
                else f"install the CUDA build that this machine runs: {_install(index)}",
                _install(index or "cu130"),
            )
        ]
    findings = []
    major = int(facts.wheel_cuda.split(".")[0])
    if facts.driver_cuda and facts.driver_cuda[0] < major:
        oldest = f" to branch {OLDEST_DRIVER[major]} or newer" if major in OLDEST_DRIVER else ""
        update = f"update the driver{oldest}"
        version = facts.driver_version or facts.kernel_driver
        instead = (
            "; or, where you cannot, install an older release, for CUDA "
            f"{cuda_of(index)[0]}: {_install(index)}"
            if index
            else ""
        )
        findings.append(
            Finding(
                "old-driver",
                f"the wheel was built with CUDA {facts.wheel_cuda}, and "
                f"{f'driver {version}' if version else 'the driver'} supports CUDA up to "
                f"{'.'.join(map(str, facts.driver_cuda))}",
                update + instead,
                _install(index) if index else update,
            )
        )
    return findings + no_kernels(facts, facts.driver_gpus)
