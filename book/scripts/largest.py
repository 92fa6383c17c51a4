"""How many blocks of a transformer train on one GPU under a limit, by remedy: found by halving.

    python largest.py --at-once 3     so many remedies at a time, each with the limit for itself

Every try is a new process: what an out-of-memory error leaves behind would stay in memory.
"""

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "keep"))
import train

FORK = multiprocessing.get_context("fork")
LIMIT, WIDTH, CONTEXT, BATCH, MOST = 24e9, 2048, 1024, 2, 128
REMEDIES = {
    "none": {},
    "recompute": {"again": True},
    "step in backward": {"early": True},
    "recompute, step in backward": {"again": True, "early": True},
    "bf16 weights": {"pure": True},
    "all three": {"again": True, "pure": True, "early": True},
}


def step_at_once(optimizer, p):
    """As soon as a gradient is there: use it, and forget it."""
    optimizer.step()
    p.grad = None


def two_steps(blocks, again=False, pure=False, early=False, device="cuda"):
    """Train so many blocks for two steps, with each remedy or without."""
    with torch.device(device):
        net, x = train.Transformer(blocks, WIDTH, CONTEXT), torch.randint(256, (BATCH, CONTEXT))
    net.to(torch.bfloat16 if pure else torch.float32)
    for block in net.blocks if again else ():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    make = partial(torch.optim.AdamW, lr=1e-4, fused=True)
    for p in net.parameters() if early else ():
        p.register_post_accumulate_grad_hook(partial(step_at_once, make([p])))
    optimizer = make(net.parameters())
    for _ in range(2):
        with torch.autocast(device, torch.bfloat16, enabled=not pure):
            loss = net(x, x) / x.numel()
        loss.backward()
        optimizer.step()  # after an early one, there are no gradients left to use
        optimizer.zero_grad()


def attempt(remedy, blocks, said):
    """Say the peak in GB, or None if so many blocks do not fit under the limit."""
    card = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1, LIMIT / card))
    try:
        two_steps(blocks, **REMEDIES[remedy])
        said.put(round(torch.cuda.max_memory_allocated() / 1e9, 3))
    except torch.OutOfMemoryError:
        said.put(None)


def largest(remedy):
    """The most blocks that fit, and their peak."""
    fits, fails, peak = 0, MOST, None
    while fails - fits > 1:
        blocks, said = (fits + fails) // 2, FORK.SimpleQueue()
        process = FORK.Process(target=attempt, args=(remedy, blocks, said))
        process.start()
        process.join(60)
        assert not said.empty(), f"{remedy}, {blocks} blocks: exit code {process.exitcode}"
        found = said.get()
        fits, fails, peak = (fits, blocks, peak) if found is None else (blocks, fails, found)
    return {"blocks": fits, "GB": peak}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at-once", type=int, default=1)
    with ProcessPoolExecutor(parser.parse_args().at_once, FORK) as pool:
        print(json.dumps(dict(zip(REMEDIES, pool.map(largest, REMEDIES), strict=True))))
