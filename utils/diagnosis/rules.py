"""Which of the things is wrong, and what to do about it: reasoning from the facts alone.

Here stands when a cause is found, in ``causes.json`` what is said of it. A case of a cause, such as
``no-gpu/wsl``, says there only what it says otherwise than the cause.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from utils.diagnosis.compatibility import JETSON, OLDEST_DRIVER, runs_on, visible, wheel_for
from utils.diagnosis.facts import Facts

CAUSES = json.loads(Path(__file__).with_name("causes.json").read_text(encoding="utf-8"))
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


def _finding(case: str, facts: Facts, **values: object) -> Finding:
    """What ``causes.json`` says of a case, with the facts and these values in their places."""
    cause = case.split("/")[0]
    said = {**CAUSES[cause], **CAUSES[case]}
    step = said["step"].format(facts=facts, **values)
    problem, remedy = (
        said[name].format(facts=facts, step=step, **values) for name in ("problem", "remedy")
    )
    return Finding(cause, problem, remedy, step)


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
    broken = _no_import(facts)
    if facts.pci_gpus or facts.kernel_driver or facts.driver_gpus or facts.smi_error:
        found = [*_driver(facts), *(broken or _wheel(facts)), *_hidden(facts)]
        return found or [_unknown(facts)]
    where = "/wsl" if facts.wsl else "/container" if facts.container else ""
    return [*broken, _finding(f"no-gpu{where}", facts)]


def _driver(facts: Facts) -> list[Finding]:
    """Why the driver offers no GPU at all, though there are signs of one."""
    said, module = facts.smi_error or "", facts.kernel_driver
    if facts.driver_gpus:
        return []
    if "mismatch" in said:
        return [_finding("driver-mismatch", facts, module=f" ({module})" if module else "")]
    if facts.driver_cuda is None and facts.container:
        return [_finding("container", facts)]
    if facts.driver_cuda is None and not said:
        return [_finding("no-library" if module else "no-driver", facts)]
    if "No devices" in said:
        return [_finding("no-device", facts)]
    if module and not said:
        return []  # nvidia-smi is not installed, as in slim containers: nothing is known
    return [_finding("driver-not-running", facts, said=said or "not loaded")]


def _hidden(facts: Facts) -> list[Finding]:
    """Whether CUDA_VISIBLE_DEVICES leaves no GPU."""
    count = len(facts.driver_gpus) or facts.pci_gpus or 1
    if visible(facts.visible_devices, count) != []:
        return []
    return [_finding("hidden", facts, gpus="the only GPU" if count == 1 else f"all {count} GPUs")]


def _unknown(facts: Facts) -> Finding:
    said, case = facts.torch_error or "no GPU", "unknown"
    if "802" in said:
        case = "unknown/fabric"
    elif facts.visible_devices is not None:
        case = "unknown/visible-devices"
    return _finding(case, facts, said=said)


def _no_import(facts: Facts) -> list[Finding]:
    """Why torch cannot be imported."""
    said = facts.import_error
    if said is None:
        return []
    if said.startswith("No module named"):
        return [_finding("no-torch", facts)]
    if ".so" in said or "DLL" in said:
        return [_finding("broken-torch/library", facts)]
    file = re.search(r"\(from (.+)\)$", said)
    if file and "-packages" not in file[1]:
        return [_finding("broken-torch/own", facts, file=file[1])]
    return [_finding("broken-torch", facts)]


# --- the wheel, the driver and the cards ---------------------------------------------------------


def _wheel(facts: Facts) -> list[Finding]:
    """Where the wheel does not fit the driver or the cards."""
    wheel = wheel_for((found for _, found in facts.driver_gpus if found), facts.driver_cuda)
    if facts.wheel_cuda is None:
        case = "cpu-wheel/cuda-12" if wheel and wheel[0] == 12 else "cpu-wheel"
        return [_finding(case, facts, wheel=wheel or (13, 0))]
    kernels = _no_kernels(facts, facts.driver_gpus)
    major = int(facts.wheel_cuda.split(".")[0])
    if facts.driver_cuda is None or facts.driver_cuda[0] >= major:
        return kernels
    version = facts.driver_version or facts.kernel_driver
    old = _finding(
        "old-driver/older-wheel" if wheel else "old-driver",
        facts,
        driver=f"driver {version}" if version else "the driver",
        supported=".".join(map(str, facts.driver_cuda)),
        branch=f" to branch {OLDEST_DRIVER[major]} or newer" if major in OLDEST_DRIVER else "",
        wheel=wheel,
    )
    return [old, *kernels]


def _no_kernels(facts: Facts, gpus: Gpus) -> list[Finding]:
    """A finding for each of ``gpus`` that nothing in the wheel runs on."""
    if facts.wheel_cuda is None or not facts.wheel_archs:
        return []  # a wheel for AMD's GPUs, or one that does not say what it holds
    major, minor = map(int, facts.wheel_cuda.split(".")[:2])
    wheel = wheel_for((found for _, found in gpus if found), facts.driver_cuda)
    return [
        _finding(
            _no_kernels_case(facts, len(gpus), capability, wheel),
            facts,
            name=name,
            capability=".".join(map(str, capability)),
            archs=", ".join(facts.wheel_archs),
            wheel=wheel,
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


def _no_kernels_case(
    facts: Facts, count: int, capability: tuple[int, int], wheel: tuple[int, int] | None
) -> str:
    """What can be done for one of ``count`` GPUs; ``wheel`` is one that runs on all of them."""
    if capability in JETSON:
        return "no-kernels/jetson"
    oldest = min(int(re.sub(r"\D", "", arch)) for arch in facts.wheel_archs)
    too_old = capability[0] * 10 + capability[1] < oldest
    if wheel and wheel[0] == 12:
        return "no-kernels/older-wheel" if too_old else "no-kernels/other-wheel"
    if not too_old:
        return "no-kernels/newer-wheel"
    if wheel:
        return "no-kernels/other-wheel"
    return "no-kernels/several" if count > 1 else "no-kernels"
