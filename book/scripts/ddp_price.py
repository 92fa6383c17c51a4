"""What does DDP cost by itself, and what does the link add? Two models on two GPUs, arms in turn.

    torchrun --standalone --nproc-per-node=2 ddp_price.py

The control is DDP over a group of one rank: all of its hooks, buckets and copies, nobody to wait
for, and no bytes to send. In "two, a number" the ranks meet in every bucket, but over one number
of it. Rounds take all arms in an order that chance decides anew; the slowest rank counts. CASES
says what differs: the images, the steps before the first round, a loop that reads its loss. The
last line is a JSON object: {"link": {MiB: seconds}, CASE: {"buckets": MiB, "ms": {ARM: by round}}}.
"""

import argparse
import json
import os
import random
from functools import partial

import torch
import torch.distributed as dist
from ddp_speed import mark, seconds_since
from group import start, synchronize
from slow_link import LEAN, all_reduce_seconds, slowest
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import resnet50

from utils.models import Transformer

ARMS = {  # ranks in the group, and settings
    "no DDP": (0, {}),
    "one rank": (1, {}),
    "two ranks": (2, {}),
    "one rank, lean": (1, LEAN),
    "two ranks, lean": (2, LEAN),
    "two, a number": (2, {}),
}
CASES = {  # images of a rank, steps before the first round, whether each step reads its loss
    "ResNet-50": (256, 3, False),
    "ResNet-50, 12 steps before": (256, 12, False),
    "ResNet-50, reads its loss": (256, 12, True),
    "ResNet-50, 64 images": (64, 12, False),
    "GPT-2": (None, 3, False),
}
WARM = 4  # rounds; they are in the record, and do not count


def one_number(buckets: list[float], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that meets the other rank and leaves the gradients as they are."""
    whole = bucket.buffer()
    buckets.append(round(whole.nbytes / 2**20, 2))
    return dist.all_reduce(whole[:1], async_op=True).get_future().then(lambda _: whole)


class Trainer:
    """A model under one of ARMS, and steps of training it."""

    def __init__(self, model, optimizer, data, arm: str, alone, reads: bool):
        self.model, self.reads, (ranks, options) = model, reads, ARMS[arm]
        (self.inputs, self.targets), self.buckets = data, []
        if ranks:
            group = alone if ranks == 1 else None
            self.model = DistributedDataParallel(model, process_group=group, **options)
        if arm == "two, a number":
            self.model.register_comm_hook(self.buckets, one_number)
        self.optimizer = optimizer(model.parameters())

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.buckets.clear()
            with torch.autocast(self.inputs.device.type, torch.bfloat16):
                outputs = self.model(self.inputs).flatten(0, -2)
                loss = nn.functional.cross_entropy(outputs, self.targets.flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.reads:
                loss.item()

    def milliseconds(self, steps: int) -> float:
        """Of a step in this process; the clock starts behind a full queue."""
        dist.barrier()
        synchronize()
        self.train(1)
        begin = mark(self.inputs.device)
        self.train(steps)
        return 1e3 * seconds_since(begin) / steps


def trainers(case: str, tiny: bool, device: torch.device, alone) -> dict[str, Trainer]:
    """Of each arm one, from the same weights; all read the same data."""
    images, _, reads = CASES[case]
    if images:
        made, shape, classes = resnet50, (2, 3, 32, 32) if tiny else (images, 3, 224, 224), 1000
        data = torch.randn(shape, device=device).to(memory_format=torch.channels_last)
        data = data, torch.arange(len(data), device=device) % classes
        optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    else:
        known, (rows, time) = 50_304, (2, 8) if tiny else (16, 1024)
        made = partial(Transformer, known, layers=1 if tiny else 12)
        tokens = torch.randint(known, (rows, time + 1), device=device)
        data, optimizer = (tokens[:, :-1], tokens[:, 1:]), partial(torch.optim.AdamW, lr=1e-4)
        optimizer = partial(optimizer, fused=True)
    found = {}
    for arm in ARMS:
        torch.manual_seed(0)
        with device:
            model = made()
        if images:
            model = model.to(memory_format=torch.channels_last)
        found[arm] = Trainer(model, optimizer, data, arm, alone, reads)
    return found


def measure(case: str, rounds: int, steps: int, *how) -> dict:
    """Times of all arms in turn, and what of the model decides them."""
    found = trainers(case, *how)
    for trainer in found.values():
        trainer.train(CASES[case][1])  # DDP rebuilds its buckets once
    ms = {arm: [] for arm in found}
    for number in range(WARM + rounds):
        for arm in random.Random(number).sample(list(found), len(found)):  # alike on all ranks
            ms[arm].append(found[arm].milliseconds(steps))
    device, model = how[1], found["no DDP"].model
    return {
        "tensors": len([*model.parameters()]),
        "gradients": sum(p.nbytes for p in model.parameters()),
        "buffers": len([*model.buffers()]),
        "buckets": found["two, a number"].buckets,
        "warm": WARM,
        "ms": {arm: slowest(values, device) for arm, values in ms.items()},
    }


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="to try it on a CPU")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a turn")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 ddp_price.py")
    device = start()
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]  # all make all
    how = args.rounds, args.steps, args.tiny, device, groups[dist.get_rank()]
    found = {"link": {f"{mib:g}": all_reduce_seconds(mib, device) for mib in (0.001, 10, 150)}}
    for case in CASES:
        found[case] = measure(case, *how)
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
