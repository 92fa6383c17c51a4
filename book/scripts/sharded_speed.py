"""A transformer that does not fit one GPU with Adam: memory and step time of ways to spread it.

    python sharded_speed.py                      all ways, on two GPUs
    python sharded_speed.py --size tiny fsdp     one of them, small, on two CPU processes as well

Every way runs in processes of its own, so nothing of the way before is left in memory. They are
forks of this process, which has imported torch and never asked for a GPU.
"""

import argparse
import json
import multiprocessing
import queue
import random
import sys
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "keep"))
import train
from spread import spread

SIZES = {"large": (8, 4096, 1024, 4), "tiny": (2, 128, 64, 4)}  # blocks, width, context, sequences
LIMIT = 24e9  # bytes of a GPU that a process may use, as if the card had no more
WARM, ROUNDS, STEPS = 3, 3, 4
PASSES, SECONDS = 6, 100  # through all ways; after so many seconds none is begun
WAYS = {
    "ddp": {},  # refused under the limit
    "ddp, whole card": {"limit": None},
    "fsdp": {"shard": True},
    "fsdp, weights kept": {"shard": True, "kept": True},  # from forward to backward
    "tensor": {"tensor": 2},
    "halves": {"ranks": 1},
    "1F1B": {"pieces": 4},
}


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
    nats = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    return nats * targets.numel() / train.math.log(2)


def devices(rank, count, limit):
    """This rank's accelerators, of which it may fill as much as the limit says, or the CPU."""
    kind = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if kind.type == "cpu":
        return [kind] * count
    torch.accelerator.set_device_index(rank)
    found = [torch.device(kind.type, rank + n) for n in range(count)]
    for device in found if limit else ():
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1, limit / total), device)
    return found


def model(size, device):
    """The model and a batch, the same on every rank."""
    blocks, width, context, batch = size
    torch.manual_seed(0)
    with device:
        net = train.Transformer(blocks, width, context)
    rows = torch.randint(256, (batch, context + 1), generator=torch.Generator().manual_seed(0))
    return net, rows.to(device)


def step(net, rows, optimizer, targets, copies):
    """One training step; its loss in bits per byte, this rank's part."""
    with torch.autocast(rows.device.type, torch.bfloat16):
        bits = net(rows[:, :-1], rows[:, 1:]) / targets
    (bits * copies).backward()
    optimizer.step()
    optimizer.zero_grad()
    return bits.detach()


def piped(schedule, rows, optimizer, last):
    """One training step of a pipeline of two stages; its loss, which the last one knows."""
    losses = []
    if last:
        schedule.step(target=rows[:, 1:], losses=losses)
    else:
        schedule.step(rows[:, :-1])
    optimizer.step()
    optimizer.zero_grad()
    return sum(losses, torch.zeros((), device=rows.device)).detach()


def built(how, size, found, mesh):
    """What takes a step, and returns its loss, in this way."""
    net, rows = model(size, found[0])
    make, targets = partial(torch.optim.AdamW, lr=1e-4, fused=True), rows[:, 1:].numel()
    if how["pieces"]:
        from torch.distributed import pipelining as pp  # here, or the fork might inherit CUDA

        part, rank = Part(net, dist.get_rank()), dist.get_rank()
        stage = pp.PipelineStage(part, rank, 2, found[0])
        loss = lambda logits, y: in_bits(logits, y) / targets  # noqa: E731
        schedule = pp.Schedule1F1B(stage, how["pieces"], loss_fn=loss, scale_grads=False)
        return partial(piped, schedule, rows, make(part.parameters()), rank == 1)
    whole = Halves(net, *found) if how["ranks"] == 1 else spread(net, mesh, how["shard"], True)
    if how["kept"]:
        net.set_reshard_after_forward(False)
    copy, copies = mesh["data"].get_local_rank(), mesh["data"].size()
    return partial(step, whole, rows[copy::copies], make(whole.parameters()), targets, copies)


def wait(found):
    for device in (device for device in found if device.type != "cpu"):
        torch.accelerator.synchronize(device)


def way(name, size, said, meet, rank):
    """Train one way; say the losses, ms of a step by round, and this rank's peak."""
    how = {"ranks": 2, "tensor": 1, "shard": False, "kept": False, "pieces": 0, "limit": LIMIT}
    how |= WAYS[name]
    ranks, found = how["ranks"], devices(rank, 3 - how["ranks"], how["limit"])
    limits = {"world_size": ranks, "timeout": timedelta(seconds=60)}
    dist.init_process_group(init_method=f"file://{meet}", rank=rank, **limits)
    shape, names = (ranks // how["tensor"], how["tensor"]), ("data", "tensor")
    mesh = dist.init_device_mesh(found[0].type, shape, mesh_dim_names=names)
    try:
        act = built(how, size, found, mesh)
        losses, ms = torch.stack([act() for _ in range(WARM)]), []
        dist.all_reduce(losses)
        for _ in range(ROUNDS):
            wait(found)
            dist.barrier()
            start = time.perf_counter()
            for _ in range(STEPS):
                act()
            wait(found)
            ms.append(round(1e3 * (time.perf_counter() - start) / STEPS, 3))
    except Exception as error:
        said.put({"refused": f"{type(error).__name__}: {error}"[:300]})
    else:
        peaks = [torch.cuda.max_memory_allocated(d) / 1e9 for d in found if d.type == "cuda"]
        losses = [round(loss / how["tensor"], 5) for loss in losses.tolist()]
        said.put({"losses": losses, "ms": ms, "GB": [round(peak, 3) for peak in peaks]})


def forked(name, size):
    """What a way says that is run in new processes; as soon as one is refused, no other counts."""
    fork, found = multiprocessing.get_context("fork"), []
    with tempfile.TemporaryDirectory() as folder:
        said, ranks = fork.Queue(), range(WAYS[name].get("ranks", 2))
        asked = name, size, said, f"{folder}/meet"
        each = [fork.Process(target=way, args=(*asked, rank)) for rank in ranks]
        for process in each:
            process.start()
        try:
            while len(found) < len(each) and not (found and "refused" in found[-1]):
                found.append(said.get(timeout=60))
        except queue.Empty:
            found.append({"refused": "no answer in 60 s"})
        finally:
            for process in each:
                process.kill()
                process.join()
    return {**found[-1], "GB": [gb for rank in found for gb in rank.get("GB", [])]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)}; else all")
    parser.add_argument("--size", choices=SIZES, default="large")
    options = parser.parse_args()
    ways, order, begin = options.ways or list(WAYS), random.Random(0), time.perf_counter()
    found = {name: [] for name in ways}
    for _ in range(PASSES):
        if time.perf_counter() - begin > SECONDS:
            break
        for name in order.sample(ways, len(ways)):
            if not any("refused" in run for run in found[name]):
                found[name].append(forked(name, SIZES[options.size]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
