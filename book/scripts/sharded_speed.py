"""A transformer of 1.61 billion parameters on two GPUs: memory and step time of ways to spread it.

    python sharded_speed.py                          up to four passes through all ways
    python sharded_speed.py --size tiny --passes 1   small, once, on two CPU processes as well
    python sharded_speed.py --ranks 4 fsdp both      these ways, on four GPUs

Every pass is new processes. It takes the ways in a random order of its own: each is
built, warmed, timed and freed. Weights, sums of gradients and Adam's averages are float32, products
bfloat16. Ways of spread.py are that as it is, under autocast; "bf16 between blocks" patches norms
and the embedding, as halves and pipelines do, so that they hand on bfloat16.
"""

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining as pp
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "keep"))
import train
from spread import spread
from tensor_parallel import tensor_parallel

SIZES = {"large": (8, 4096, 1024, 4), "tiny": (2, 128, 64, 4)}  # blocks, width, context, sequences
WARM, ROUNDS, STEPS = 3, 3, 3
PASSES, SECONDS = 4, 155  # no pass is begun that would take longer, if as long as the longest
WAYS = {
    "ddp": {},
    "fsdp": {"shard": True},
    "fsdp, weights kept": {"shard": True, "kept": True},  # from forward to backward
    "no traffic": {"apart": True},  # each GPU its half of batch and optimizer; nothing is summed
    "no traffic, gradients held": {"apart": True, "held": True},  # from step to step, as DDP's are
    "tensor": {"tensor": 2},
    "fsdp, bf16 between blocks": {"shard": True, "each": True},  # each norm, and the embedding
    "tensor, bf16 between blocks": {"tensor": 2, "each": True},
    "fsdp, 16,384 tokens": {"shard": True, "times": 4},
    "tensor, 16,384 tokens": {"tensor": 2, "times": 4},
    "fsdp, accumulated": {"shard": True, "times": 4, "micro": 4},  # the same tokens, in four parts
    "fsdp, accumulated, weights kept": {"shard": True, "times": 4, "micro": 4, "kept": True},
    "halves": {"alone": True, "each": True},
    "one batch": {"pieces": 1, "each": True},
    "1F1B": {"pieces": 4, "each": True},
}
MORE = {"both": {"shard": True, "tensor": 2}}  # for four GPUs
MORE["both, 16,384 tokens"] = MORE["both"] | {"times": 4}
USUAL = {"shard": False, "kept": False, "apart": False, "tensor": 1, "each": False, "held": False}
USUAL |= {"alone": False, "pieces": 0}


class Part(nn.Module):
    """Half of the model: the first with the embedding, the second with norm and head."""

    def __init__(self, net, index):
        super().__init__()
        half = len(net.blocks) // 2
        self.first = nn.Identity() if index else net.embedding
        self.blocks = net.blocks[half * index : half * (index + 1)]
        self.last = nn.Sequential(net.norm, net.head) if index else nn.Identity()
        self.register_buffer("turns", net.turns)

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            x = self.first(x)
            for block in self.blocks:
                x = block(x, self.turns)
            return self.last(x)


class Halves(nn.Module):
    """As popular articles write it: half of the blocks on each GPU."""

    def __init__(self, net, first, second):
        super().__init__()
        self.first, self.second = Part(net, 0).to(first), Part(net, 1).to(second)

    def forward(self, x, targets):
        y = self.first(x)
        y = y.to(self.second.turns.device)  # the first GPU waits until the backward pass
        return in_bits(self.second(y), targets.to(y.device)).to(x.device)


def in_bits(logits, targets):
    nats = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
    return nats / train.math.log(2)


def normed(norm, x):
    """RMSNorm in the precision of its input, as FSDP2's policy has it, with any torch."""
    weight = norm.weight.to(x.dtype)
    return F.rms_norm(x, norm.normalized_shape, weight, norm.eps).to(x.dtype)


def model(size, device):
    """The model and a batch, the same on every rank."""
    blocks, width, context, batch = size
    torch.manual_seed(0)
    with device:
        net = train.Transformer(blocks, width, context)
    rows = torch.randint(256, (batch, context + 1), generator=torch.Generator().manual_seed(0))
    return net, rows.to(device)


def patched(net):
    """Let norms and the embedding hand on bfloat16, as FSDP2's policy has it."""
    for norm in (module for module in net.modules() if isinstance(module, nn.RMSNorm)):
        norm.forward = partial(normed, norm)
    net.embedding.register_forward_hook(lambda module, given, y: y.bfloat16())


def step(net, pieces, optimizer, targets, copies, once=False, held=False):
    """One training step; its loss in bits per byte, this rank's part.

    Once: weights are kept, and gradients wait, until the last microbatch. Held: zeros, not freed.
    """
    total = 0
    for number, rows in enumerate(pieces, 1):
        if once:
            net.set_requires_gradient_sync(number == len(pieces))
            net.set_reshard_after_backward(number == len(pieces))
        with torch.autocast(rows.device.type, torch.bfloat16):
            bits = net(rows[:, :-1], rows[:, 1:]) / targets
        (bits * copies).backward()
        total = total + bits.detach()
    optimizer.step()
    net.zero_grad(set_to_none=not held)
    return total


def piped(schedule, part, rows, optimizer, last):
    """One training step of a pipeline of two stages; its loss, which the last one knows."""
    losses = []
    if last:
        schedule.step(target=rows[:, 1:].contiguous(), losses=losses)
    else:
        schedule.step(rows[:, :-1].contiguous())
    optimizer.step()
    part.zero_grad()
    return sum(losses, torch.zeros((), device=rows.device)).detach()


def built(how, size, found, meshes):
    """What takes a step, and returns its loss, in this way."""
    times, count = how.get("times", 1), how.get("micro", 1)
    net, rows = model((*size[:3], times * size[3]), found[0])
    make, targets = partial(torch.optim.AdamW, lr=1e-4, fused=True), rows[:, 1:].numel()
    rank, mesh = dist.get_rank(), meshes[how["tensor"]]
    part, copies = mesh["data"].get_local_rank(), mesh["data"].size()
    if how["pieces"]:
        patched(net)
        half = Part(net, rank)
        stage = pp.PipelineStage(half, rank, 2, found[0])
        loss = lambda logits, y: in_bits(logits, y) / targets  # noqa: E731
        plan = pp.Schedule1F1B if how["pieces"] > 1 else pp.ScheduleGPipe  # which takes one, too
        schedule = plan(stage, how["pieces"], loss_fn=loss, scale_grads=False)
        return partial(piped, schedule, half, rows, make(half.parameters()), rank == 1)
    whole = net
    if how["alone"]:
        whole, copies = Halves(net, *found), 1
    elif not how["apart"]:
        if how["tensor"] > 1:
            tensor_parallel(net, mesh["tensor"])
        whole = spread(net, mesh["data"], how["shard"], how["shard"])
    if how["each"]:
        patched(net)
    if how["kept"]:
        net.set_reshard_after_forward(False)
    mine = rows[part::copies] if copies > 1 else rows
    trained = net.blocks[: len(net.blocks) // 2] if how["apart"] else whole
    given = mine.chunk(count), make(trained.parameters()), targets, copies
    return partial(step, whole, *given, how["kept"] and count > 1, how["held"])


def wait(found):
    for device in (device for device in found if device.type != "cpu"):
        torch.accelerator.synchronize(device)


def rounds(act, found, alone, rounds=ROUNDS, steps=STEPS):
    """Milliseconds of a step, by round."""
    ms = []
    for _ in range(rounds):
        wait(found)
        if not alone:
            dist.barrier()
            wait(found)
        start = time.perf_counter()
        for _ in range(steps):
            act()
        wait(found)
        ms.append(round(1e3 * (time.perf_counter() - start) / steps, 3))
    return ms


def freed(found):
    """Give back what nothing holds; bytes that are held all the same."""
    gc.collect()
    if found[0].type == "cpu":
        return [0 for _ in found]
    torch.cuda.empty_cache()
    for device in found:
        torch.cuda.reset_peak_memory_stats(device)
    return [torch.cuda.memory_allocated(device) for device in found]


def taken(name, size, device, meshes, store, number):
    """A way from its building to its end: losses, ms of a step by round, GB of peak."""
    how, done = USUAL | (WAYS | MORE)[name], f"done {number}"
    if how["alone"] and dist.get_rank():
        store.wait([done], timedelta(seconds=60))
        return {"losses": [], "ms": [], "GB": []}
    other = torch.device(device.type, 1) if device.type != "cpu" else device
    found = [device, other] if how["alone"] else [device]
    before = freed(found)
    act = built(how, size, found, meshes)
    losses = torch.stack([act() for _ in range(WARM)])
    if not how["alone"]:
        dist.all_reduce(losses)
    steps = 2 if "times" in how else STEPS  # which take long
    ms = rounds(act, found, how["alone"], steps=steps)
    wait(found)
    peaks = [torch.cuda.max_memory_allocated(d) for d in found if d.type == "cuda"]
    del act
    freed(found)
    store.set(done, "") if how["alone"] else None
    losses = [round(loss / how["tensor"], 5) for loss in losses.tolist()]
    gigabytes = [round((a - b) / 1e9, 3) for a, b in zip(peaks, before, strict=False)]
    return {"losses": losses, "ms": ms, "GB": gigabytes}


def joined(rank, folder, ranks=2):
    """This rank's device, a mesh for each number of ranks that share a layer, and the store."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if device.type != "cpu":
        device = torch.device(device.type, rank)
        torch.accelerator.set_device_index(rank)
    store = dist.FileStore(f"{folder}/store", ranks)
    limits = {"world_size": ranks, "timeout": timedelta(seconds=60)}
    dist.init_process_group(store=store, rank=rank, **limits)
    names = {"mesh_dim_names": ("data", "tensor")}
    meshes = {n: dist.init_device_mesh(device.type, (ranks // n, n), **names) for n in (1, 2)}
    return device, meshes, dist.PrefixStore("turns", store)


def say(found, rank, folder):
    """Keep what is known so far, in one piece."""
    path = Path(folder, f"{rank}.json")
    path.with_suffix(".new").write_text(json.dumps(found))
    path.with_suffix(".new").replace(path)


def pair(script, *given, limit, ranks=2):
    """What the ranks of a script have said when they end, or when their time is up."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, script, "--folder", folder, *given]
        end = time.monotonic() + limit
        begun = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(ranks)]
        try:
            while any(p.poll() is None for p in begun) and not any(p.poll() for p in begun):
                if time.monotonic() > end:
                    print(f"{given}: stopped after {limit} s", file=sys.stderr)
                    break
                time.sleep(0.02)
        finally:
            for process in begun:
                process.kill()
                process.wait()
        said = [Path(folder, f"{rank}.json") for rank in range(ranks)]
        return [json.loads(path.read_text()) if path.exists() else {} for path in said]


def passed(options):
    """A rank of a pass: the ways, in the order that the seed gives."""
    device, meshes, store = joined(options.rank, options.folder, options.ranks)
    found, order = {}, random.Random(options.seed).sample(options.ways, len(options.ways))
    for number, name in enumerate(order):
        try:
            found[name] = taken(name, SIZES[options.size], device, meshes, store, number)
        except Exception as error:
            found[name] = {"refused": f"{type(error).__name__}: {error}"[:300]}
            say(found, options.rank, options.folder)
            os._exit(1)  # which ends the other rank, too
        say(found, options.rank, options.folder)
    os._exit(0)  # all is said; taking the process group down takes seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)}; else all")
    parser.add_argument("--size", choices=SIZES, default="large")
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument("--seed", type=int, default=0, help="of the first pass")
    parser.add_argument("--ranks", type=int, choices=(2, 4), default=2)
    parser.add_argument("--folder", help="where the ranks of a pass meet")
    parser.add_argument("--rank", type=int, help="of a pass; without it, all passes")
    options = parser.parse_args()
    if options.rank is not None:
        return passed(options)
    ways, begin, longest = options.ways or list(WAYS), time.monotonic(), 0
    found = {name: [] for name in ways}
    for seed in range(options.seed, options.seed + options.passes):
        start = time.monotonic() - begin
        if start + longest > SECONDS:
            break
        ranks, left = options.ranks * [{}], ways
        while left:  # once; and again without a way that was refused, for want of memory, say
            given = "--size", options.size, "--seed", str(seed), "--ranks", str(options.ranks)
            rest = SECONDS + 10 - (time.monotonic() - begin)
            said = pair(__file__, *given, *left, limit=min(100, rest), ranks=options.ranks)
            ranks = [known | new for known, new in zip(ranks, said, strict=True)]
            bad = {name for rank in said for name in rank if "refused" in rank[name]}
            left = [name for name in left if not all(name in rank for rank in said)] if bad else []
            ways, left = ([name for name in part if name not in bad] for part in (ways, left))
        for name in found:  # what a pass has not come to has no times
            parts = [rank.get(name, {}) for rank in ranks]
            refused = next((part for part in parts if "refused" in part), None)
            gigabytes = [gb for part in parts for gb in part.get("GB", [])]
            usual = {"losses": [], "ms": []} | parts[0] | {"GB": gigabytes}
            found[name].append(refused or usual)
        longest = max(longest, time.monotonic() - begin - start)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
