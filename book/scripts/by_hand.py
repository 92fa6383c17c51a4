"""Data parallelism by hand: gradients from shards, and torch's DDP for comparison.

    torchrun --standalone --nproc-per-node=2 by_hand.py

Everything is in float64, so that a difference is a mistake and not rounding. Every rank prints how
far averaged gradients are from the gradient of the whole batch, and how far the weights are apart
after training in three ways.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from group import start
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "keep"))
from global_mean import global_mean


def build(*middle: nn.Module, seed: int = 1) -> nn.Module:
    """A small network; the same numbers on every rank that gives the same seed."""
    torch.manual_seed(seed)
    layers = [nn.Linear(20, 32), *middle, nn.Tanh(), nn.Linear(32, 5)]
    return nn.Sequential(*layers).double()


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers of the tensors, as one vector."""
    return torch.cat([t.detach().flatten() for t in tensors])


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """All gradients of the mean loss, as one vector."""
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    return flat(p.grad for p in model.parameters())


def average(vector: Tensor, weight: float) -> Tensor:
    """Sum over ranks of weight * vector: the one all-reduce of data parallelism."""
    total = weight * vector
    dist.all_reduce(total)
    return total


def shards(samples: int) -> tuple[slice, slice]:
    """This rank's part of the batch: of equal parts, and of parts in the ratio 1 : 2 : 3 …"""
    rank, world = dist.get_rank(), dist.get_world_size()
    size, unit = samples // world, samples // (world * (world + 1) // 2)
    begin = unit * (rank * (rank + 1) // 2)
    end = samples if rank == world - 1 else begin + unit * (rank + 1)
    return slice(rank * size, (rank + 1) * size), slice(begin, end)


def compare(device: torch.device, samples: int) -> dict[str, float]:
    """Relative distances |averaged - whole| / |whole|, for one case after another."""
    world = dist.get_world_size()
    torch.manual_seed(0)
    x, y = torch.randn(samples, 20).double().to(device), torch.randint(5, (samples,)).to(device)
    model = build().to(device)
    whole = gradient(model, x, y)

    def distance(vector: Tensor, reference: Tensor = whole) -> float:
        return ((vector - reference).norm() / reference.norm()).item()

    # Equal shards: the mean of the means is the mean.
    equal, unequal = shards(samples)
    found = {"equal shards": distance(average(gradient(model, x[equal], y[equal]), 1 / world))}

    # Unequal shards: it is not, unless each rank counts by its samples.
    part = gradient(model, x[unequal], y[unequal])
    found["unequal shards, plain mean"] = distance(average(part, 1 / world))
    found["unequal shards, weighted"] = distance(average(part, len(x[unequal]) / samples))

    # DDP takes the plain mean, so the loss has to be right: a sum over a global count.
    ddp = DistributedDataParallel(model)
    ddp.zero_grad()
    loss = cross_entropy(ddp(x[unequal]), y[unequal], reduction="sum")
    global_mean(loss, len(x[unequal])).backward()
    found["unequal shards, DDP and global_mean"] = distance(flat(p.grad for p in ddp.parameters()))

    # Batch normalization reads the statistics of the shard, not of the batch.
    normed = build(nn.BatchNorm1d(32)).to(device)
    part = average(gradient(normed, x[equal], y[equal]), 1 / world)
    found["batch normalization"] = distance(part, gradient(normed, x, y))
    return found


def average_gradients(model: nn.Module) -> None:
    """What DDP does in its backward pass, though it reduces many gradients at a time."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def train(model: nn.Module, x: Tensor, y: Tensor, reduce: Callable | None = None) -> Tensor:
    """Make 20 steps on the batch, calling ``reduce(model)`` before each; return all weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        if reduce:
            reduce(model)
        optimizer.step()
    return flat(model.parameters())


def three_ways(device: torch.device, samples: int) -> dict[str, float]:
    """Relative distances of the weights from those that one process trains on the whole batch."""
    rank, (equal, _) = dist.get_rank(), shards(samples)
    torch.manual_seed(0)
    x, y = torch.randn(samples, 20).double().to(device), torch.randint(5, (samples,)).to(device)
    alone = train(build().to(device), x, y)

    model = build(seed=1 + rank).to(device)  # as a script that seeds each rank differently
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    by_hand = train(model, x[equal], y[equal], reduce=average_gradients)

    model = DistributedDataParallel(build(seed=1 + rank).to(device))  # broadcasts by itself
    ddp = train(model, x[equal], y[equal])

    def distance(weights: Tensor) -> float:
        return ((weights - alone).norm() / alone.norm()).item()

    return {"by hand": distance(by_hand), "torch's DDP": distance(ddp)}


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 by_hand.py")
    device = start()
    samples = 24 * dist.get_world_size()  # of the whole batch
    found = {"gradients": compare(device, samples), "weights": three_ways(device, samples)}
    print(json.dumps({"rank": dist.get_rank(), **found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
