"""A transformer that does not fit one GPU with Adam: memory and step time of ways to spread it.

    python sharded_speed.py                      all ways, on two GPUs
    python sharded_speed.py --size tiny fsdp     one of them, small, on two CPU processes as well

Every way runs in processes of its own, so nothing of the way before is left in memory. They are
forks of this process, which has imported torch and never asked for a GPU.
"""

import argparse
import json
import multiprocessing
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

SIZES = {"large": (6, 4096, 1024, 4), "tiny": (2, 128, 64, 4)}  # blocks, width, context, sequences
LIMIT = 17e9  # bytes of a GPU that a process may use, as if the card had no more
WARM, ROUNDS, STEPS, SECONDS = 3, 3, 4, 55  # after so many seconds no way is begun again
WAYS = {
    "ddp": {},  # refused under the limit
    "ddp, whole card": {"limit": None},
    "fsdp": {"shard": True},
    "tensor": {"tensor": 2},
    "halves": {"ranks": 1},
    "fsdp, compiled": {"shard": True, "compiled": True},
}


class Halves(nn.Module):
    """As popular articles write it: half of the blocks on each GPU."""

    def __init__(self, net, first, second):
        super().__init__()
        self.net, self.second = net, second
        for part in (*net.blocks[len(net.blocks) // 2 :], net.norm, net.head):
            part.to(second)

    def forward(self, x, targets):
        y, turns = self.net.embedding(x), self.net.turns
        for number, block in enumerate(self.net.blocks):
            if number == len(self.net.blocks) // 2:  # the first GPU waits until the backward pass
                y, turns = y.to(self.second), turns.to(self.second)
            y = block(y, turns)
        logits = self.net.head(self.net.norm(y)).float().flatten(0, 1)
        bits = nn.functional.cross_entropy(logits, targets.flatten().to(self.second))
        return (bits * targets.numel() / train.math.log(2)).to(x.device)


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


def wait(found):
    for device in (device for device in found if device.type != "cpu"):
        torch.accelerator.synchronize(device)


def way(name, size, said, meet, rank):
    """Train one way; say the losses, ms of a step by round, and this rank's peak."""
    how = {"ranks": 2, "tensor": 1, "shard": False, "compiled": False, "limit": LIMIT} | WAYS[name]
    ranks, found = how["ranks"], devices(rank, 3 - how["ranks"], how["limit"])
    limits = {"world_size": ranks, "timeout": timedelta(seconds=60)}
    dist.init_process_group(init_method=f"file://{meet}", rank=rank, **limits)
    shape, names = (ranks // how["tensor"], how["tensor"]), ("data", "tensor")
    mesh = dist.init_device_mesh(found[0].type, shape, mesh_dim_names=names)
    try:
        net, rows = model(size, found[0])
        for block in net.blocks if how["compiled"] else ():
            block.compile()
        whole = Halves(net, *found) if ranks == 1 else spread(net, mesh, how["shard"], True)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
        mine = rows[mesh["data"].get_local_rank() :: shape[0]]
        act = partial(step, whole, mine, optimizer, rows[:, 1:].numel(), shape[0])
        losses, ms = torch.stack([act() for _ in range(WARM)]), []
        dist.all_reduce(losses)
        for _ in range(ROUNDS):
            wait(found)
            dist.barrier()
            start = time.perf_counter()
            for _ in range(STEPS):
                act()
            wait(found)
            ms.append(1e3 * (time.perf_counter() - start) / STEPS)
    except torch.OutOfMemoryError as error:
        said.put({"refused": str(error).split(". ")[0]})
    else:
        gb = [torch.cuda.max_memory_allocated(d) / 1e9 for d in found if d.type == "cuda"]
        said.put({"losses": (losses / how["tensor"]).tolist(), "ms": ms, "GB": gb})


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
                found.append(said.get(timeout=100))
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
    begin, found, ways = time.perf_counter(), {}, options.ways or list(WAYS)
    once = [name for name in ways if "compiled" in WAYS[name]]  # compiling takes half a minute
    twice = [name for name in ways if name not in once]
    for name in (*twice, *reversed(twice), *once):
        runs = found.setdefault(name, [])
        late = time.perf_counter() - begin > SECONDS
        if not runs or not (late or "refused" in runs[0]):
            runs.append(forked(name, SIZES[options.size]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
