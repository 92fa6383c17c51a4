"""What no_sync saves and what SyncBatchNorm repairs, on two GPUs, with a count of all-reduces.

    torchrun --standalone --nproc-per-node=2 ddp_costs.py

Sixteen bfloat16 layers of 4096 x 4096: 512 MiB of gradients, eight micro-batches a step.
"""

import argparse
import json
import os
import statistics
import time
from contextlib import nullcontext
from copy import deepcopy

import torch
import torch.distributed as dist
from group import start
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, ROWS, MICRO = 16, 4096, 512, 8


def build(device: torch.device) -> DistributedDataParallel:
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    return DistributedDataParallel(nn.Sequential(*layers).to(device, torch.bfloat16))


def accumulate(ddp: DistributedDataParallel, inputs: Tensor, quiet: int) -> None:
    """Gradients of eight micro-batches; the first ``quiet`` of them are not reduced."""
    for i in range(MICRO):
        with ddp.no_sync() if i < quiet else nullcontext():
            ddp(inputs).float().square().mean().backward()


def milliseconds(ddp: DistributedDataParallel, inputs: Tensor, quiet: int) -> float:
    """Median of one step without its optimizer; the slowest rank counts."""
    times = []
    for _ in range(8):
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        accumulate(ddp, inputs, quiet)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        ddp.zero_grad()
    found = torch.tensor(statistics.median(times[3:]) * 1e3, device=inputs.device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


def reductions(device: torch.device, inputs: Tensor) -> dict[str, int]:
    """All-reduces of one step, counted by a communication hook."""
    ddp, calls = build(device), []

    def count(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        calls.append(bucket.index())
        return allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, count)
    accumulate(ddp, inputs, 0)  # the first pass decides how gradients share buckets
    found = {}
    for name, quiet in (("every", 0), ("last", MICRO - 1)):
        calls.clear()
        accumulate(ddp, inputs, quiet)
        found[name] = len(calls)
    return found


def sync_batchnorm(device: torch.device) -> dict[str, float]:
    """How far running means and gradients are from those of the whole batch."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(1600, 10)
    whole = nn.Sequential(*layers).to(device)
    images, labels = torch.randn(16, 3, 12, 12).to(device), torch.arange(16).to(device) % 10
    ordinary = deepcopy(whole)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(deepcopy(whole))
    F.cross_entropy(whole(images), labels).backward()
    mine, found = slice(dist.get_rank(), None, dist.get_world_size()), {}
    for name, model in (("BatchNorm2d", ordinary), ("SyncBatchNorm", synced)):
        ddp = DistributedDataParallel(model)
        F.cross_entropy(ddp(images[mine]), labels[mine]).backward()
        pairs = {
            "running mean": (model[1].running_mean, whole[1].running_mean),
            "gradient": (model[0].weight.grad, whole[0].weight.grad),
        }
        for what, (a, b) in pairs.items():
            found[f"{name}, {what}"] = ((a - b).abs().max() / b.abs().max()).item()
    return found


@record
def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 ddp_costs.py")
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        raise SystemExit("every rank needs a GPU of its own")
    device = start()
    torch.manual_seed(0)
    inputs = torch.randn(ROWS, WIDTH, device=device, dtype=torch.bfloat16)
    ddp = build(device)
    ways = {"every": 0, "last": MICRO - 1, "none": MICRO}
    times = {name: milliseconds(ddp, inputs, quiet) for name, quiet in ways.items()}
    del ddp
    torch.backends.cudnn.allow_tf32 = False  # so that only the statistics can differ
    result = {
        "ms": times,
        "all-reduces": reductions(device, inputs),
        "off by": sync_batchnorm(device),
        "context on GPU 0": torch._C._cuda_hasPrimaryContext(0),  # this process, on that GPU
    }
    print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
