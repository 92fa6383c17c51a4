"""One gradient from many shards, in float64, against the gradient of the whole batch.

    torchrun --standalone --nproc-per-node=2 by_hand.py

Every rank holds the same model and the same batch, works on a shard of it, and averages gradients
with one all-reduce. What is printed: how far the average is from the gradient of the whole batch.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy


def start() -> torch.device:
    """Join the group; one process, one device."""
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return device


def build(*middle: nn.Module) -> nn.Module:
    """A small network; the same numbers on every rank, because of the seed."""
    torch.manual_seed(1)
    layers = [nn.Linear(20, 32), *middle, nn.Tanh(), nn.Linear(32, 5)]
    return nn.Sequential(*layers).double()


def gradient(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """All gradients of the mean loss, as one vector; `mask` drops hidden units."""
    model.zero_grad()
    hidden = model[:-1](x)
    cross_entropy(model[-1](hidden if mask is None else hidden * mask), y).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def average(vector: Tensor, weight: float) -> Tensor:
    """Sum over ranks of weight * vector: the one all-reduce of data parallelism."""
    total = weight * vector
    dist.all_reduce(total)
    return total


def masks(samples: int, seed: int) -> Tensor:
    """Dropout masks with p = 0.5, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randint(2, (samples, 32), generator=generator).double()


def compare(device: torch.device, samples: int) -> dict[str, float]:
    """Relative distances |averaged - whole| / |whole|, for one case after another."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, y = torch.randn(samples, 20).double().to(device), torch.randint(5, (samples,)).to(device)
    model = build().to(device)
    whole = gradient(model, x, y)

    def distance(vector: Tensor, reference: Tensor = whole) -> float:
        return ((vector - reference).norm() / reference.norm()).item()

    # Equal shards: the mean of the means is the mean.
    equal = slice(rank * samples // world, (rank + 1) * samples // world)
    found = {"equal shards": distance(average(gradient(model, x[equal], y[equal]), 1 / world))}

    # Unequal shards, sizes 1 : 2 : 3 …: it is not, unless each counts by its samples.
    unit = samples // (world * (world + 1) // 2)
    begin = unit * (rank * (rank + 1) // 2)
    end = samples if rank == world - 1 else begin + unit * (rank + 1)
    part = gradient(model, x[begin:end], y[begin:end])
    found["unequal shards, plain mean"] = distance(average(part, 1 / world))
    found["unequal shards, weighted"] = distance(average(part, (end - begin) / samples))

    # Batch normalization reads the statistics of the shard, not of the batch.
    normed = build(nn.BatchNorm1d(32)).to(device)
    part = average(gradient(normed, x[equal], y[equal]), 1 / world)
    found["batch normalization"] = distance(part, gradient(normed, x, y))

    # Dropout: every rank draws masks for its own shard. The average is the gradient of the whole
    # batch under all these masks together.
    size = samples // world
    mask, together = masks(size, rank), torch.cat([masks(size, r) for r in range(world)])
    part = average(gradient(model, x[equal], y[equal], mask.to(device)), 1 / world)
    found["dropout, the same masks"] = distance(part, gradient(model, x, y, together.to(device)))
    found["dropout, no mask"] = distance(part)

    # The noise of dropout over 200 draws, on samples that are alike: with one seed on all ranks,
    # sample i of every rank loses the same units, and the average evens out less.
    alike, label = x[:1] + 0.3 * x, torch.zeros_like(y)
    for name, seeds in (("own seeds", world), ("one seed", 1)):
        drawn = [masks(size, draw * seeds + rank % seeds).to(device) for draw in range(200)]
        parts = torch.stack([gradient(model, alike[equal], label[equal], m) for m in drawn])
        noisy = average(parts, 1 / world)
        found[f"noise, {name}"] = (noisy.var(0).sum().sqrt() / noisy.mean(0).norm()).item()
    return found


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=48, help="in the whole batch")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 by_hand.py")
    found = compare(start(), args.samples)
    print(json.dumps({"rank": dist.get_rank(), "distance": found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
