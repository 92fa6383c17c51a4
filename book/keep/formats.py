"""formats.py: the format to train in here."""

import torch

SINCE = {"fp16": (7, 0), "TF32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "mxfp8": (10, 0)}


def training_dtype():
    """The format for torch.autocast here, and whether it needs a GradScaler."""
    nvidia = torch.version.cuda and torch.cuda.is_available()  # the table is NVIDIA's
    has = torch.cuda.get_device_capability() if nvidia else (0, 0)
    if has >= SINCE["bf16"]:
        return torch.bfloat16, False
    if has >= SINCE["fp16"]:
        return torch.float16, True  # V100, T4, RTX 20: their tensor cores know no bf16
    return torch.float32, False  # GTX 10, P100: no tensor cores; many CPUs know no bf16


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and torch.version.cuda:
        has = torch.cuda.get_device_capability()
        known = [name for name, since in SINCE.items() if has >= since]
        print(torch.cuda.get_device_name(), "knows", *known)
    dtype, scaled = training_dtype()
    x = torch.randn(1024, 1024, device=device)
    exact = x.double() @ x.double()
    error = ((x.to(dtype) @ x.to(dtype)).double() - exact).norm() / exact.norm()
    print(f"train in {dtype}, {'with' if scaled else 'without'} a GradScaler;", end=" ")
    print(f"a product on the {device} is off by {100 * error:.2g}%")
