"""fused_softmax.py: a kernel of your own."""

from importlib.util import find_spec

import torch

if TRITON := find_spec("triton") is not None:  # PyTorch's builds for CUDA on Linux bring it
    import triton
    import triton.language as tl

    @triton.jit
    def row_kernel(x, y, width, BLOCK: tl.constexpr):
        row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)  # row * width may be > 2**31
        v = tl.load(x + row * width + at, at < width, other=-float("inf")).to(tl.float32)
        e = tl.exp(v - tl.max(v, 0))
        tl.store(y + row * width + at, e / tl.sum(e, 0), at < width)


def fused_softmax(x):
    """Softmax of rows of 1,024 to 16,384 on CUDA; of others, or to train, PyTorch's."""
    known = TRITON and x.is_cuda and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    learns = x.requires_grad and torch.is_grad_enabled()
    if not (known and x.dim() and x.numel() > 0 and 1024 <= x.shape[-1] <= 16384) or learns:
        return torch.softmax(x, -1)
    x, width, block = x.contiguous(), x.shape[-1], triton.next_power_of_2(x.shape[-1])
    y = torch.empty_like(x, dtype=torch.float32 if torch.is_autocast_enabled("cuda") else None)
    warps = min(32, max(4, block // 512))
    with torch.cuda.device(x.device):  # a launch goes to the current GPU
        row_kernel[(x.numel() // width,)](x, y, width, BLOCK=block, num_warps=warps)
    return y


if __name__ == "__main__":
    x = torch.randn(5, 2000, device="cuda" if torch.cuda.is_available() else "cpu")
    print(f"a row adds up to {fused_softmax(x)[0].sum().item():.3f}")
