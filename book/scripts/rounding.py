"""Numbers rounded to few bits under a scale, as chapter 3.3 explains; the model it rounds."""

import math

import torch
import whole
from torch import nn
from whole import KEEP

LARGEST = {f"int{bits}": 2 ** (bits - 1) - 1 for bits in range(3, 9)}
LARGEST |= {"e4m3": 448, "e5m2": 57344, "e2m1": 6}  # fp8, twice; fp4


def nearest(x, form):
    """The nearest integer or, of e4m3, the nearest number with 4 exponent and 3 mantissa bits."""
    if form.startswith("int"):
        return x.round()
    power = (torch.frexp(x).exponent - 1).clamp(min=2 - 2 ** (int(form[1]) - 1))
    spacing = torch.ldexp(torch.ones_like(x), power - int(form[3]))
    return (x / spacing).round() * spacing


def rounded(x, form, size=-1, scales="bf16"):
    """Numbers after the trip, each `size` of which share a scale (-1: a row; 0: the tensor)."""
    size = size if size > 0 else x.shape[-1] if size else x.numel()
    parts, most = x.float().reshape(-1, size), LARGEST[form]
    top = parts.abs().amax(1, keepdim=True).clamp(min=1e-30)
    scale = (top / most).bfloat16().float()
    if scales != "bf16":
        scale = scale_of_few_bits(top, form, scales)
    return (nearest(parts / scale, form).clamp(-most, most) * scale).view_as(x).to(x.dtype)


def scale_of_few_bits(top, form, scales):
    """A scale of 8 bits: a power of two (MXFP8, MXFP4), or e4m3 under one more scale (NVFP4)."""
    if scales == "power":
        return torch.exp2(top.log2().floor() - math.floor(math.log2(LARGEST[form])))
    wanted = top / LARGEST[form]
    second = wanted.max() / LARGEST["e4m3"]
    return nearest(wanted / second, "e4m3").clamp(min=2.0**-9) * second


def error_of(found, exact):
    """Relative error: the RMS of the difference over that of the right numbers."""
    return ((found.float() - exact.float()).norm() / exact.float().norm()).item()


def language_model():
    """The model of chapter 7.2, which comes with this book, in float32 on the CPU."""
    weights = torch.load(KEEP.parent / "records/language_model.pt", map_location="cpu")
    return whole.model_of("4x256", weights, torch.device("cpu"))


def linears(net):
    return [layer for layer in net.modules() if isinstance(layer, nn.Linear)]


def in_total(weights, form, size=-1, scales="bf16"):
    """Of several matrices together: bits per weight, with the scales, and the relative error."""
    count = sum(w.numel() for w in weights)
    share = {0: len(weights), -1: sum(map(len, weights))}.get(size) or count / size
    bits = {"e4m3": 8, "e5m2": 8, "e2m1": 4}.get(form) or int(form[3])
    off = math.hypot(*((rounded(w, form, size, scales) - w).norm() for w in weights))
    bits += share * (16 if scales == "bf16" else 8) / count
    return bits, off / math.hypot(*(w.norm() for w in weights))


def derived(weights, form, size=-1):
    """The relative error of several matrices together, from their largest numbers alone."""
    if not form.startswith("int"):
        return 0.213 / 2 ** int(form[3])  # as chapter 3.1 derives, whatever the scale
    parts = (
        w.reshape(-1, size if size > 0 else w.shape[1] if size else w.numel()) for w in weights
    )
    tops = math.hypot(*(p.abs().amax(1).norm() * math.sqrt(p.shape[1]) for p in parts))
    crest = tops / math.hypot(*(w.norm() for w in weights))
    return crest / LARGEST[form] / math.sqrt(12)
