"""The first layer of speedrun.py as two Triton kernels: gather, shift and pad; then products."""

import torch
import triton
import triton.language as tl
from torch.nn import functional as F


@triton.jit
def padded(images, order, down, right, out, MOVED: tl.constexpr):
    """An image of 28 x 28 bytes, moved if asked, with a border of two zeros: 32 x 32 bytes."""
    i, at = tl.program_id(0), tl.arange(0, 1024)
    y, x = at // 32 - 2, at % 32 - 2
    if MOVED:
        y, x = y + tl.load(down + i), x + tl.load(right + i)
    inside = (y >= 0) & (y < 28) & (x >= 0) & (x < 28)
    pixels = tl.load(images + tl.load(order + i) * 784 + y * 28 + x, mask=inside, other=0)
    tl.store(out + i.to(tl.int64) * 1024 + at, pixels)


@triton.autotune([triton.Config({}, num_warps=n) for n in (2, 4, 8)], key=["COUNT"])
@triton.jit
def products(images, weights, offsets, out, COUNT: tl.constexpr, WIDE: tl.constexpr):
    """All 14 x 14 places of a padded image: no division and no mask but that of the end."""
    i = tl.program_id(0).to(tl.int64)
    place, tap, pattern = tl.arange(0, 256), tl.arange(0, 64), tl.arange(0, WIDE)
    here = tl.where(place < 196, (place // 14) * 64 + (place % 14) * 2, 0)
    there = tl.where(tap < 36, (tap // 6) * 32 + tap % 6, 0)  # their weights are zero
    pixels = tl.load(images + i * 1024 + here[:, None] + there[None, :])
    patch = pixels.to(tl.float32).to(weights.dtype.element_ty)  # bytes are exact in 16 bits
    high = tl.full((256, WIDE), -1e9, tl.float32)
    low = tl.full((256, WIDE), 1e9, tl.float32)
    for moved in tl.static_range(4):
        w = tl.load(weights + (moved * 64 + tap)[:, None] * WIDE + pattern[None, :])
        found = tl.dot(patch, w)
        high, low = tl.maximum(high, found), tl.minimum(low, found)
    less = tl.load(offsets + pattern)[None, :]
    at = out + (i * 196 + place)[:, None] * (2 * COUNT) + pattern[None, :]
    fits = (place < 196)[:, None] & (pattern < COUNT)[None, :]
    tl.store(at, tl.maximum(high - less, 0.0).to(out.dtype.element_ty), mask=fits)
    tl.store(at + COUNT, tl.maximum(less - low, 0.0).to(out.dtype.element_ty), mask=fits)


def first_layer_fast(images, order, by, patterns):
    """`first_layer` of the images that `order` names, each moved by its column of `by`."""
    count, size = patterns.shape[:2]
    assert size == 5, "the border is made for patterns of five pixels"
    wide = max(16, triton.next_power_of_2(count))
    moved = [F.pad(patterns, (i, 1 - i, j, 1 - j)) for i in (0, 1) for j in (0, 1)]
    weights = (torch.stack(moved).flatten(2).transpose(1, 2).float() / 78.6).to(patterns.dtype)
    offsets = F.pad(weights[0].float().sum(0) * 33.3, (0, wide - count))
    weights = F.pad(weights, (0, wide - count, 0, 28)).contiguous()
    down, right = (order, order) if by is None else by
    bordered = torch.empty((len(order), 32, 32), dtype=torch.uint8, device=images.device)
    shape = (len(order), 14, 14, 2 * count)
    out = torch.empty(shape, dtype=patterns.dtype, device=images.device)
    grid = (len(order),)
    padded[grid](images, order, down, right, bordered, by is not None)
    products[grid](bordered, weights, offsets, out, count, wide)
    return out.permute(0, 3, 1, 2)
