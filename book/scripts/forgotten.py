"""Leave out one of DDP's changes at a time. What becomes of the training?

    torchrun --standalone --nproc-per-node=2 forgotten.py

A small CNN learns scikit-learn's digits for four epochs, in float64, always from the same weights.
Every rank prints {"what was left out": {"steps": ..., "weights off by": ...}, ...}.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from train_ddp import CNN, load, start

BATCH, EPOCHS = 64, 4
WAYS = ("nothing", "set_epoch", "the sampler", "the share of the batch", "the wrapper")


def train(data: Dataset, device: torch.device, without: str | None) -> tuple[CNN, int, float]:
    """Train with DDP ``without`` one change, or if None alone; return also steps and last loss."""
    torch.manual_seed(0)  # the same on every rank, as many scripts set it
    net = model = CNN(side=8).to(device, torch.float64)
    sampler, batch = DistributedSampler(data, num_replicas=1, rank=0), BATCH
    if without is not None:
        sampler, batch = DistributedSampler(data), BATCH // dist.get_world_size()
        net = model if without == "the wrapper" else DistributedDataParallel(model)
    if without == "the share of the batch":
        batch = BATCH
    loader = DataLoader(data, batch, sampler=sampler)
    if without == "the sampler":
        loader = DataLoader(data, batch, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(EPOCHS):
        if without != "set_epoch":
            sampler.set_epoch(epoch)
        losses = []
        for images, labels in loader:
            loss = F.cross_entropy(net(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return model, EPOCHS * len(loader), torch.stack(losses).mean().item()


@torch.no_grad()
def accuracy(model: CNN, data: Dataset, device: torch.device) -> float:
    images, labels = data.tensors
    return (model(images.to(device)).argmax(1) == labels.to(device)).double().mean().item()


def row(model: CNN) -> Tensor:
    """All weights in one row."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@record
def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 forgotten.py")
    device = start()
    learn, test = load("digits", "", torch.float64)
    model, steps, loss = train(learn, device, None)
    right = row(model)
    found = {
        "one process": {"steps": steps, "loss": loss, "accuracy": accuracy(model, test, device)}
    }
    for way in WAYS:
        model, steps, loss = train(learn, device, way)
        mine = row(model)
        first = mine.clone()
        dist.broadcast(first, src=0)
        apart = (mine - first).norm() / first.norm()
        dist.all_reduce(apart, op=dist.ReduceOp.MAX)
        found[way] = {
            "steps": steps,
            "loss": loss,
            "accuracy": accuracy(model, test, device),
            "weights off by": ((mine - right).norm() / right.norm()).item(),
            "ranks apart by": apart.item(),
        }
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
