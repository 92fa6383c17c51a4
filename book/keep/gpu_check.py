"""gpu_check.py: does PyTorch compute on this GPU, and if not, why."""

import torch

IF_GPU, TORCH = "with an NVIDIA GPU: ", "torch torchvision"
DRIVER = "sudo ubuntu-drivers install, then reboot (WSL: in Windows; others: nvidia.com/drivers)"
PIP = f"pip install --force-reinstall {TORCH} --index-url https://download.pytorch.org/whl"
CAUSES = {  # words of torch's error: what is wrong, and what to do
    "no NVIDIA driver": ("no GPU or no driver", f"{IF_GPU}{DRIVER}; or docker run --gpus all"),
    "not compiled with CUDA": ("wheel has no CUDA", f"{IF_GPU}{PIP}/cu130; on a Mac: device='mps'"),
    "is too old": ("driver too old", f"{DRIVER}; or {PIP}/cu126 (Blackwell: cu128)"),
    "no kernel image": ("no code for this GPU", f"{PIP}/cu126 (new GPU: pip install -U {TORCH})"),
    "No CUDA GPUs": ("GPU hidden or not given", "unset CUDA_VISIBLE_DEVICES; see nvidia-smi -L"),
    "busy or unavailable": ("GPU taken by another process", "nvidia-smi -q -d COMPUTE,PIDS"),
    "not yet initialized": ("802: no fabric manager", "sudo systemctl start nvidia-fabricmanager"),
    "display driver / cuda": ("803: half-updated driver", "sudo reboot; container: no cuda-compat"),
}


def check() -> str:
    """What works or, where torch's error tells, what is wrong and what to do."""
    try:
        x = torch.ones(1024, 1024, device="cuda")
        flops = 2 * (x @ x).sum().item()  # every product and every sum counts
        return f"works: {torch.cuda.get_device_name()} did {flops:,.0f} operations"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    found = [f"{cause}\n{remedy}" for words, (cause, remedy) in CAUSES.items() if words in said]
    return found[0] if found else f"not one of these {len(CAUSES)}: {said.splitlines()[0]}"


if __name__ == "__main__":
    print(check())
