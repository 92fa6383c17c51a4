"""Causal attention over a long sequence, whole on each of two GPUs, and split over both.

    python long_context.py

torch's context_parallel needs CUDA's attention: on CPU processes both arms are the whole one.
"""

import argparse
import contextlib
import json
import os
import random

import torch
import torch.distributed as dist
from sharded_speed import joined, pair, rounds, say
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPE, SMALL = (1, 32, 65_536, 64), (1, 2, 64, 16)  # batch, heads, positions, numbers of a head
TURNS, CALLS, LIMIT = 10, 1, 45


def attention(q, k, v, gradient):
    """Forward and backward pass; what comes out, and the gradient of the keys."""
    k.grad = None
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    y.backward(gradient)
    return y.detach(), k.grad


def places(rank, length):
    """The positions of a rank of two: a quarter from the front, and its mirror image."""
    quarters = torch.arange(length).chunk(4)
    return torch.cat((quarters[rank], quarters[3 - rank]))


def apart(a, b):
    """The largest difference, as a part of the largest number."""
    return round(((a.float() - b.float()).abs().max() / b.float().abs().max()).item(), 6)


def measured(options):
    device, _, _ = joined(options.rank, options.folder)
    cuda, rank = device.type == "cuda", options.rank
    generator = torch.Generator(device).manual_seed(0)
    asked = {"generator": generator, "device": device}
    tensors = [torch.randn(SHAPE if cuda else SMALL, **asked).to(torch.bfloat16) for _ in range(4)]
    mesh = dist.init_device_mesh(device.type, (2,))

    @contextlib.contextmanager
    def cut():
        """All four tensors, cut along the time, and attention that knows of it."""
        own = [tensor.clone() for tensor in tensors]
        split = contextlib.nullcontext()
        if cuda:
            split = context_parallel(
                mesh, buffers=own, buffer_seq_dims=[2] * 4, no_restore_buffers={*own}
            )
        with split:
            yield [t.requires_grad_() for t in own[:3]] + own[3:]

    whole = [t.clone().requires_grad_() for t in tensors[:3]] + tensors[3:]
    rng, found = random.Random(0), {"whole": [], "split": []}
    backend = SDPBackend.FLASH_ATTENTION if cuda else SDPBackend.MATH
    other = SDPBackend.EFFICIENT_ATTENTION if cuda else SDPBackend.MATH
    with sdpa_kernel(other):
        second = attention(*whole)
    with sdpa_kernel(backend):
        first = attention(*whole)
        mine = places(rank, tensors[0].shape[2]).to(device) if cuda else slice(None)
        with cut() as pieces:
            found["positions"] = pieces[0].shape[2]
            parts = attention(*pieces)
        found["apart"] = [apart(a, b[:, :, mine]) for a, b in zip(parts, first, strict=True)]
        found["kernels apart"] = [apart(a, b) for a, b in zip(second, first, strict=True)]
        say(found, rank, options.folder)
        for turn in range(TURNS + 2):  # two to get warm
            for name in rng.sample(("whole", "split"), 2):
                with cut() if name == "split" else contextlib.nullcontext(whole) as given:
                    ms = rounds(lambda: attention(*given), [device], False, 1, CALLS)
                found[name] += ms if turn > 1 else []
    say(found, rank, options.folder)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where the ranks meet")
    parser.add_argument("--rank", type=int, help="without it, both")
    options = parser.parse_args()
    if options.rank is not None:
        return measured(options)
    print(json.dumps(pair(__file__, limit=LIMIT)))


if __name__ == "__main__":
    main()
