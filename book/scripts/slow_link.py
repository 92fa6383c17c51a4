"""What do DDP's settings cost over a given link? ResNet-50 under all of them, in turn.

    torchrun --standalone --nproc-per-node=2 slow_link.py --batch 256
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 slow_link.py --batch 256

One trainer for each of ARMS; a round times a few steps of each, and there are several rounds, so
that a drift of the machine meets all of them. The last line printed is a JSON object: {"batch",
"via": NCCL's transports, "all_reduce": {MiB: seconds}, "ms": {ARM: ms of a micro-batch by round}};
the slowest rank counts.
"""

import argparse
import inspect
import json
import os
import re
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from group import start, synchronize
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import resnet50

KNOWN = inspect.signature(DistributedDataParallel).parameters
BUFFERS = "forward_sync_buffers"
if BUFFERS not in KNOWN:
    BUFFERS = "broadcast_buffers"  # its name until torch 2.12

LEAN = {"gradient_as_bucket_view": True, BUFFERS: False}
ARMS = {
    "no DDP": None,
    "default": {},
    "views": {"gradient_as_bucket_view": True},
    "no buffers": {BUFFERS: False},
    "lean": LEAN,
    "one bucket": {"bucket_cap_mb": 1000},
    "bf16 hook": {},
    "every 4th": {},  # four micro-batches to an all-reduce
}
if "batched_grad_copy" in KNOWN:  # torch 2.11 does not have it
    ARMS["batched lean"] = {**LEAN, "batched_grad_copy": True}


class Trainer:
    """ResNet-50 under one of ARMS, and micro-batches of training it."""

    def __init__(self, arm: str, images: torch.Tensor):
        torch.manual_seed(0)
        self.images, self.targets = images, torch.arange(len(images), device=images.device) % 10
        model = resnet50().to(images.device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.wrapped, self.every = ARMS[arm] is not None, 4 if arm == "every 4th" else 1
        self.model = DistributedDataParallel(model, **ARMS[arm]) if self.wrapped else model
        if arm == "bf16 hook":
            self.model.register_comm_hook(None, bf16_compress_hook)

    def train(self, micro_batches: int) -> None:
        """Forward and backward; after every or every fourth, an all-reduce and an update."""
        kind = self.images.device.type
        for number in range(1, micro_batches + 1):
            last = number % self.every == 0
            with nullcontext() if last or not self.wrapped else self.model.no_sync():
                with torch.autocast(kind, torch.bfloat16):
                    loss = nn.functional.cross_entropy(self.model(self.images), self.targets)
                loss.backward()
            if last:
                self.optimizer.step()
                self.optimizer.zero_grad()

    def milliseconds(self, micro_batches: int) -> float:
        """Of each micro-batch, in this process; the clock starts behind a full queue."""
        synchronize()
        self.train(1)
        if self.images.device.type == "cpu":
            begin = time.perf_counter()
            self.train(micro_batches)
            return 1e3 * (time.perf_counter() - begin) / micro_batches
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        self.train(micro_batches)
        marks[1].record()
        synchronize()
        return marks[0].elapsed_time(marks[1]) / micro_batches


def all_reduce_seconds(mib: float, device: torch.device) -> float:
    """Of an all-reduce, in a row of several: the median of five such rows."""
    tensor, calls, took = torch.zeros(int(mib * 2**18), device=device), 5, []
    for _ in range(6):
        dist.all_reduce(tensor)
        synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(tensor)
        synchronize()
        took.append((time.perf_counter() - begin) / calls)
    return slowest([statistics.median(took[1:])], device)[0]


def slowest(values: list[float], device: torch.device) -> list[float]:
    """For each value the largest of all ranks, to five digits."""
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return [float(f"{value:.5g}") for value in tensor.tolist()]


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256, help="images per rank")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4, help="timed micro-batches, fours")
    parser.add_argument("--mib", nargs="+", type=float, default=[0.001, 1, 25, 100])
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 slow_link.py")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "nccl.log"
        os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log)}
        device = start()
        reduced = {f"{mib:g}": all_reduce_seconds(mib, device) for mib in args.mib}
        images = torch.randn(args.batch, 3, args.pixels, args.pixels, device=device)
        images = images.to(memory_format=torch.channels_last)
        trainers = {arm: Trainer(arm, images) for arm in args.arms}
        for trainer in trainers.values():
            trainer.train(8 if trainer.every > 1 else 3)  # DDP rebuilds its buckets once
        rounds = [
            slowest([trainer.milliseconds(args.steps) for trainer in trainers.values()], device)
            for _ in range(args.rounds)
        ]
        said = log.read_text(errors="replace") if log.exists() else ""
        via = sorted(set(re.findall(r" via ([A-Z0-9]+(?:/[A-Za-z]+)*)", said)))
        print(
            json.dumps(
                {
                    "batch": args.batch,
                    "via": via,
                    "all_reduce": reduced,
                    "ms": dict(zip(trainers, map(list, zip(*rounds, strict=True)), strict=True)),
                }
            )
        )
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
