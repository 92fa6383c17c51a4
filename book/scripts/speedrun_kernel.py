"""The first layer of speedrun.py as one Triton kernel; chapter 7.1 explains it."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F


@triton.jit
def one_image(
    images,
    order,
    weights,
    out,
    COUNT: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    TAPS: tl.constexpr,
):
    """All 14 x 14 places of an image: a product for each way to move the patterns by a pixel."""
    i = tl.program_id(0)
    row = tl.load(order + i)
    place, tap, pattern = tl.arange(0, 256), tl.arange(0, TAPS), tl.arange(0, WIDE)
    y = 2 * (place // 14)[:, None] + (tap // (SIZE + 1))[None, :] - SIZE // 2
    x = 2 * (place % 14)[:, None] + (tap % (SIZE + 1))[None, :] - SIZE // 2
    inside = (y >= 0) & (y < 28) & (x >= 0) & (x < 28)
    pixels = tl.load(images + row * 784 + y * 28 + x, mask=inside, other=0).to(tl.float32)
    patch = ((pixels - 33.3) / 78.6).to(weights.dtype.element_ty)
    high = tl.full((256, WIDE), -1e9, tl.float32)
    low = tl.full((256, WIDE), 1e9, tl.float32)
    for moved in tl.static_range(4):
        w = tl.load(weights + (moved * TAPS + tap)[:, None] * WIDE + pattern[None, :])
        found = tl.dot(patch, w)
        high, low = tl.maximum(high, found), tl.minimum(low, found)
    at = out + (i.to(tl.int64) * 196 + place)[:, None] * (2 * COUNT) + pattern[None, :]
    fits = (place < 196)[:, None] & (pattern < COUNT)[None, :]
    tl.store(at, tl.maximum(high, 0.0).to(out.dtype.element_ty), mask=fits)
    tl.store(at + COUNT, tl.maximum(-low, 0.0).to(out.dtype.element_ty), mask=fits)


def first_layer_at_once(images: Tensor, order: Tensor, patterns: Tensor) -> Tensor:
    """`first_layer(images[order], patterns)`: reads bytes, writes features, nothing between."""
    count, size = patterns.shape[:2]
    wide, taps = (max(16, triton.next_power_of_2(n)) for n in (count, (size + 1) ** 2))
    moved = [F.pad(patterns, (i, 1 - i, j, 1 - j)) for i in (0, 1) for j in (0, 1)]
    weights = torch.stack(moved).flatten(2).transpose(1, 2)
    weights = F.pad(weights, (0, wide - count, 0, taps - (size + 1) ** 2)).contiguous()
    shape = (len(order), 14, 14, 2 * count)
    out = torch.empty(shape, dtype=patterns.dtype, device=images.device)
    one_image[(len(order),)](images, order, weights, out, count, size, wide, taps)
    return out.permute(0, 3, 1, 2)
