"""gpu_check.py: does PyTorch compute on this GPU, and if not, why."""

import shutil

import torch

DRIVER, TORCH = "sudo ubuntu-drivers install, then sudo reboot", "torch torchvision"
PIP = f"pip install --force-reinstall {TORCH} --index-url https://download.pytorch.org/whl"
CAUSES = {  # words of torch's error: what is wrong, and the command that repairs it
    "no NVIDIA driver": ("no GPU or no driver", f"{DRIVER}; or docker run --gpus all"),
    "too old": ("driver too old", f"{DRIVER}; or {PIP}/cu126"),
    "not compiled with CUDA": ("CPU-only wheel", f"{PIP}/cu130"),
    "kernel image": ("no kernels for this GPU", f"{PIP}/cu126 (new GPU: pip install -U {TORCH})"),
    "": ("GPU hidden, busy or in a wrong mode", "unset CUDA_VISIBLE_DEVICES; nvidia-smi"),
}


def check() -> str:
    """What works or, of five things, what is wrong and what to run."""
    try:
        x = torch.ones(1024, 1024, device="cuda")
        flops = 2 * (x @ x).sum().item()  # every product and every sum counts
        return f"works: {torch.cuda.get_device_name()} did {flops:,.0f} operations"
    except (RuntimeError, AssertionError) as error:
        said = str(error)
    no_gpu = torch.version.cuda is None and shutil.which("nvidia-smi") is None
    words = "no NVIDIA driver" if no_gpu else next(w for w in CAUSES if w in said)
    cause, command = CAUSES[words]
    return f"{cause}. Run: {command}" + f" ({said.splitlines()[0]})" * (words == "")


print(check())
