"""Which of the things is wrong, and what to do about it: reasoning from the facts alone."""

from utils.diagnosis.compatibility import visible
from utils.diagnosis.facts import Facts
from utils.diagnosis.finding import READ_ON, Finding
from utils.diagnosis.wheel_rules import import_findings, no_kernels, wheel_findings


def _driver_findings(facts: Facts) -> list[Finding]:
    """Why the driver offers no GPU at all, though there are signs of one."""
    said = facts.smi_error or ""
    if facts.driver_gpus:
        return []
    if "mismatch" in said:
        module = f" ({facts.kernel_driver})" if facts.kernel_driver else ""
        finding = Finding(
            "driver-mismatch",
            "the driver was updated under a running system: its library and its kernel module"
            f"{module} differ in version",
            "restart the machine, which loads the new module",
            "sudo reboot",
        )
    elif facts.container and facts.driver_cuda is None:
        finding = Finding(
            "container",
            "this container was started without GPUs: the driver's library is not in it",
            "start it with docker run --gpus all (the host needs the NVIDIA Container Toolkit), "
            "or request nvidia.com/gpu in Kubernetes",
            "docker run --gpus all, with the image of this container; in Kubernetes, request "
            "nvidia.com/gpu",
        )
    elif facts.driver_cuda is None and facts.kernel_driver and not said:
        finding = Finding(
            "no-library",
            f"the driver's kernel module ({facts.kernel_driver}) is loaded, but its library "
            "(libcuda) is not installed",
            "install the whole driver, of the same version (Ubuntu: sudo ubuntu-drivers install; "
            "others: https://www.nvidia.com/drivers), then restart",
            "sudo ubuntu-drivers install, then sudo reboot (not Ubuntu: "
            "https://www.nvidia.com/drivers)",
        )
    elif facts.driver_cuda is None and not said:
        finding = Finding(
            "no-driver",
            f"{facts.pci_gpus} NVIDIA GPU(s) on the PCI bus, but no NVIDIA driver",
            "install the driver (Ubuntu: sudo ubuntu-drivers install; others: "
            "https://www.nvidia.com/drivers), then restart; no CUDA toolkit is needed",
            "sudo ubuntu-drivers install, then sudo reboot (not Ubuntu: "
            "https://www.nvidia.com/drivers)",
        )
    elif "No devices" in said:
        finding = Finding(
            "no-device",
            "the driver runs, but finds no GPU",
            "look for NVRM and Xid in the kernel's log (sudo dmesg); check power and seating; in a "
            "container or virtual machine, pass the GPU through",
            "sudo dmesg | grep -iE 'nvrm|xid'",
        )
    elif facts.kernel_driver and not said:
        return []  # nvidia-smi is not installed, as in slim containers: nothing is known
    else:
        finding = Finding(
            "driver-not-running",
            "the driver is installed, but its kernel module does not answer: "
            f"{said or 'not loaded'}",
            "sudo modprobe nvidia shows why: after a kernel update install the driver again, with "
            "Secure Boot sign or enroll its module",
            "sudo modprobe nvidia",
        )
    return [finding]


def _hidden(facts: Facts) -> list[Finding]:
    """Whether CUDA_VISIBLE_DEVICES leaves no GPU."""
    count = len(facts.driver_gpus) or facts.pci_gpus or 1
    if visible(facts.visible_devices, count) != []:
        return []
    return [
        Finding(
            "hidden",
            f"CUDA_VISIBLE_DEVICES={facts.visible_devices!r} hides "
            f"{'the only GPU' if count == 1 else f'all {count} GPUs'}",
            "unset CUDA_VISIBLE_DEVICES, or name GPUs that exist, before Python starts",
            "unset CUDA_VISIBLE_DEVICES",
        )
    ]


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


def what_is_wrong(facts: Facts) -> list[Finding]:
    """Return what keeps torch from using the GPUs; an empty list means healthy.

    A GPU that torch sees needs only code for its architecture. Where torch sees none, the causes
    are looked for from the hardware up: card, driver, wheel, environment. Repair the first first.

    Parameters
    ----------
    facts : Facts
        From :func:`~utils.diagnosis.facts.gather`, or made up.
    """
    if facts.torch_gpus:
        return no_kernels(facts, facts.torch_gpus)
    if not (facts.pci_gpus or facts.kernel_driver or facts.driver_gpus or facts.smi_error):
        return [*import_findings(facts), _no_gpu(facts)]
    findings = [*_driver_findings(facts), *wheel_findings(facts), *_hidden(facts)]
    return findings or [_unknown(facts)]
