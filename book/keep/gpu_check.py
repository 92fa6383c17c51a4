"""gpu_check.py: does PyTorch compute on this GPU, and if not, why."""

import torch

DRIVER = "\nsudo ubuntu-drivers install, then reboot\n(WSL: in Windows; others: nvidia.com/drivers)"
PIP = "pip install --force-reinstall torch torchvision --index-url https://download.pytorch.org/whl"
NEW = f"\n{PIP}/cu130\n(V100, GTX 10 and older: cu126; driver below 580: cu126, Blackwell cu128)"
CAUSES = {  # words of torch's error: what is wrong, and what to do
    "no NVIDIA driver": f"no GPU or no driver (container: docker run --gpus all). For one:{DRIVER}",
    "not compiled with CUDA": f"wheel has no CUDA (Mac: device='mps'). With an NVIDIA GPU:{NEW}",
    "is too old": f"driver too old:{DRIVER}\nor {PIP}/cu126\n(Blackwell: cu128)",
    "no kernel image| capability": f"no code for a GPU:{NEW}",
    "No CUDA GPUs": "GPU hidden or not given:\nunset CUDA_VISIBLE_DEVICES; see nvidia-smi -L",
    "busy or unavail|of memory|cublasCreate": "GPU taken or full:\nnvidia-smi -q -d MEMORY,PIDS",
    "unknown error|initialization failed": "driver fails:\nsudo reboot, or reload nvidia_uvm",
    "not yet initialized": "802, no fabric manager:\nsudo systemctl start nvidia-fabricmanager",
    "display driver /|forward compat": "803, 804, libcuda misfits:\nsudo reboot, or no cuda-compat",
}


def check() -> str:
    """What cuda:0 did or, where torch's error tells, what is wrong and what to do."""
    try:
        x = torch.ones(1024, 1024, device="cuda")  # every product and every sum counts:
        return f"works: {torch.cuda.get_device_name()} did {2 * (x @ x).sum():,.0f} operations"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    found = [CAUSES[key] for key in CAUSES if any(words in said for words in key.split("|"))]
    return found[0] if found else f"not one of these {len(CAUSES)}: {said.splitlines()[0]}"


if __name__ == "__main__":
    print(check())
