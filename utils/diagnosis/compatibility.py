"""Who runs whom, as NVIDIA and PyTorch publish it: drivers, architectures, visible devices."""

import re
from collections.abc import Iterable

# The oldest Linux driver branch that runs every minor release of a CUDA major version ("minor
# version compatibility"). https://docs.nvidia.com/deploy/cuda-compatibility/
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}

# What PyTorch's wheels for x86 hold code for, by their CUDA version, the one to prefer first.
# The last for CUDA 12 are torch 2.14 on cu126, and 2.11 on cu128, which knows Blackwell.
# https://github.com/pytorch/pytorch/issues/190385 (2.15), 190355 (2.14), 178665 and 172663 (2.11).
WHEELS = {
    (13, 0): ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    (12, 6): ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
    (12, 8): ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
}

# Compute capabilities of NVIDIA's Jetson boards: TX1, TX2, Xavier, Orin, and Thor by both names.
JETSON = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)})


def runs_on(arch: str, capability: tuple[int, int], cuda: tuple[int, int] = (13, 2)) -> bool:
    """Return whether code built for ``arch`` runs on a GPU of this compute capability.

    Machine code (``sm_XY``) runs on its own major version, from its own minor version on. With the
    suffix ``a`` it runs on exactly its own version, with ``f`` on its family, which so far is the
    same major version again. PTX (``compute_XY``) is compiled by the driver for any GPU from its
    own version on; its suffixes narrow it in the same way.

    Jetson boards are an exception: machine code for them runs on no other GPU, and they run only
    their own until CUDA 13.2, from which on they run that of other GPUs by the rules above.

    Parameters
    ----------
    arch : str
        An entry of ``torch.cuda.get_arch_list()``.
    capability : tuple of int
        Such as ``(8, 9)``.
    cuda : tuple of int
        CUDA version that the code was built with; makes a difference to Jetson boards only.

    Raises
    ------
    ValueError
        If ``arch`` is not the name of an architecture.

    Notes
    -----
    Rules: CUDA Programming Guide, 1.3 "The CUDA platform", on cubin and PTX compatibility, and 5.1
    "Compute capabilities", on the suffixes (docs.nvidia.com/cuda/cuda-programming-guide). Jetson:
    the table ``DEVICE_REQUIREMENT`` of ``torch/cuda/__init__.py``, of torch 2.15
    (github.com/pytorch/pytorch/pull/186285).
    """
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
    if found is None:
        raise ValueError(f"{arch!r} is no architecture: expected something like sm_90")
    kind, suffix = found[1], found[4]
    built_for = (int(found[2]), int(found[3]))
    if suffix == "a":
        return capability == built_for
    if kind == "compute" and not suffix:
        return capability >= built_for
    if built_for in JETSON or (capability in JETSON and cuda < (13, 2)):
        return capability == built_for
    return capability[0] == built_for[0] and capability[1] >= built_for[1]


def wheel_for(
    capabilities: Iterable[tuple[int, int]], driver_cuda: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the CUDA version of a wheel that this driver and all these GPUs run, or None.

    Parameters
    ----------
    capabilities : iterable of tuple of int
        Compute capabilities; none of them if they are not known.
    driver_cuda : tuple of int or None
        Newest CUDA version that the driver supports; None, if it is not known, allows all.
    """
    gpus = tuple(capabilities)
    for cuda, archs in WHEELS.items():
        allowed = driver_cuda is None or cuda[0] <= driver_cuda[0]  # minor versions do not matter
        if allowed and all(any(runs_on(arch, gpu, cuda) for arch in archs) for gpu in gpus):
            return cuda
    return None


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

    Notes
    -----
    Rules: CUDA Programming Guide, 5.2 "CUDA environment variables".
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
