"""What the machine says about its GPUs: the operating system, the driver, the wheel and torch."""

import importlib
import os
import re
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from utils.device import newest_cuda, nvidia_smi, smi_error


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
    wheel : str or None
        ``torch.__version__``; None if torch cannot be imported.
    wheel_cuda : str or None
        CUDA version the wheel was built with; None for a build without CUDA.
    wheel_archs : tuple of str
        Architectures it holds machine code (``sm_90``) or PTX (``compute_90``) for.
    torch_gpus : tuple of (str, tuple of int)
        Name and compute capability of every GPU that torch can use.
    torch_error : str or None
        What torch raises when it can use none.
    import_error : str or None
        What ``import torch`` raises, and from which file.
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
    wheel: str | None = None
    wheel_cuda: str | None = None
    wheel_archs: tuple[str, ...] = ()
    torch_gpus: tuple[tuple[str, tuple[int, int]], ...] = ()
    torch_error: str | None = None
    import_error: str | None = None


# A machine on which everything fits, for those who show what becomes of it if something does not.
HEALTHY = Facts(
    pci_gpus=1,
    kernel_driver="580.65.06",
    driver_cuda=(13, 0),
    driver_version="580.65.06",
    driver_gpus=(("NVIDIA H100 80GB HBM3", (9, 0)),),
    wheel="2.11.0+cu130",
    wheel_cuda="13.0",
    wheel_archs=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    torch_gpus=(("NVIDIA H100 80GB HBM3", (9, 0)),),
)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def wheel_archs() -> tuple[str, ...]:
    """Return the architectures that the installed torch holds code for; needs no GPU.

    ``torch.cuda.get_arch_list()`` answers ``[]`` without a GPU in torch 2.11, though no longer in
    2.15; hence the function beneath it.
    """
    import torch

    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return tuple((flags or "").split())


def _torch_gpus(torch: ModuleType) -> tuple[tuple[tuple[str, tuple[int, int]], ...], str | None]:
    """Name and capability of each GPU that torch can use, or what it says if there is none.

    This initializes CUDA in the process: what is forked from it later cannot use CUDA.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # init raises what it warns of
        try:
            torch.cuda.init()
            found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
            return tuple((gpu.name, (gpu.major, gpu.minor)) for gpu in found), None
        except Exception as error:  # RuntimeError, AssertionError, and a class of torch's own
            return (), _first_line(error)


def _torch_facts() -> dict:
    """The facts that only torch knows, by their names; or what keeps it from being imported."""
    try:
        torch = importlib.import_module("torch")  # a folder called torch has no version
        versions = {"wheel": str(torch.__version__), "wheel_cuda": torch.version.cuda}
    except Exception as error:  # a library that is missing, one of another version, a torch.py …
        spec = find_spec("torch")
        if spec is None:
            return {"import_error": _first_line(error)}
        place = spec.origin or next(iter(spec.submodule_search_locations or ()), "?")
        return {"import_error": f"{type(error).__name__}: {_first_line(error)} (from {place})"}
    gpus, error = _torch_gpus(torch)
    return {**versions, "wheel_archs": wheel_archs(), "torch_gpus": gpus, "torch_error": error}


def _driver_gpus() -> tuple[str | None, tuple[tuple[str, tuple[int, int] | None], ...]]:
    """Driver version, and name and capability of each GPU, as nvidia-smi gives them."""
    version, gpus = None, []
    # Drivers before 2021 do not know compute_cap.
    lines = nvidia_smi("driver_version,name,compute_cap") or nvidia_smi("driver_version,name")
    for line in lines or []:
        parts = [part.strip() for part in line.split(",")]
        if len(parts) < 2:  # a remark, not a GPU
            continue
        version, name, *rest = parts
        number = re.fullmatch(r"(\d+)\.(\d+)", rest[0]) if rest else None
        gpus.append((name, (int(number[1]), int(number[2])) if number else None))
    return version, tuple(gpus)


def _read(file: Path) -> str:
    """What a file of the system says; nothing if it is not there, or not for us."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def gather(root: Path = Path("/")) -> Facts:
    """Ask the operating system, the driver, the wheel and torch.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are; tests give another folder.
    """
    pci = 0
    for card in root.glob("sys/bus/pci/devices/*"):
        display = _read(card / "class").startswith("0x03")
        pci += display and _read(card / "vendor") == "0x10de"  # NVIDIA's number
    loaded = re.search(r"\d+\.\d+(\.\d+)?", _read(root / "proc/driver/nvidia/version"))
    driver_version, driver_gpus = _driver_gpus()
    return Facts(
        pci_gpus=pci,
        container=any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv"))
        or "KUBERNETES_SERVICE_HOST" in os.environ,
        wsl="microsoft" in _read(root / "proc/sys/kernel/osrelease").lower(),
        kernel_driver=loaded[0] if loaded else None,
        driver_cuda=newest_cuda(),
        driver_version=driver_version,
        driver_gpus=driver_gpus,
        smi_error=None if driver_gpus else smi_error(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        **_torch_facts(),
    )
